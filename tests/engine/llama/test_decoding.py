"""Decoding: what llama.cpp answers with an abort or with nonsense is refused first, and the context works on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from barrel_inference.config import ContextOpts, LoadOptions, ModelOpts
from barrel_inference.engine.backend import DecodeStatus, Slice
from barrel_inference.engine.llama import LlamaBackend
from barrel_inference.engine.llama.backend import window_start
from barrel_inference.errors import DecodeError, NoWeightsError
from tests.engine.llama.opened import feed, opened, tokens
from tests.support.models import smollm2
from tests.support.tiny_models import N_VOCAB, WINDOW, Arch, tiny_model

pytestmark = pytest.mark.model


@pytest.fixture
def llama() -> Iterator[LlamaBackend]:
    with opened(tiny_model("llama")) as backend:
        yield backend


def piece(seq: int, start: int, stop: int, *, want_logits: bool = True) -> Slice:
    return Slice(seq, start, tokens(start, stop), want_logits=want_logits)


REFUSED: dict[str, list[Slice]] = {
    "no batch": [],
    "an empty slice": [piece(0, 10, 10)],
    "more than n_batch": [piece(0, 10, 75)],
    "more than n_batch together": [piece(0, 10, 60), piece(1, 0, 20)],
    "a negative token": [Slice(0, 10, (-1,), True)],
    "a token outside the vocabulary": [Slice(0, 10, (1, N_VOCAB), True)],
    "a negative sequence": [piece(-1, 0, 4)],
    "a sequence outside the context": [piece(3, 0, 4)],
    "a gap": [piece(0, 11, 12)],
    "an overlap": [piece(0, 9, 12)],
    "an empty sequence from the middle": [piece(1, 5, 9)],
    "one sequence twice": [piece(0, 10, 12), piece(0, 12, 14)],
}


@pytest.mark.parametrize("batch", list(REFUSED.values()), ids=list(REFUSED))
def test_what_would_abort_or_go_wrong_silently_is_refused(llama: LlamaBackend, batch: list[Slice]) -> None:
    feed(llama, 0, 0, 10)
    with pytest.raises(DecodeError):
        llama.decode(batch, None)
    assert llama.seq_bounds(0) == (0, 9)
    after = feed(llama, 0, 10, 11)
    feed(llama, 1, 0, 10)
    assert feed(llama, 1, 10, 11) == after


def test_the_scratch_sequence_is_one_more(llama: LlamaBackend) -> None:
    assert llama.scratch == 2
    feed(llama, llama.scratch, 0, 5)
    assert llama.seq_bounds(llama.scratch) == (0, 4)


def test_logits_belong_to_their_slices(llama: LlamaBackend) -> None:
    alone = np.frombuffer(feed(llama, 0, 0, 7), np.float32)
    llama.seq_remove(0, 0, -1)
    batch = [piece(1, 0, 9, want_logits=False), piece(0, 0, 7)]
    assert llama.decode(batch, None) is DecodeStatus.OK
    assert np.allclose(llama.logits(1), alone, atol=1e-2)
    with pytest.raises(DecodeError, match="no logits"):
        llama.logits(0)


def test_logits_are_a_writable_view(llama: LlamaBackend) -> None:
    feed(llama, 0, 0, 3)
    row = llama.logits(0)
    row[5] = 1234.0
    assert llama.logits(0)[5] == 1234.0
    assert row.shape == (N_VOCAB,)


def test_without_room_nothing_is_decoded_and_nothing_lost() -> None:
    with opened(tiny_model("llama"), n_seq_max=1) as backend:
        feed(backend, 0, 0, 250)
        assert backend.decode([piece(backend.scratch, 0, 10)], None) is DecodeStatus.NO_ROOM
        assert backend.seq_bounds(0) == (0, 249)
        assert backend.seq_bounds(backend.scratch) == (-1, -1)
        after = feed(backend, 0, 250, 251)
    with opened(tiny_model("llama"), n_seq_max=1) as undisturbed:
        feed(undisturbed, 0, 0, 250)
        assert feed(undisturbed, 0, 250, 251) == after


def test_a_cut_far_behind_the_window_leaves_nothing_to_go_on_from() -> None:
    with opened(tiny_model("gemma3"), n_ctx=1024, n_seq_max=1) as backend:
        feed(backend, 0, 0, 600)
        first, last = backend.seq_bounds(0)
        assert 200 < first <= 600 - WINDOW and last == 599
        assert backend.seq_remove(0, 200, -1)
        with pytest.raises(DecodeError, match="ends at -1"):
            backend.decode([piece(0, 200, 201)], None)


def test_a_lost_window_is_noticed_before_decoding() -> None:
    """llama.cpp cuts a sequence below its window without a word, and the next tokens are wrong: to the position."""
    with opened(tiny_model("gemma3"), n_ctx=1024, n_seq_max=1, n_threads=1, flash_attn=False) as backend:
        feed(backend, 0, 0, 600)
        whole = backend.seq_bounds(0)[0] + WINDOW - 1  # the first position whose window is all there
        assert backend.seq_remove(0, whole, -1)
        cut = np.frombuffer(feed(backend, 0, whole, whole + 1), np.float32)
        for lost in (whole - 1, whole - WINDOW // 2):
            assert backend.seq_remove(0, lost, -1)
            assert backend.seq_bounds(0)[1] == lost - 1
            with pytest.raises(DecodeError, match="lost the window"):
                backend.decode([piece(0, lost, lost + 1)], None)
        backend.seq_remove(0, 0, -1)
        feed(backend, 0, 0, whole)
        assert np.allclose(np.frombuffer(feed(backend, 0, whole, whole + 1), np.float32), cut, atol=1e-3)


@pytest.mark.parametrize(
    ("architecture", "position", "first"),
    [
        ("gemma3", 5, 0),
        ("gemma3", 8191, 0),
        ("gemma3", 8700, 509),
        ("llama4", 8191, 0),
        ("llama4", 8192, 8192),
        ("llama4", 8700, 8192),
    ],
)
def test_windows_slide_but_those_of_llama4(architecture: str, position: int, first: int) -> None:
    """A state of a llama4 with 8,700 tokens has window rows from 8,192 on, and goes on exactly."""
    assert window_start(position, 8192, architecture) == first


def test_a_cut_inside_the_window_goes_on_as_if_nothing_had_been() -> None:
    with opened(tiny_model("gemma3"), n_ctx=512) as backend:
        feed(backend, 0, 0, 60)
        expected = feed(backend, 0, 60, 61)
        feed(backend, 0, 61, 80)
        assert backend.seq_remove(0, 60, -1)
        assert feed(backend, 0, 60, 61) == expected


@pytest.mark.parametrize("arch", ["mamba", "jamba", "lfm2"])
def test_a_recurrent_state_cannot_be_cut_but_dropped(arch: Arch) -> None:
    with opened(tiny_model(arch)) as backend:
        expected = feed(backend, 0, 0, 20)
        assert not backend.seq_remove(0, 10, -1)
        assert backend.seq_remove(0, 0, -1)
        assert backend.seq_bounds(0) == (-1, -1)
        assert feed(backend, 0, 0, 20) == expected


def test_a_decode_over_its_budget_is_aborted_and_the_context_rebuilt() -> None:
    opts = ContextOpts(n_ctx=1024, n_batch=1024)
    backend = LlamaBackend(LoadOptions(id="m", model_path=str(smollm2()), context_opts=opts))
    long = Slice(0, 0, tuple(range(1000, 2000)), want_logits=True)
    short = Slice(0, 0, (100, 200, 300), want_logits=True)
    assert backend.decode([short], None) is DecodeStatus.OK
    expected = backend.logits(0).tobytes()
    backend.seq_remove(0, 0, -1)
    assert backend.decode([long], 0.02) is DecodeStatus.ABORTED
    backend.rebuild()
    assert backend.seq_bounds(0) == (-1, -1)
    assert backend.decode([short], 3600.0) is DecodeStatus.OK
    assert backend.logits(0).tobytes() == expected
    backend.close()


def test_an_abort_does_not_end_the_next_embedding() -> None:
    opts = ContextOpts(n_ctx=1024, n_batch=1024)
    backend = LlamaBackend(LoadOptions(id="m", model_path=str(smollm2()), context_opts=opts))
    assert backend.decode([Slice(0, 0, tuple(range(1000, 2000)), True)], 0.02) is DecodeStatus.ABORTED
    backend.rebuild()
    assert len(backend.embed([[1, 2, 3]])) == 1
    backend.close()


class Unchecked(LlamaBackend):
    """Gives llama.cpp whatever it is given."""

    def _check(self, slices: list[Slice]) -> None:
        pass


def test_what_llama_cpp_refuses_itself_is_a_failure() -> None:
    options = LoadOptions(id="m", model_path=str(tiny_model("llama")), context_opts=ContextOpts(n_ctx=256))
    backend = Unchecked(options)
    for wrong in (Slice(0, 0, (N_VOCAB,), True), Slice(0, 0, (-1,), True)):
        assert backend.decode([wrong], None) is DecodeStatus.FAILED
    backend.close()


def test_a_tokenizer_does_not_decode() -> None:
    options = LoadOptions(id="m", model_path=str(smollm2()), model_opts=ModelOpts(vocab_only=True))
    backend = LlamaBackend(options)
    with pytest.raises(NoWeightsError):
        backend.decode([piece(0, 0, 1)], None)
    assert backend.info.vocab_only
    words = backend.tokenize("héllo <|im_end|>".encode(), add_special=False, parse_special=True)
    assert b"".join(backend.piece(token, special=True) for token in words).decode() == "héllo <|im_end|>"
    assert backend.is_eog(words[-1]) and backend.is_control(words[-1])
    backend.close()
