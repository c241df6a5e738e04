"""Whether saving and restoring is exact for this model and this build: tried once, the verdict kept beside ns.json.

A short sequence is computed, saved through the same slicing and assembly that the store uses, restored, and continued;
the logits must equal those of the unbroken run bit for bit.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from barrel_inference.engine.backend import Backend, DecodeStatus, Slice
from barrel_inference.engine.checkpoints.restoring import append_state
from barrel_inference.errors import BarrelError, CacheError
from barrel_inference.files import leave_note, read_small
from barrel_inference.kvcache.layout import Assembly, Layout, Parsed

HEAD = 96  # a block and a half: what a block and a tail hold
CONTINUED = 8
SEQ = 0


def remembered_verdict(backend: Backend, layout: Layout, folder: Path) -> str:
    """ "exact", or why the cache must stay off. A verdict is never older than its namespace, which names the build."""
    path, passed = folder / "selftest.json", msgspec.json.encode({"verdict": "exact"})
    with suppress(OSError):
        if read_small(path) == passed:
            return "exact"
    verdict = run(backend, layout)
    if verdict == "exact":  # a failure may have been the machine's, and is tried again
        leave_note(path, passed)
    return verdict


def run(backend: Backend, layout: Layout) -> str:
    """Engine thread; uses sequence 0, which must be empty and is left so."""
    head = min(HEAD, backend.info.n_ctx // 2)
    tokens = tuple(3 + (7 * i) % max(1, backend.info.n_vocab - 3) for i in range(head + CONTINUED))
    tokens = tuple(token % backend.info.n_vocab for token in tokens)
    try:
        _decode(backend, tokens[:head], 0)
        blobs = _save(backend, layout, head)
        unbroken = _decode(backend, tokens[head:], head)
        backend.seq_remove(SEQ, 0, -1)
        if not all(append_state(backend, SEQ, blob) for blob in blobs):
            return "self-test: llama.cpp refuses a restored state"
        restored = _decode(backend, tokens[head:], head)
    except BarrelError as error:
        return f"self-test: {error}"
    finally:
        backend.seq_remove(SEQ, 0, -1)
    if not np.array_equal(unbroken, restored):
        return f"self-test: logits after a restore differ by up to {np.abs(unbroken - restored).max():.3g}"
    return "exact"


def _decode(backend: Backend, tokens: tuple[int, ...], start: int) -> NDArray[np.float32]:
    """The logits of the last token."""
    n_batch = backend.info.n_batch
    for at in range(0, len(tokens), n_batch):
        piece = Slice(SEQ, start + at, tokens[at : at + n_batch], want_logits=True)
        status = backend.decode([piece], None)
        if status is not DecodeStatus.OK:
            raise CacheError(f"decoding gave {status.value}")
    return backend.logits(0).copy()


def _save(backend: Backend, layout: Layout, n: int) -> list[memoryview]:
    """The state of the first ``n`` tokens, cut in two and put together again; rows alone stay two blobs."""
    size = backend.state_size(SEQ)
    blob = memoryview(bytearray(size))
    parsed = layout.parse(blob[: backend.state_read(SEQ, blob)])
    if parsed.base is not None and parsed.window is None and parsed.state is None:
        return [_assembled(parsed, Assembly(layout, stop, first=first)) for first, stop in ((0, n // 2), (n // 2, n))]
    window_first = parsed.window.span()[0] if parsed.window else 0
    n_state = len(parsed.state) if parsed.state is not None else 0
    return [_assembled(parsed, Assembly(layout, n, window_first, n_state))]


def _assembled(parsed: Parsed, assembly: Assembly) -> memoryview:
    blob = memoryview(bytearray(assembly.size))
    assembly.write_headers(blob)
    for cells, target in ((parsed.base, assembly.base), (parsed.window, assembly.window)):
        if cells is None or target is None:
            continue
        first, last = target.first, target.first + target.count
        middle = (first + last) // 2
        for start, stop in ((first, middle), (middle, last)):
            if stop > start:
                target.put(blob, memoryview(b"".join(cells.rows(start, stop))), (start, stop), start, stop)
    if parsed.state is not None:
        assembly.state(blob)[:] = parsed.state
    return blob
