"""``stop``: a model by any of its names."""

from __future__ import annotations

from pathlib import Path

import pytest

from barrel_inference.cli import main as cli
from barrel_inference.cli.report import EXIT_NOT_FOUND
from tests.server.harness import STUB, RunningServer
from tests.support.gguf_file import write_gguf


def test_any_name_of_the_weights_stops_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_gguf(tmp_path / "weights.gguf", {"general.architecture": "llama"})
    base = STUB | {"model_path": str(file)}
    with RunningServer(tmp_path, models={"base": base, "pirate": base | {"system": "You are a pirate."}}) as server:
        monkeypatch.setenv("BARREL_INFERENCE_HOST", server.url)
        for name in ("base", "pirate"):
            server.post("/api/generate", {"model": name, "prompt": "Hi", "options": {"num_predict": 1}})
        assert cli.main(["ps"]) == 0
        assert "base:latest, pirate:latest" in capsys.readouterr().out
        assert cli.main(["stop", "pirate"]) == 0
        assert cli.main(["stop", "base"]) == EXIT_NOT_FOUND
        assert "model 'base' is not loaded" in capsys.readouterr().err
        assert cli.main(["stop", "nobody"]) == EXIT_NOT_FOUND
        assert "model 'nobody' not found" in capsys.readouterr().err
