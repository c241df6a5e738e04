"""API keys: what is compared, and how."""

from __future__ import annotations

import hmac
import inspect
from hashlib import sha256

import pytest

from barrel_inference.server.http.auth import Keys

KEYS = ("first-good-key", "second-good-key", "third-good-key")


def digest(key: str) -> bytes:
    return sha256(key.encode(errors="replace")).digest()


@pytest.mark.parametrize("given", [*KEYS, "", "first-good-ke", "first-good-keyy", "FIRST-GOOD-KEY", "\udcff", "é"])
def test_every_key_is_compared_whichever_is_given(given: str) -> None:
    """No comparison is left out after a match, and none is made but by ``same``: its answer is the only one."""
    compared: list[tuple[bytes, bytes]] = []

    def same(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    assert Keys(KEYS, same=same).accepts(given) == (given in KEYS)
    assert compared == [(digest(given), digest(key)) for key in KEYS]
    assert not Keys(KEYS, same=lambda left, right: False).accepts(given)


def test_they_are_compared_in_constant_time_unless_a_test_says_otherwise() -> None:
    assert inspect.signature(Keys).parameters["same"].default is hmac.compare_digest
