"""Models that the configuration names: what is known of them before they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barrel_inference.errors import ModelNotFoundError
from barrel_inference.server.models.catalog import Configured, Entry
from tests.support.gguf_file import write_gguf

TOOLS = "{% for tool in tools %}{{ tool }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}<think>"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return _write(tmp_path / "m.gguf", TOOLS)


def _write(path: Path, template: str, **more: Any) -> Path:
    keys: dict[str, Any] = {
        "general.architecture": "qwen2",
        "qwen2.embedding_length": 64,
        "tokenizer.chat_template": template,
    }
    return write_gguf(path, {**keys, **more})


def _entry(weights: Path, **options: Any) -> Entry:
    return Configured({"m": {"model_path": str(weights), **options}}).resolve("m")


def test_a_model_tells_what_its_file_says(weights: Path) -> None:
    """Clients of Ollama send tools only where ``capabilities`` has them."""
    entry = _entry(weights)
    assert entry.capabilities == ("completion", "tools", "thinking")
    assert (entry.family, entry.embedding_length, entry.size_bytes) == ("qwen", 64, weights.stat().st_size)
    assert entry.chat_template == TOOLS
    assert Configured({"m": {"model_path": str(weights)}}).list() == [entry]


def test_the_configuration_s_template_counts_before_the_file_s(weights: Path) -> None:
    assert _entry(weights, template="{{ messages[0].content }}").capabilities == ("completion",)


def test_a_model_for_embeddings_is_known_by_its_file_or_by_the_configuration(weights: Path) -> None:
    assert _entry(weights, context_opts={"embeddings": True}).capabilities == ("embedding",)
    _write(weights, "", **{"qwen2.pooling_type": 1})
    entry = _entry(weights)
    assert (entry.embedding, entry.capabilities) == (True, ("embedding",))


def test_a_file_that_changed_is_read_again(weights: Path) -> None:
    models = Configured({"m": {"model_path": str(weights)}})
    assert "tools" in models.resolve("m").capabilities
    _write(weights, "plain")
    assert models.resolve("m").capabilities == ("completion",)


@pytest.mark.parametrize("content", [None, b"no model"])
def test_a_file_that_cannot_be_read_is_for_the_load_to_refuse(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    assert _entry(path) == Entry(name="m:latest", path=str(path))


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(ModelNotFoundError):
        Configured({}).resolve("m")
