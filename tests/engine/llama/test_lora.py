"""LoRA adapters: they change what the model says, by their scale; one that does not fit is an error at load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from barrel_inference.config import ContextOpts, LoadOptions
from barrel_inference.engine.backend import DecodeStatus, Slice
from barrel_inference.engine.llama import LlamaBackend
from barrel_inference.errors import LoadError
from tests.support.tiny_files import tiny_lora
from tests.support.tiny_models import N_EMBD, tiny_model

pytestmark = pytest.mark.model

TOKENS = (5, 80, 3, 41, 77)


def opened(*lora: tuple[Path, float]) -> LlamaBackend:
    adapters = tuple((str(path), scale, "") for path, scale in lora)
    options = LoadOptions(
        id="m", model_path=str(tiny_model("llama")), context_opts=ContextOpts(n_ctx=256), lora=adapters
    )
    return LlamaBackend(options)


def logits(backend: LlamaBackend) -> NDArray[np.float32]:
    assert backend.decode([Slice(0, 0, TOKENS, want_logits=True)], None) is DecodeStatus.OK
    row = backend.logits(0).copy()
    backend.seq_remove(0, 0, -1)
    return row


def logits_with(*lora: tuple[Path, float]) -> NDArray[np.float32]:
    backend = opened(*lora)
    row = logits(backend)
    backend.close()
    return row


def test_an_adapter_changes_the_logits_by_its_scale(tmp_path: Path) -> None:
    adapter = tiny_lora(tmp_path / "a.gguf")
    plain, full, half = logits_with(), logits_with((adapter, 1.0)), logits_with((adapter, 0.5))
    assert np.abs(full - plain).max() > 0.01
    assert not np.allclose(full, half)
    assert np.allclose(logits_with((adapter, 0.0)), plain, atol=1e-5)


def test_adapters_add_up(tmp_path: Path) -> None:
    adapter = tiny_lora(tmp_path / "a.gguf")
    twice = logits_with((adapter, 0.5), (tiny_lora(tmp_path / "b.gguf"), 0.5))
    assert np.allclose(twice, logits_with((adapter, 1.0)), atol=1e-2)


def test_adapters_are_loaded_in_one_order_however_they_are_named(tmp_path: Path) -> None:
    """They have one namespace in any order, and a sum depends on it in the last bits."""
    adapters = [(str(tiny_lora(tmp_path / f"{name}.gguf")), scale, name) for name, scale in (("b", 1.0), ("a", 0.5))]
    for lora in (adapters, adapters[::-1]):
        options = LoadOptions(
            id="m", model_path=str(tiny_model("llama")), context_opts=ContextOpts(n_ctx=256), lora=tuple(lora)
        )
        backend = LlamaBackend(options)
        assert [scale for _, scale in backend._weights.adapters] == [0.5, 1.0]
        backend.close()


def test_a_rebuilt_context_keeps_its_adapters(tmp_path: Path) -> None:
    backend = opened((tiny_lora(tmp_path / "a.gguf"), 1.0))
    before = logits(backend)
    backend.rebuild()
    assert np.array_equal(logits(backend), before)
    backend.close()


def test_an_adapter_that_cannot_be_applied_is_an_error_at_load(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no adapter " * 10)
    empty = tmp_path / "empty.gguf"
    empty.touch()
    good = tiny_lora(tmp_path / "good.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(good.read_bytes()[:900])
    wrong_shape = tiny_lora(tmp_path / "wrong.gguf", n_embd=N_EMBD // 2)
    for path in (tmp_path / "absent.gguf", tmp_path, text, empty, broken, wrong_shape, tiny_model("llama")):
        with pytest.raises(LoadError, match="LoRA"):
            opened((good, 1.0), (path, 1.0))
