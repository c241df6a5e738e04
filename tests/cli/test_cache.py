"""``cache stats``: what is kept, and the counters of the server that runs on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from barrel_inference.cli import main as cli
from barrel_inference.cli.cache import stats_text
from tests.server.harness import STUB, RunningServer

TIER = {"name": "store", "kind": "disk", "quota_bytes": 2048, "used_bytes": 1024, "objects": 1, "path": "/kv"}
NAMESPACE = {"tier": "store", "namespace": "0123456789abcdef", "objects": 1, "bytes": 1024}


def test_counters_stand_in_a_table_with_their_units() -> None:
    counters = {"lookups": 1200, "misses": 0, "saved_bytes": 1536, "restore_s": 0.25, "prefill_s_saved": 61.5}
    found = {"tiers": [TIER], "namespaces": [NAMESPACE | {"about": {"fingerprint": "f"}}], "counters": counters}
    assert stats_text(found, {"f": "mine:latest"}).splitlines() == [
        "store (disk)  1 object, 1.0 KiB of 2.0 KiB  /kv",
        "  0123456789ab        1 objects     1.0 KiB  mine:latest",
        "",
        "COUNTER           SINCE START",
        "lookups                 1,200",
        "prefill_s_saved      61.500 s",
        "restore_s             0.250 s",
        "saved_bytes           1.5 KiB",
    ]


def test_a_model_s_rows_stand_below_their_tier_and_say_in_what_they_differ() -> None:
    """One namespace in two tiers; one model with two of them."""
    ram = {**TIER, "name": "ram", "kind": "ram", "path": ""}
    about = {"fingerprint": "f", "type_k": "f16", "flash_attn": True, "build": "1"}
    kept = [
        NAMESPACE | {"tier": "ram", "about": about},
        NAMESPACE | {"about": about},
        NAMESPACE | {"namespace": "fedcba9876543210", "about": about | {"type_k": "q8_0", "lora": [["a1", 1.0]]}},
        NAMESPACE | {"namespace": "aaaaaaaaaaaaaaaa", "about": {"fingerprint": "g"}},
    ]
    found = {"tiers": [ram, TIER], "namespaces": kept, "counters": {}}
    assert stats_text(found, {"f": "mine:latest", "g": "other:latest"}).splitlines() == [
        "ram (ram)  1 object, 1.0 KiB of 2.0 KiB",
        "  0123456789ab        1 objects     1.0 KiB  mine:latest",
        "store (disk)  1 object, 1.0 KiB of 2.0 KiB  /kv",
        "  0123456789ab        1 objects     1.0 KiB  mine:latest (type_k=f16, lora=no)",
        "  fedcba987654        1 objects     1.0 KiB  mine:latest (type_k=q8_0, lora=[['a1', 1.0]])",
        "  aaaaaaaaaaaa        1 objects     1.0 KiB  other:latest",
    ]


def test_without_counters_no_table() -> None:
    assert stats_text({"tiers": [TIER], "namespaces": [], "counters": {"misses": 0}}, {}).count("\n") == 0


def test_the_counters_of_the_server_that_runs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BARREL_INFERENCE_HOST", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    with RunningServer(tmp_path, models={"stub": STUB}) as server:
        monkeypatch.setenv("BARREL_INFERENCE_SERVER_PORT", server.url.rpartition(":")[2])
        server.post("/api/generate", {"model": "stub", "prompt": "word " * 100, "stream": False})
        assert cli.main(["cache", "stats", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert cli.main(["cache", "stats"]) == 0
    assert found["counters"]["lookups"] == 1 and found["by_model"]
    assert found["tiers"][0]["path"].startswith(str(tmp_path / "own"))  # still this machine's files
    assert "lookups" in capsys.readouterr().out
