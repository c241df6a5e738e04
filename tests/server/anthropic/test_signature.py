"""A thought comes back as it was given out, shown or not."""

from __future__ import annotations

import zlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.errors import InvalidRequestError
from barrel_inference.server.anthropic.signature import MAX_THOUGHT_BYTES, sign, thought

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT)
def test_shown_thoughts_come_back(text: str) -> None:
    assert thought(text, sign(text)) == text


@given(TEXT)
def test_hidden_thoughts_come_back_in_their_signature(text: str) -> None:
    assert thought("", sign(text, shown=False)) == text


@given(TEXT, TEXT)
def test_a_changed_thought_is_refused(text: str, other: str) -> None:
    if text != other:
        with pytest.raises(InvalidRequestError, match="cannot be modified"):
            thought(other, sign(text))


@given(TEXT, TEXT.filter(lambda text: not text.startswith("barrel-")))
def test_thoughts_of_other_models_are_taken_as_they_are(text: str, signature: str) -> None:
    assert thought(text, signature) == text


@pytest.mark.parametrize("packed", ["", "!", "AAAA", b64encode(b"no deflate").decode()])
def test_a_damaged_signature_is_refused(packed: str) -> None:
    with pytest.raises(InvalidRequestError):
        thought("", "barrel-h-" + packed)


def test_a_signature_does_not_unpack_to_more_than_a_thought() -> None:
    bomb = b64encode(zlib.compress(b"a" * (MAX_THOUGHT_BYTES + 1))).decode()
    with pytest.raises(InvalidRequestError):
        thought("", "barrel-h-" + bomb)
