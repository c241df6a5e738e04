"""A model's thought as a token that its client keeps without reading it, and gives back. Pure.

Not compressed: what a client sends must not grow when it is unpacked.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode

_DIGEST_BYTES = 8


def pack(thought: str) -> str:
    return b64encode(_digest(thought.encode()) + thought.encode()).decode()


def unpack(packed: str) -> str | None:
    """None for what was not packed here, and for what has been changed since."""
    try:
        raw = b64decode(packed, validate=True)
        digest, thought = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        return thought.decode() if digest == _digest(thought) else None
    except ValueError:
        return None


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()
