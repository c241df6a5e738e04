"""Models that the configuration names: what is known of them before they are loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.errors import ModelNotFoundError
from barrel_inference.registry.names import tagged
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
    assert _entry(path) == Entry(name="m:latest", path=str(path), modified_at=_entry(path).modified_at)


class Installed:
    """What a registry has."""

    def __init__(self, *entries: Entry) -> None:
        self._entries = entries

    def resolve(self, name: str) -> Entry:
        for entry in self._entries:
            if entry.name == tagged(name):
                return entry
        raise ModelNotFoundError("no")

    def list(self) -> list[Entry]:
        return list(self._entries)


def test_the_newest_come_first_wherever_they_are_from(weights: Path) -> None:
    os.utime(weights, (1000, 1000))
    rest = Installed(
        Entry(name="new:latest", modified_at="2030-01-01T00:00:00Z"),
        Entry(name="middle:latest", modified_at="1970-01-01T02:00:00+00:00"),
        Entry(name="old:latest", modified_at="1970-01-01T00:00:01.5Z"),
    )
    models: dict[str, Any] = {"file": {"model_path": str(weights)}, "none": {"backend": "stub"}}
    found = Configured(models, rest, now=lambda: 1_000_000_000.0).list()
    assert [entry.name.removesuffix(":latest") for entry in found] == ["new", "none", "middle", "file", "old"]
    assert found[1].modified_at == "2001-09-09T01:46:40Z"


def test_a_context_is_what_the_file_was_trained_on_or_what_an_operator_wrote(weights: Path) -> None:
    _write(weights, "", **{"qwen2.context_length": 2048})
    assert _entry(weights).context_size == 2048
    assert _entry(weights, context_opts={"n_ctx": 9000}).context_size == 9000


def test_a_name_in_place_of_a_path_means_the_file_of_the_installed_model(weights: Path) -> None:
    installed = Installed(Entry(name="a:latest", path=str(weights), template="other"))
    models = Configured({"m": {"model_path": "a"}, "gone": {"model_path": "b"}, "none": {"backend": "stub"}}, installed)
    entry = models.resolve("m")
    assert (entry.path, entry.chat_template, entry.template) == (str(weights), TOOLS, None)
    assert {each.path for each in models.list()} == {str(weights), "b", None}
    assert models.missing() == ["model 'gone:latest': b is neither a file nor an installed model"]


def test_the_home_directory_may_be_written_short(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(weights.parent))
    models = Configured({"m": {"model_path": "~/m.gguf"}, "gone": {"model_path": "~/n.gguf"}})
    assert models.resolve("m").size_bytes == weights.stat().st_size
    assert len(models.missing()) == 1


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(ModelNotFoundError):
        Configured({}).resolve("m")
