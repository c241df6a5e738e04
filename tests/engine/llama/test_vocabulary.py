"""Tokens and text of a real vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barrel_inference.config import LoadOptions, ModelOpts
from barrel_inference.engine.llama import LlamaBackend
from barrel_inference.errors import InvalidRequestError
from tests.support.models import smollm2

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def smol() -> Iterator[LlamaBackend]:
    backend = LlamaBackend(LoadOptions(id="m", model_path=str(smollm2()), model_opts=ModelOpts(vocab_only=True)))
    yield backend
    backend.close()


def text_of(smol: LlamaBackend, tokens: list[int], *, special: bool = False) -> bytes:
    return b"".join(smol.piece(token, special=special) for token in tokens)


@pytest.fixture(scope="module")
def known_bytes(smol: LlamaBackend) -> frozenset[bytes]:
    """This vocabulary lacks some: llama.cpp drops them."""
    pieces = (smol.piece(token, special=False) for token in range(smol.info.n_vocab))
    return frozenset(piece for piece in pieces if len(piece) == 1)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=50))
def test_any_text_survives_the_round_trip(smol: LlamaBackend, known_bytes: frozenset[bytes], text: str) -> None:
    data = b"".join(c.encode() for c in text if all(bytes([byte]) in known_bytes for byte in c.encode()))
    tokens = smol.tokenize(data, add_special=False, parse_special=False)
    assert text_of(smol, tokens, special=True) == data


def test_nul_bytes_are_text(smol: LlamaBackend) -> None:
    tokens = smol.tokenize(b"a\0b", add_special=False, parse_special=False)
    assert text_of(smol, tokens) == b"a\0b"


def test_control_tokens_are_parsed_when_asked(smol: LlamaBackend) -> None:
    parsed = smol.tokenize(b"<|im_start|>user", add_special=False, parse_special=True)
    assert smol.is_control(parsed[0]) and not smol.is_eog(parsed[0])
    assert text_of(smol, parsed) == b"user"
    assert text_of(smol, parsed, special=True) == b"<|im_start|>user"
    plain = smol.tokenize(b"<|im_start|>user", add_special=False, parse_special=False)
    assert len(plain) > len(parsed) and not any(map(smol.is_control, plain))


def test_nothing_is_no_token(smol: LlamaBackend) -> None:
    assert smol.tokenize(b"", add_special=False, parse_special=True) == []


def test_a_long_text_is_tokenised(smol: LlamaBackend) -> None:
    assert len(smol.tokenize(b"word " * 20_000, add_special=False, parse_special=False)) >= 20_000


@pytest.mark.parametrize("token", [-1, 49152, 2**31])
def test_a_token_outside_the_vocabulary_is_refused(smol: LlamaBackend, token: int) -> None:
    """llama.cpp would abort."""
    with pytest.raises(InvalidRequestError, match="outside"):
        smol.piece(token, special=False)
    with pytest.raises(InvalidRequestError, match="outside"):
        smol.is_control(token)
    assert not smol.is_eog(token)
