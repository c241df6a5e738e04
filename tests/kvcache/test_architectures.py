"""Every kind of llama.cpp memory restores exactly: logits equal those of the unbroken run, with equal batch shapes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from barrel_inference.config import ContextOpts, LoadOptions, Policy
from barrel_inference.engine.backend import DecodeStatus, Slice
from barrel_inference.engine.llama import LlamaBackend
from barrel_inference.kvcache.layout import detect
from barrel_inference.kvcache.record import FIXED
from tests.kvcache.harness import Runner, open_on, spec
from tests.support.tiny_models import ARCHS, N_VOCAB, WINDOW, Arch, tiny_model

pytestmark = pytest.mark.model

TOKENS = [(i * i + 3 * i) % N_VOCAB for i in range(700)]
KIND = {"llama": "plain", "gemma3": "swa", "mamba": "recurrent", "jamba": "hybrid", "lfm2": "hybrid"}
CHUNK = 256


@contextmanager
def loaded(
    arch: Arch,
    path: Path,
    *,
    flash_attn: bool,
    type_kv: str = "f16",
    backend_type: type[LlamaBackend] = LlamaBackend,
    **policy: int,
) -> Iterator[Runner]:
    options = LoadOptions(
        id="m",
        model_path=str(tiny_model(arch)),
        tiers=(spec(path),),
        save_tier="disk",
        policy=Policy(**policy),
        # One thread: with more, one-row attention splits the cells among them, and the order of summation depends on
        # where in memory a window happens to lie.
        context_opts=ContextOpts(
            n_ctx=1024, flash_attn=flash_attn, type_k=type_kv, type_v=type_kv, n_threads=1, n_threads_batch=1
        ),
    )
    backend = backend_type(options)
    checkpoints = open_on(backend, options)
    assert checkpoints.verdict == "exact"
    assert checkpoints.layout == KIND[arch]
    yield Runner(backend, checkpoints)
    checkpoints.close()
    backend.close()


def decode(one: Runner, start: int, stop: int) -> list[NDArray[np.float32]]:
    """TOKENS[start:stop], cut at absolute multiples of CHUNK, then ten more one by one; the logits of each batch."""
    edges = [start, *range(start // CHUNK * CHUNK + CHUNK, stop, CHUNK), *range(stop, stop + 11)]
    logits = []
    for first, last in itertools.pairwise(edges):
        piece = Slice(0, first, tuple(TOKENS[first:last]), want_logits=True)
        assert one.backend.decode([piece], None) is DecodeStatus.OK
        logits.append(one.backend.logits(0).copy())
    return logits


def prefill(one: Runner, at: int) -> None:
    one.backend.seq_remove(0, 0, -1)
    edges = [*range(0, at, CHUNK), at]
    for first, last in itertools.pairwise(edges):
        one.backend.decode([Slice(0, first, tuple(TOKENS[first:last]), want_logits=False)], None)


def unbroken(one: Runner, at: int, stop: int) -> list[NDArray[np.float32]]:
    """As ``decode`` from ``at``, after a prefill of what is before it."""
    prefill(one, at)
    logits = decode(one, at, stop)
    one.backend.seq_remove(0, 0, -1)
    return logits


def test_damage_behind_what_is_loaded_already(tmp_path: Path) -> None:
    """The first part is in the context when the second turns out to be bad."""
    with loaded("llama", tmp_path, flash_attn=True) as one:
        first = one.run(TOKENS, 5)
        blocks = sorted(tmp_path.rglob("*.block.p"), key=lambda path: FIXED.unpack(path.read_bytes()[: FIXED.size])[7])
        data = bytearray(blocks[9].read_bytes())
        data[-1] ^= 1
        blocks[9].write_bytes(data)
        again = one.run(TOKENS, 5)
        assert again.restored == 9 * 64
        assert again.tokens == first.tokens
        assert one.run(TOKENS, 5).restored == len(TOKENS) - 1


def resumed(one: Runner, at: int, stop: int) -> list[NDArray[np.float32]]:
    plan = one.checkpoints.find(TOKENS[:stop], limit=lambda n: at if n >= at else 0)
    assert one.checkpoints.restore(plan, 0) == at
    logits = decode(one, at, stop)
    one.backend.seq_remove(0, 0, -1)
    return logits


def equal(a: list[NDArray[np.float32]], b: list[NDArray[np.float32]]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize("arch", ARCHS)
def test_a_resumed_run_is_the_unbroken_one(tmp_path: Path, arch: Arch, flash_attn: bool) -> None:
    with loaded(arch, tmp_path, flash_attn=flash_attn, boundary_align_tokens=64) as one:
        one.run(TOKENS[:513])
        for at in (64, 256, 320, 512):
            assert equal(resumed(one, at, 600), unbroken(one, at, 600)), at


@pytest.mark.parametrize("flash_attn", [True, False])
def test_a_resume_inside_a_block(tmp_path: Path, flash_attn: bool) -> None:
    """As if the saved sequence had been cut there."""
    with loaded("llama", tmp_path, flash_attn=flash_attn) as one:
        one.run(TOKENS[:500])
        for at in (100, 300, 499):
            prefill(one, 500)
            assert one.backend.seq_remove(0, at, -1)
            cut = decode(one, at, 600)
            assert equal(resumed(one, at, 600), cut), at


def test_a_resume_inside_a_block_with_a_window(tmp_path: Path) -> None:
    with loaded("gemma3", tmp_path, flash_attn=False) as one:
        one.run(TOKENS[:500])
        for at in (100, 300, 499):
            assert equal(resumed(one, at, 600), unbroken(one, at, 600)), at


@pytest.mark.parametrize("flash_attn", [True, False])
def test_mistake_12_a_window_too_short(tmp_path: Path, flash_attn: bool) -> None:
    with loaded("gemma3", tmp_path, flash_attn=flash_attn) as one:
        assert one.backend.info.n_swa == WINDOW
        one.run(TOKENS[:640])
        for at in range(64, 641, 64):
            assert equal(resumed(one, at, 680), unbroken(one, at, 680)), at


@pytest.mark.parametrize("arch", ["mamba", "jamba", "lfm2"])
def test_mistake_11_a_state_that_cannot_be_cut(tmp_path: Path, arch: Arch) -> None:
    """The same prompt again, one token less, and an edit: a state is used only where it was taken."""
    with loaded(arch, tmp_path, flash_attn=True, boundary_align_tokens=128) as one:
        first = one.run(TOKENS[:300], 3)
        for prompt, restored in ((TOKENS[:300], 256), (TOKENS[:290], 256), ([*TOKENS[:200], 1, 2, 3], 128)):
            warm = one.run(prompt, 3, cache="read")
            assert warm.restored == restored
        went_on = [*first.tokens, *TOKENS[400:420]]
        warm = one.run(went_on, 1, cache="read")
        assert warm.restored == len(first.tokens)


def test_quantised_rows(tmp_path: Path) -> None:
    with loaded("llama", tmp_path, flash_attn=True, type_kv="q8_0") as one:
        one.run(TOKENS[:513])
        for at in (64, 300, 512):
            assert equal(resumed(one, at, 600), unbroken(one, at, 600)), at


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_mistake_20_the_last_token_decoded_again(tmp_path: Path, arch: Arch) -> None:
    """Cold-exact: with every prompt length, logits and greedy answer equal those of a run without a cache. Rows of a
    window would lie in other cells, so that a model with one computes all anew."""
    with loaded(arch, tmp_path, flash_attn=True) as one:
        one.run(TOKENS[:400], 70)
        restored = 0
        for n in [*range(1, 300, 13), 63, 64, 65, 128, 129, 191, 192, 255, 256, 257, 280, 319, 320, 330, 399, 400]:
            warm = one.run(TOKENS[:n], 2, exact="cold", cache="read")
            cold = one.run(TOKENS[:n], 2, cache="off")
            assert equal(warm.logits, cold.logits), n
            restored += warm.restored > 0
        assert restored > 15 if arch == "llama" else restored == 0


@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_rows_are_found_wherever_their_cells_lie(tmp_path: Path, arch: Arch, flash_attn: bool) -> None:
    """Cells that another sequence gave back are used for later positions: llama.cpp lists them in memory order."""
    with loaded(arch, tmp_path, flash_attn=flash_attn) as one:
        backend = one.backend

        def state(seq: int) -> memoryview:
            blob = memoryview(bytearray(backend.state_size(seq)))
            return blob[: backend.state_read(seq, blob)]

        def row(seq: int, position: int) -> list[bytes]:
            parsed = layout.parse(state(seq))
            found = (cells.rows(position, position + 1) for cells in (parsed.base, parsed.window) if cells is not None)
            return [b"".join(pieces) for pieces in found]

        def grow(seq: int, start: int, stop: int) -> None:
            assert backend.decode([Slice(seq, start, tuple(TOKENS[start:stop]), False)], None) is DecodeStatus.OK

        grow(0, 0, 20)
        layout = detect(state(0), n_swa=backend.info.n_swa)
        grow(backend.scratch, 0, 20)
        grow(0, 20, 40)
        backend.seq_remove(backend.scratch, 0, -1)
        grow(0, 40, 70)
        base = layout.parse(state(0)).base
        assert base is not None
        assert base.positions.tolist() == [*range(20), *range(40, 60), *range(20, 40), *range(60, 70)]
        for position in (0, 19, 20, 39, 40, 59, 60, 69):
            backend.seq_copy(0, backend.scratch, position, position + 1)
            assert row(0, position) == row(backend.scratch, position)
            backend.seq_remove(backend.scratch, 0, -1)


class Watched(LlamaBackend):
    """Remembers what llama.cpp was given."""

    written: ClassVar[list[bytes]] = []

    def state_write(self, seq: int, blob: memoryview) -> bool:
        self.written.append(bytes(blob))
        return super().state_write(seq, blob)


HUGE = b"\xff" * 96  # over everything that a state begins with: its counts of cells, streams, layers and bytes


@pytest.mark.parametrize("arch", ARCHS)
def test_a_state_altered_on_disk_never_reaches_llama(tmp_path: Path, arch: Arch) -> None:
    """llama.cpp believes the counts in a state: it aborts, or allocates what they say."""
    with loaded(arch, tmp_path, flash_attn=True) as one:
        whole = one.run(TOKENS[:500], 3)
    for path in tmp_path.glob("*/*/*.p"):
        data = bytearray(path.read_bytes())
        (header_bytes,) = FIXED.unpack_from(data)[-1:]
        assert len(data) >= header_bytes + len(HUGE)
        data[header_bytes : header_bytes + len(HUGE)] = HUGE
        path.write_bytes(data)
    with loaded(arch, tmp_path, flash_attn=True, backend_type=Watched) as again:
        Watched.written.clear()  # the self-test's own
        answer = again.run(TOKENS[:500], 3, cache="read")
        assert again.checkpoints.counters["corrupt"] > 0
    assert answer.restored == 0 and Watched.written == []
    assert all(np.array_equal(a, b) for a, b in zip(answer.logits, whole.logits, strict=True))
