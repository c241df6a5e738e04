"""Ids of answers, messages and calls. Pure but for the randomness."""

from __future__ import annotations

import secrets


def new(prefix: str) -> str:
    return prefix + secrets.token_hex(12)
