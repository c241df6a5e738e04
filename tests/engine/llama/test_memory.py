"""Sequences and their states: ranges, copies, and what a failed load leaves behind (nothing)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barrel_inference.engine.llama import LlamaBackend
from barrel_inference.errors import DecodeError
from tests.engine.llama.opened import feed, opened
from tests.support.tiny_models import ARCHS, Arch, tiny_model

pytestmark = pytest.mark.model


@pytest.fixture(params=ARCHS)
def backend(request: pytest.FixtureRequest) -> Iterator[LlamaBackend]:
    with opened(tiny_model(request.param), n_ctx=512) as one:
        yield one


@pytest.fixture
def llama() -> Iterator[LlamaBackend]:
    with opened(tiny_model("llama")) as one:
        yield one


def state(backend: LlamaBackend, seq: int) -> bytes:
    buffer = bytearray(backend.state_size(seq))
    assert backend.state_read(seq, memoryview(buffer)) == len(buffer)
    return bytes(buffer)


@pytest.mark.parametrize("seq", [-1, 3, 2**31])
def test_a_sequence_outside_the_context_is_refused(llama: LlamaBackend, seq: int) -> None:
    blob = memoryview(bytearray(64))
    for call in (
        lambda: llama.seq_bounds(seq),
        lambda: llama.seq_remove(seq, 0, -1),
        lambda: llama.seq_copy(0, seq, 0, -1),
        lambda: llama.seq_copy(seq, 0, 0, -1),
        lambda: llama.state_size(seq),
        lambda: llama.state_read(seq, blob),
        lambda: llama.state_write(seq, blob),
    ):
        with pytest.raises(DecodeError, match="outside"):
            call()


def test_a_range_is_shared_without_touching_its_source(llama: LlamaBackend) -> None:
    """A partial copy, which aborts the process in a context that is not unified."""
    feed(llama, 0, 0, 20)
    expected = feed(llama, 0, 20, 21)
    llama.seq_remove(0, 20, -1)
    llama.seq_copy(0, 1, 0, 12)
    assert llama.seq_bounds(1) == (0, 11)
    feed(llama, 1, 12, 20)
    llama.seq_remove(1, 0, -1)
    assert feed(llama, 0, 20, 21) == expected


def test_a_sequence_copied_to_itself_stays(llama: LlamaBackend) -> None:
    feed(llama, 0, 0, 20)
    llama.seq_copy(0, 0, 5, 10)
    assert llama.seq_bounds(0) == (0, 19)


def test_a_state_continues_as_its_source(backend: LlamaBackend) -> None:
    feed(backend, 0, 0, 150)
    blob = state(backend, 0)
    expected = feed(backend, 0, 150, 151)
    backend.rebuild()
    assert backend.state_write(1, memoryview(blob))
    assert backend.seq_bounds(1)[1] == 149
    assert feed(backend, 1, 150, 151) == expected


def test_a_state_replaces_what_the_sequence_held(backend: LlamaBackend) -> None:
    feed(backend, 0, 0, 30)
    blob = state(backend, 0)
    feed(backend, 1, 0, 50)
    assert backend.state_write(1, memoryview(blob))
    assert backend.seq_bounds(1)[1] == 29


def test_an_empty_state_clears_the_sequence(backend: LlamaBackend) -> None:
    """llama.cpp loads it with success and leaves the destination as it was."""
    feed(backend, 1, 0, 50)
    backend.state_write(1, memoryview(state(backend, 0)))
    assert backend.seq_bounds(1) == (-1, -1)
    assert not backend.state_write(1, memoryview(b""))


def test_a_cut_off_state_leaves_the_sequence_empty_and_the_others_whole(backend: LlamaBackend) -> None:
    feed(backend, 0, 0, 150)
    blob = memoryview(state(backend, 0))
    fresh = feed(backend, 1, 0, 40)
    for sixteenth in range(16):
        assert not backend.state_write(1, blob[: len(blob) * sixteenth // 16])
        assert backend.seq_bounds(1) == (-1, -1)
        assert backend.seq_bounds(0)[1] == 149
        assert feed(backend, 1, 0, 40) == fresh
    backend.seq_remove(1, 0, -1)
    feed(backend, backend.scratch, 0, 512)  # no cell was leaked
    feed(backend, 1, 0, 512 - 150)


def test_a_state_with_bytes_left_over_is_refused(backend: LlamaBackend) -> None:
    feed(backend, 0, 0, 30)
    assert not backend.state_write(1, memoryview(state(backend, 0) + b"\0"))
    assert backend.seq_bounds(1) == (-1, -1)


@pytest.mark.parametrize("other", ["gemma3", "mamba", "jamba", "lfm2"])
def test_a_state_of_another_model_is_refused(llama: LlamaBackend, other: Arch) -> None:
    with opened(tiny_model(other)) as source:
        feed(source, 0, 0, 30)
        blob = state(source, 0)
    assert not llama.state_write(0, memoryview(blob))
    assert llama.seq_bounds(0) == (-1, -1)


def test_a_state_with_its_values_transposed_is_refused_by_another_layout() -> None:
    with opened(tiny_model("llama"), flash_attn=False) as source:
        feed(source, 0, 0, 30)
        blob = state(source, 0)
    with opened(tiny_model("llama"), flash_attn=True) as target:
        assert not target.state_write(0, memoryview(blob))
        assert target.seq_bounds(0) == (-1, -1)


def test_a_buffer_too_small_for_a_state_gets_nothing(llama: LlamaBackend) -> None:
    feed(llama, 0, 0, 30)
    buffer = bytearray(llama.state_size(0) - 1)
    assert llama.state_read(0, memoryview(buffer)) == 0


def test_an_emptied_memory_computes_what_a_new_one_does() -> None:
    """A full ring of a sliding window once went on behind the cells used last: the same sums in another order."""
    lengths = (57, 54, 56, 1, 53, 39, 19, 49, 30, 44, 5, 19, 55, 15, 20, 32, 50)
    turns = (1, 1, 2, 0, 1, 1, 2, 0, 2, 0, 2, 0, 1, 2, 0, 0, 1)  # whose tokens they are
    emptied_after = {6: 0, 7: 0, 8: 2, 13: 2}
    with opened(tiny_model("gemma3"), n_ctx=900, n_seq_max=3, n_threads=1, flash_attn=True) as backend:
        new = feed(backend, 0, 0, 700)
        backend.seq_remove(0, 0, -1)
        held = [0, 0, 0]
        for step, (seq, n) in enumerate(zip(turns, lengths, strict=True)):
            feed(backend, seq, held[seq], held[seq] + n)
            held[seq] += n
            if (emptied := emptied_after.get(step)) is not None:
                backend.seq_remove(emptied, 0, -1)
                held[emptied] = 0
            if step == 6:
                backend.seq_copy(1, 0, 0, -1)
                held[0] = held[1]
        for seq in (1, 2, 0):
            backend.seq_remove(seq, 0, -1)
        assert feed(backend, 2, 0, 700) == new
