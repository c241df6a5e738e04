"""A file that is no good is refused before a process sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barrel_inference.aio import loading
from barrel_inference.config import LoadArguments, LoadOptions, RuntimeConfig
from barrel_inference.errors import InvalidModelError
from barrel_inference.fingerprint import Fingerprints, check_identity, identity
from tests.support.gguf_file import write_gguf
from tests.support.tiny_files import tiny_lora
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.model


def resolved(tmp_path: Path, adapter: Path) -> LoadOptions:
    model = tiny_model("llama")
    arguments = loading.parse({"model_path": model, "lora": [(adapter, 0.5)]}, RuntimeConfig())
    fingerprints = Fingerprints(tmp_path / "fingerprints.json")
    try:
        return loading.resolve("m", arguments, model, fingerprints)
    finally:
        fingerprints.close()


def test_what_was_asked_for_reaches_the_worker(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "backend": "stub",
        "model_opts": {"n_gpu_layers": 3},
        "context_opts": {"n_ctx": 512},
        "fingerprint": "ab" * 32,
        "quant_type": "Q4_0",
        "quant_bits": 4.5,
        "ctx_params_hash": "cd" * 32,
        "context_size": 256,
        "policy": {"min_tokens": 5},
        "exact": "cold",
        "cache": False,
        "tool_call_markers": ("<call>", "</call>"),
        "thinking_markers": ("<mull>", "</mull>"),
        "stub": {"n_vocab": 300},
    }
    arguments = loading.parse(asked, RuntimeConfig())
    options = loading.resolve("m", arguments, None, Fingerprints(tmp_path / "fingerprints.json"))
    shared = set(LoadOptions.__struct_fields__) & set(LoadArguments.__struct_fields__) - {"model_path", "lora"}
    assert shared == asked.keys()
    for name in shared:
        assert getattr(options, name) == getattr(arguments, name) != getattr(LoadArguments(), name)


def test_an_adapter_enters_the_options_with_its_digest(tmp_path: Path) -> None:
    adapter = tiny_lora(tmp_path / "a.gguf")
    ((path, scale, digest),) = resolved(tmp_path, adapter).lora
    assert (path, scale, len(digest)) == (str(adapter), 0.5, 64)


def test_a_worker_is_told_which_files_the_fingerprints_are_of(tmp_path: Path) -> None:
    """It loads no others, however long after that a crash makes it load them again."""
    adapter = tiny_lora(tmp_path / "a.gguf")
    files = resolved(tmp_path, adapter).files
    assert files == tuple((str(path), identity(path)) for path in (tiny_model("llama"), adapter))
    adapter.write_bytes(adapter.read_bytes())
    with pytest.raises(InvalidModelError):
        check_identity(files)


@pytest.mark.parametrize("kept", [0, 3, 23, 100, 500, 0.9])
def test_a_truncated_adapter_is_refused(tmp_path: Path, kept: float) -> None:
    whole = tiny_lora(tmp_path / "whole.gguf").read_bytes()
    adapter = tmp_path / "a.gguf"
    adapter.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(InvalidModelError, match=r"a\.gguf"):
        resolved(tmp_path, adapter)


def test_absurd_counts_in_an_adapter_are_refused(tmp_path: Path) -> None:
    adapter = tiny_lora(tmp_path / "a.gguf")
    raw = bytearray(adapter.read_bytes())
    for at in (8, 16):  # the numbers of tensors and of metadata
        hostile = raw.copy()
        hostile[at : at + 8] = (2**63 - 1).to_bytes(8, "little")
        adapter.write_bytes(hostile)
        with pytest.raises(InvalidModelError, match=r"a\.gguf"):
            resolved(tmp_path, adapter)


def test_a_file_that_is_no_adapter_is_refused(tmp_path: Path) -> None:
    text, empty, other = tmp_path / "text", tmp_path / "empty", tmp_path / "other.gguf"
    text.write_text("no adapter " * 100)
    empty.touch()
    write_gguf(other, {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "other"}, {})
    for path in (text, empty, other, tmp_path, tmp_path / "absent", Path("/dev/zero"), tiny_model("llama")):
        with pytest.raises(InvalidModelError):
            resolved(tmp_path, path)
