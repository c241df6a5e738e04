"""Ids of requests, answers, messages and items. Pure but for the randomness."""

from __future__ import annotations

import secrets


def new(prefix: str) -> str:
    return prefix + secrets.token_hex(12)
