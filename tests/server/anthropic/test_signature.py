"""A thought comes back as it was given out, shown or not."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.errors import InvalidRequestError
from barrel_inference.server.anthropic.signature import sign, thought

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


@pytest.mark.parametrize("packed", ["", "!", "AAAA", "é", b64encode(b"no digest of this").decode()])
def test_a_damaged_signature_is_refused(packed: str) -> None:
    with pytest.raises(InvalidRequestError):
        thought("", "barrel-h-" + packed)


@given(TEXT)
def test_a_signature_is_longer_than_the_thought_in_it(text: str) -> None:
    """Or a small request could take much memory."""
    assert len(sign(text, shown=False)) > len(text.encode())
