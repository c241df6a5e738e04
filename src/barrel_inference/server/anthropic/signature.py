"""Signatures of thinking blocks. Pure.

A signature tells whether a thought comes back as it was given out; it proves no origin, as the text is the client's.
Of a thought that was not shown the signature is all there is, so it holds the text. Signatures that others made are let
through: a conversation may have been begun with another model.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode

from barrel_inference.errors import InvalidRequestError
from barrel_inference.server.thoughts import pack, unpack

_SHOWN = "barrel-s-"
_HIDDEN = "barrel-h-"


def sign(thought: str, *, shown: bool = True) -> str:
    if not shown:
        return _HIDDEN + pack(thought)
    return _SHOWN + b64encode(hashlib.blake2b(thought.encode(), digest_size=24).digest()).decode()


def thought(shown: str, signature: str) -> str:
    """The thought of a block that came back. Raises InvalidRequestError when it is not what was given out."""
    if signature.startswith(_HIDDEN) and not shown:
        hidden = unpack(signature.removeprefix(_HIDDEN))
        if hidden is None:
            raise _modified()
        return hidden
    if signature.startswith((_SHOWN, _HIDDEN)) and sign(shown) != signature:
        raise _modified()
    return shown


def _modified() -> InvalidRequestError:
    return InvalidRequestError(
        "Invalid `signature` in `thinking` block: thinking blocks cannot be modified, send them as they came",
        option="messages",
    )
