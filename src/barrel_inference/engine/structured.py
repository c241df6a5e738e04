"""Constrained output through llguidance: JSON schema, regex, Lark, GBNF, choices.

``Structured`` compiles on any thread (a lock guards tokenizer and memo), so not on the engine's; a ``Mask`` belongs to
one request and the engine thread.
"""

from __future__ import annotations

import codecs
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

import llguidance
import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from barrel_inference.chat.tools.grammar import control_tokens
from barrel_inference.engine.backend import Backend
from barrel_inference.errors import SchemaError
from barrel_inference.types import Constraint

COMPILED_KEPT = 64
_KINDS = ("json_schema", "regex", "grammar", "choices")
# Unbounded white space lets a weak model fill its whole budget with it.
_JSON_WHITESPACE = r"[\x20\x0A]{0,16}"


class Structured:
    """Compiles constraints for one model. The tokenizer (up to 2 s for a large vocabulary) is built at first use."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._compiled: OrderedDict[Constraint, Any] = OrderedDict()

    def mask(self, constraint: Constraint) -> Mask:
        """Raises SchemaError saying what is unusable."""
        with self._lock:
            matcher = self._compiled.pop(constraint, None)
            if matcher is None:
                matcher = self._compile(constraint)
            self._compiled[constraint] = matcher
            while len(self._compiled) > COMPILED_KEPT:
                self._compiled.popitem(last=False)
        return Mask(matcher.deep_copy(), self._backend, constraint.start_after, constraint.outside)

    @cached_property
    def _controls(self) -> dict[str, int]:
        """Control tokens by their text."""
        pieces = {
            token: self._backend.piece(token, special=True).decode(errors="replace")
            for token in range(self._backend.info.n_vocab)
            if self._backend.is_control(token)
        }
        return {text: token for token, text in pieces.items() if len(text) > 1}

    def _compile(self, constraint: Constraint) -> Any:
        try:
            grammar = _grammar(constraint, self._controls)
        except ValueError as error:  # also of text that is no UTF-8
            raise SchemaError(f"the constraint cannot be used: {_reason(str(error))}") from error
        if self._tokenizer is None:
            vocabulary = _Vocabulary(self._backend)
            self._tokenizer = LLTokenizer(cast(Any, vocabulary), eos_token=vocabulary.end_tokens)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first may take seconds: not on the engine thread; copies remember it
        _check(matcher)
        return matcher


class Mask:
    """The constraint of one answer. With ``start_after`` everything is allowed until that text has been produced
    outside of the marks ``outside``.

    ``mask`` and ``accept`` raise SchemaError when the grammar turns out to be too complex half way.
    """

    def __init__(
        self, matcher: Any, backend: Backend, start_after: str | None, outside: tuple[str, str] | None = None
    ) -> None:
        self._matcher = matcher
        self._backend = backend
        self._bits = np.zeros((backend.info.n_vocab + 31) // 32, np.int32)
        self._start_after = start_after
        self._outside = outside
        self._inside = outside is not None and not outside[0]
        self._tail = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def is_complete(self) -> bool:
        return self._start_after is None and bool(self._matcher.is_stopped())

    def mask(self, logits: NDArray[np.float32]) -> None:
        if self._start_after is not None:
            return
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        _check(self._matcher)
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=len(logits))
        np.copyto(logits, -np.inf, where=allowed == 0)

    def accept(self, token: int) -> None:
        if self._start_after is None:
            self._matcher.consume_token(token)
            _check(self._matcher)
            return
        self._tail += self._decoder.decode(self._backend.piece(token, special=True))
        while (mark := self._next_mark()) is not None:
            self._tail = self._tail.partition(mark)[2]
            if mark == self._start_after and not self._inside:
                self._start_after = None
                self._begin_with(self._tail)
                return
            self._inside = not self._inside
        self._tail = self._tail[-max(map(len, self._marks)) :]

    @property
    def _marks(self) -> tuple[str, ...]:
        """What is waited for."""
        opening, closing = self._outside or ("", "")
        return (closing,) if self._inside else tuple(filter(None, (self._start_after, opening)))

    def _next_mark(self) -> str | None:
        found = [(self._tail.find(mark), mark) for mark in self._marks if mark in self._tail]
        return min(found)[1] if found else None

    def _begin_with(self, text: str) -> None:
        """What its token holds behind the text that arms the constraint belongs to the constrained part, as far as
        the grammar allows it (white space may be no part of it)."""
        tokens = self._backend.tokenize(text.encode(), add_special=False, parse_special=False) if text else []
        if tokens and self._matcher.validate_tokens(tokens) == len(tokens):
            self._matcher.consume_tokens(tokens)


class _Vocabulary:
    """What LLTokenizer reads of a vocabulary. Control tokens are marked with 0xff, as llguidance wants them."""

    is_tokenizer_wrapper = True

    def __init__(self, backend: Backend) -> None:
        vocabulary = range(backend.info.n_vocab)
        special = [token for token in vocabulary if backend.is_control(token) or backend.is_eog(token)]
        self.tokens = [backend.piece(token, special=True) for token in vocabulary]
        for token in special:
            self.tokens[token] = b"\xff" + self.tokens[token]
        self.special_token_ids = special
        self.end_tokens = [token for token in special if backend.is_eog(token)] or [0]
        self.eos_token_id = self.end_tokens[0]
        self.bos_token_id = None
        self._tokenize = backend.tokenize

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return self._tokenize(data, add_special=False, parse_special=False)


def _grammar(constraint: Constraint, controls: Mapping[str, int]) -> str:
    given = [name for name in _KINDS if getattr(constraint, name) is not None]
    match given:
        case ["json_schema"]:
            return _json_grammar(constraint.json_schema or "")
        case ["regex"]:
            return str(LLMatcher.grammar_from_regex(constraint.regex or ""))
        case ["choices"]:
            if not constraint.choices or not all(constraint.choices):
                raise SchemaError("choices must be non-empty strings, at least one")
            # One lexeme: as alternatives of a rule they would exceed the parser's row at 2,000.
            return "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, constraint.choices))
        case ["grammar"]:
            text = constraint.grammar or ""
            if "::=" in text:
                return str(llguidance.grammar_from("gbnf", text))
            return str(llguidance.grammar_from("lark", control_tokens(text, controls)))
    raise SchemaError(f"exactly one of json_schema, regex, grammar and choices, not {given or 'none'}")


def _json_grammar(schema: str) -> str:
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the JSON schema is not JSON: {error}") from error
    if parsed is True:
        parsed = {}
    if parsed is False:
        raise SchemaError("the schema false allows nothing")
    if not isinstance(parsed, dict):
        raise SchemaError("a JSON schema is an object or a boolean")
    return str(LLMatcher.grammar_from_json_schema(parsed, overrides={"whitespace_pattern": _JSON_WHITESPACE}))


def _check(matcher: Any) -> None:
    if matcher.is_error():
        raise SchemaError(f"the constraint cannot be used: {_reason(matcher.get_error())}")


def _reason(text: str) -> str:
    """What matters of llguidance's many lines: the first, and what the regex parser found."""
    lines = [line.strip() for line in text.strip().splitlines()] or ["unknown reason"]
    if lines[0].startswith("NoExtensionBias"):
        return "nothing can be written that it allows"
    return " ".join([lines[0], *(line for line in lines[1:] if line.startswith("error:"))])
