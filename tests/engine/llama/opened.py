"""Tiny models behind the real backend, for a test's length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from barrel_inference.config import ContextOpts, LoadOptions
from barrel_inference.engine.backend import DecodeStatus, Slice
from barrel_inference.engine.llama import LlamaBackend
from tests.support.tiny_models import N_VOCAB


@contextmanager
def opened(path: Path, **context: Any) -> Iterator[LlamaBackend]:
    opts = ContextOpts(**{"n_ctx": 256, "n_batch": 64, "n_seq_max": 2, **context})
    backend = LlamaBackend(LoadOptions(id="m", model_path=str(path), context_opts=opts))
    yield backend
    backend.close()


def tokens(start: int, stop: int) -> tuple[int, ...]:
    """The tokens at these positions of a fixed sequence."""
    return tuple((position * position + 3 * position) % N_VOCAB for position in range(start, stop))


def feed(backend: LlamaBackend, seq: int, start: int, stop: int) -> bytes:
    """Decode these positions in batches of at most n_batch; the last logits."""
    for first in range(start, stop, backend.info.n_batch):
        piece = Slice(seq, first, tokens(first, min(stop, first + backend.info.n_batch)), want_logits=True)
        assert backend.decode([piece], None) is DecodeStatus.OK
    return backend.logits(0).tobytes()
