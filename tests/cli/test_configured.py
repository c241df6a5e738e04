"""What the model commands say of models that the configuration describes, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.cli.main import main
from barrel_inference.registry import Registry
from tests.registry.weights import model
from tests.server.harness import STUB


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(model())
    return path


@pytest.fixture(autouse=True)
async def models(tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is installed, two that are configured, and one that is both."""
    root = tmp_path / "models"
    registry = Registry(root)
    for name in ("installed", "both"):
        async for _ in registry.pull(str(weights), name=name):
            pass
    described = {"stub": STUB, "notes": {"model_path": "installed", "system": "You keep notes."}, "both": STUB}
    monkeypatch.delenv("BARREL_INFERENCE_HOST", raising=False)
    monkeypatch.setenv("BARREL_INFERENCE_MODEL_CACHE_DIR", str(root))
    monkeypatch.setenv("BARREL_INFERENCE_SERVER_MODELS", json.dumps(described))


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list(capsys: pytest.CaptureFixture[str], weights: Path) -> None:
    found = told(capsys, "list")["models"]
    assert sorted(each["name"] for each in found) == ["both", "installed", "notes", "stub"]
    assert len({frozenset(each) for each in found if each["name"] in ("both", "stub")}) == 1
    assert [each["size_bytes"] for each in found if each["name"] == "notes"] == [weights.stat().st_size]
    assert main(["list", "no"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "notes:latest"


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    installed, notes = told(capsys, "show", "installed", "-v"), told(capsys, "show", "notes", "-v")
    assert notes["system"] == "You keep notes."
    assert {name: notes[name] for name in ("architecture", "metadata", "tensors", "blob_path")} == {
        name: installed[name] for name in ("architecture", "metadata", "tensors", "blob_path")
    }
    assert main(["show", "stub:latest", "--verbose"]) == 0
    assert main(["show", "notes", "--modelfile"]) == 0
    assert "FROM notes:latest" in capsys.readouterr().out
