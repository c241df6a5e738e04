"""``ps``: until when a model stays."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from barrel_inference.cli import main as cli
from barrel_inference.cli.ps import local_time
from tests.server.harness import STUB, RunningServer


def test_a_time_is_iso_to_the_second_in_the_zone_of_the_machine() -> None:
    zone = timezone(timedelta(hours=1))
    assert local_time("2026-01-31T16:04:05Z", zone) == "2026-01-31T17:04:05+01:00"
    assert local_time("2026-01-31T16:04:05.678901Z", zone) == "2026-01-31T17:04:05+01:00"
    assert datetime.fromisoformat(local_time("2026-01-31T16:04:05Z")).utcoffset() is not None
    assert local_time("never") == "never"


def test_what_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with RunningServer(tmp_path, models={"stub": STUB, "held": STUB}) as server:
        monkeypatch.setenv("BARREL_INFERENCE_HOST", server.url)
        server.post("/api/generate", {"model": "stub", "keep_alive": "1h"})
        server.post("/api/generate", {"model": "held", "keep_alive": -1})
        assert cli.main(["ps"]) == 0
    head, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    until = {row[0]: row[-1] for row in rows}
    assert head[-1] == "UNTIL"
    assert until["held:latest"] == "never"
    left = datetime.fromisoformat(until["stub:latest"]) - datetime.now().astimezone()
    assert timedelta(minutes=55) < left <= timedelta(hours=1)
