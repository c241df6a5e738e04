"""Text to tokens and back. Pure functions of the vocabulary, safe on any thread; the memo of pieces only grows."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from barrel_inference.engine.llama.binding import lib
from barrel_inference.errors import InvalidRequestError

_CONTROL = 1 << 3  # LLAMA_TOKEN_ATTR_CONTROL
_UNKNOWN = 1 << 0


class Vocabulary:
    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        self.n_tokens = int(lib.llama_vocab_n_tokens(pointer))
        self._pieces: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        """``text`` is UTF-8. Raises InvalidRequestError when it is too long for the tokenizer."""
        capacity = len(text) + 4
        for _attempt in range(2):
            tokens = (ctypes.c_int32 * capacity)()
            count = lib.llama_tokenize(self.pointer, text, len(text), tokens, capacity, add_special, parse_special)
            if count >= 0:
                return tokens[:count]
            if count == -(2**31):
                break
            capacity = -count
        raise InvalidRequestError(f"the tokenizer cannot take a text of {len(text)} bytes")

    def piece(self, token: int, *, special: bool) -> bytes:
        memo = self._pieces[special]
        found = memo.get(token)
        if found is None:
            found = memo[token] = self._read_piece(token, special)
        return found

    def _read_piece(self, token: int, special: bool) -> bytes:
        self._check(token)
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = lib.llama_token_to_piece(self.pointer, token, buffer, size, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def is_eog(self, token: int) -> bool:
        return token in self.eog_tokens

    @functools.cached_property
    def eog_tokens(self) -> frozenset[int]:
        is_eog = lib.llama_vocab_is_eog
        return frozenset(token for token in range(self.n_tokens) if is_eog(self.pointer, token))

    def is_control(self, token: int) -> bool:
        self._check(token)
        return bool(lib.llama_vocab_get_attr(self.pointer, token) & (_CONTROL | _UNKNOWN))

    def _check(self, token: int) -> None:
        if not 0 <= token < self.n_tokens:
            raise InvalidRequestError(f"token {token} is outside the vocabulary of {self.n_tokens}")
