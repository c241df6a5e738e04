"""The stub keeps llama.cpp's rules: text comes back, states move, wrong KV is no KV, faults come when asked for."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.config import ContextOpts, LoadOptions, ModelOpts
from barrel_inference.engine.backend import DecodeStatus, Slice
from barrel_inference.engine.stub import StubBackend
from barrel_inference.errors import ConfigError, DecodeError, LoadError, NoWeightsError
from barrel_inference.kvcache.layout import detect
from barrel_inference.types import Sampling

TEXT = b"It was the best of times, it was the worst of times. " * 3


def stub(*, n_seq_max: int = 2, vocab_only: bool = False, **faults: Any) -> StubBackend:
    context = ContextOpts(n_ctx=512, n_batch=128, n_seq_max=n_seq_max)
    options = LoadOptions(
        id="m", backend="stub", context_opts=context, model_opts=ModelOpts(vocab_only=vocab_only), stub=faults
    )
    return StubBackend(options)


def tokens_of(backend: StubBackend, text: bytes = TEXT) -> tuple[int, ...]:
    return tuple(backend.tokenize(text, add_special=False, parse_special=False))


def feed(backend: StubBackend, seq: int, start: int, tokens: tuple[int, ...]) -> bytes:
    assert backend.decode([Slice(seq, start, tokens, want_logits=True)], None) is DecodeStatus.OK
    return backend.logits(0).tobytes()


def answer(backend: StubBackend, prompt: bytes, count: int = 60) -> list[int]:
    sampler = backend.sampler(Sampling(temperature=0), 1)
    tokens = list(tokens_of(backend, prompt))
    feed(backend, 0, 0, tuple(tokens[:-1]))
    for index in range(count):
        feed(backend, 0, len(tokens) - 1, (tokens[-1],))
        tokens.append(sampler.sample(backend.logits(0), index))
    backend.seq_remove(0, 0, -1)
    return tokens[-count:]


@given(st.binary(max_size=60))
def test_any_bytes_survive_the_round_trip(data: bytes) -> None:
    backend = stub()
    tokens = backend.tokenize(data, add_special=False, parse_special=False)
    assert b"".join(backend.piece(token, special=False) for token in tokens) == data


def test_control_tokens_are_parsed_when_asked() -> None:
    backend = stub()
    text = b"a<|im_end|>"
    parsed = backend.tokenize(text, add_special=True, parse_special=True)
    assert len(parsed) == 3 and backend.is_control(parsed[0]) and backend.is_eog(parsed[2])
    assert backend.piece(parsed[2], special=False) == b""
    assert len(backend.tokenize(text, add_special=False, parse_special=False)) == len(text)


def test_an_answer_is_words_and_characters_that_tokens_split() -> None:
    backend = stub()
    tokens = answer(backend, TEXT, 200)
    pieces = [backend.piece(token, special=True) for token in tokens]
    assert "\ufffd" not in b"".join(pieces)[:-3].decode(errors="ignore")
    assert any(len(piece) == 1 and piece[0] > 127 for piece in pieces)
    assert tokens == answer(stub(), TEXT, 200)
    assert tokens != answer(stub(model="other"), TEXT, 200)
    assert tokens != answer(backend, b"X" + TEXT[1:], 200)


def test_a_state_is_llama_s_plain_layout_and_continues() -> None:
    backend = stub()
    tokens = tokens_of(backend)
    feed(backend, 0, 0, tokens[:40])
    blob = bytearray(backend.state_size(0))
    assert backend.state_read(0, memoryview(blob)) == len(blob)
    layout = detect(memoryview(blob), n_swa=0)
    assert layout.kind == "plain" and layout.bytes_per_token == 64
    expected = feed(backend, 0, 40, tokens[40:41])
    assert backend.state_write(1, memoryview(bytes(blob)))
    assert feed(backend, 1, 40, tokens[40:41]) == expected


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_one_wrong_byte_is_a_refusal(at: int, flip: int) -> None:
    backend = stub()
    feed(backend, 0, 0, tokens_of(backend)[:40])
    blob = bytearray(backend.state_size(0))
    backend.state_read(0, memoryview(blob))
    assert backend.state_write(1, memoryview(blob))
    blob[at % len(blob)] ^= flip
    assert not backend.state_write(1, memoryview(blob))
    assert backend.seq_bounds(1) == (-1, -1)


def test_ranges_are_shared_cut_and_bounded() -> None:
    backend = stub()
    tokens = tokens_of(backend)
    feed(backend, 0, 0, tokens[:40])
    expected = feed(backend, 0, 40, tokens[40:41])
    backend.seq_copy(0, 1, 0, 20)
    assert backend.seq_bounds(1) == (0, 19)
    feed(backend, 1, 20, tokens[20:40])
    assert feed(backend, 1, 40, tokens[40:41]) == expected
    assert backend.seq_remove(0, 40, -1)
    assert feed(backend, 0, 40, tokens[40:41]) == expected
    assert backend.seq_remove(0, 0, -1)
    assert backend.seq_bounds(0) == (-1, -1)


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [Slice(0, 10, (), True)],
        [Slice(0, 10, (1,) * 129, True)],
        [Slice(0, 10, (-1,), True)],
        [Slice(0, 10, (10**6,), True)],
        [Slice(0, 11, (1,), True)],
        [Slice(1, 10, (1,), True)],
        [Slice(9, 0, (1,), True)],
        [Slice(0, 10, (1,), True), Slice(0, 11, (1,), True)],
    ],
)
def test_it_refuses_what_llama_does(batch: list[Slice]) -> None:
    backend = stub()
    feed(backend, 0, 0, (1,) * 10)
    with pytest.raises(DecodeError):
        backend.decode(batch, None)
    assert backend.seq_bounds(0) == (0, 9)


def test_faults_come_when_asked_for() -> None:
    backend = stub(fail_at_step={"1": "no_room", "3": "aborted"}, poison=77)
    statuses = [backend.decode([Slice(0, start, (5,), False)], None) for start in (0, 0, 1, 1)]
    assert statuses == [DecodeStatus.NO_ROOM, DecodeStatus.OK, DecodeStatus.ABORTED, DecodeStatus.OK]
    assert backend.decode([Slice(1, 0, (77,), False)], None) is DecodeStatus.FAILED
    assert stub(delay_ms=50).decode([Slice(0, 0, (5,), False)], 0.001) is DecodeStatus.ABORTED


def test_ends_come_about_as_often_as_asked_for() -> None:
    backend = stub(eog_every=10)
    ends = sum(backend.is_eog(token) for token in answer(backend, TEXT, 300))
    assert 10 < ends < 60
    assert not any(backend.is_eog(token) for token in answer(stub(), TEXT, 300))


def test_a_crash_is_one() -> None:
    script = (
        "from barrel_inference.config import LoadOptions\n"
        "from barrel_inference.engine.backend import Slice\n"
        "from barrel_inference.engine.stub import StubBackend\n"
        "b = StubBackend(LoadOptions(id='m', backend='stub', stub={'crash_at_token': 3}))\n"
        "for start in range(5): b.decode([Slice(0, start, (1,), False)], None); print(start, flush=True)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.returncode < 0
    assert run.stdout.split() == ["0", "1"]


def test_loading_can_fail_and_takes_its_time() -> None:
    with pytest.raises(LoadError, match="no luck"):
        stub(fail_load="no luck")
    for wrong in ({"nonsense": 1}, {"delay_ms": "x"}, {"fail_at_step": {"1": "explode"}}):
        with pytest.raises(ConfigError, match="stub"):
            stub(**wrong)
    seen: list[float] = []
    StubBackend(LoadOptions(id="m", backend="stub"), seen.append)
    assert seen == [0.25, 0.5, 0.75, 1.0]


def test_a_tokenizer_only_tokenizes() -> None:
    backend = stub(vocab_only=True)
    assert backend.tokenize(b"a", add_special=False, parse_special=False) == [ord("a")]
    with pytest.raises(NoWeightsError):
        backend.decode([Slice(0, 0, (1,), True)], None)
