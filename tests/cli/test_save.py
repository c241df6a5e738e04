"""/save in a conversation with a GGUF file: the private server makes a model of it, and asks no registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from barrel_inference.cli.private import server
from barrel_inference.cli.session import Session
from barrel_inference.errors import InvalidNameError
from tests.registry.weights import model as weights


def test_a_file_and_its_conversation_become_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BARREL_INFERENCE_HOST", raising=False)
    monkeypatch.setenv("BARREL_INFERENCE_SERVER_PORT", "9")
    monkeypatch.setenv("BARREL_INFERENCE_MODEL_CACHE_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    file = tmp_path / "tiny.gguf"
    file.write_bytes(weights())
    with server(str(file)) as (client, name):
        session = Session(client, name, "Be brief.", {"temperature": 0.5})
        session.messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
        assert session.command("/save mine") == "saved as mine"
        shown = client.ask("POST", "/api/show", {"model": "mine"})
        with pytest.raises(InvalidNameError, match="invalid model name"):
            session.command("/save ./mine")
    assert shown["system"] == "Be brief."
    assert shown["messages"] == session.messages
    assert "temperature" in shown["parameters"]
