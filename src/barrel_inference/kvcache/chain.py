"""Keys of token ranges: a chain of BLAKE2b-256 digests over token ids. Pure.

    k0 = H(namespace ‖ salt)      k(i+1) = H(k(i) ‖ tokens of block i as u32 little endian)

Keys are over ids, not text: prompts that differ only in a control token never share a key. A ``Chain`` is owned by
whoever made it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from barrel_inference.config import BLOCK_TOKENS

KEY_BYTES = 32
NAME_HEX = 32  # file names carry 128 bits of a key; headers carry all of it


def digest(*parts: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=KEY_BYTES).digest()


def root(namespace: bytes, salt: str = "") -> bytes:
    return digest(namespace, salt.encode())


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """u32 little endian."""
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(data: bytes) -> tuple[int, ...]:
    tokens = array("I", data)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tuple(tokens)


def block_keys(parent: bytes, packed: bytes) -> list[bytes]:
    """The keys after each whole block of ``packed``, which begins at the chain position ``parent``."""
    keys: list[bytes] = []
    step = BLOCK_TOKENS * 4
    for start in range(0, len(packed) - step + 1, step):
        parent = blake2b(
            parent + packed[start : start + step], digest_size=KEY_BYTES
        ).digest()  # ``digest``, but faster
        keys.append(parent)
    return keys


def rest_key(kind: str, parent: bytes, packed: bytes) -> bytes:
    """Key of an object that ends inside a block (or exactly at its start, for states): ``packed`` are the tokens after
    the last whole block."""
    return digest(kind.encode(), b":", parent, packed)


class Chain:
    """Keys of one growing token list; each block is hashed once. ``keys[i]`` is the key after i blocks."""

    def __init__(self, namespace: bytes, salt: str = "") -> None:
        self.keys: list[bytes] = [root(namespace, salt)]

    def extend(self, tokens: Sequence[int]) -> list[bytes]:
        """Cover all whole blocks of ``tokens``, which must begin with what was seen before; the keys."""
        done = len(self.keys) - 1
        whole = len(tokens) // BLOCK_TOKENS
        if whole > done:
            packed = pack_tokens(tokens[done * BLOCK_TOKENS : whole * BLOCK_TOKENS])
            self.keys += block_keys(self.keys[-1], packed)
        return self.keys

    def cut(self, n_tokens: int) -> None:
        """Forget the blocks beyond ``n_tokens``."""
        del self.keys[n_tokens // BLOCK_TOKENS + 1 :]
