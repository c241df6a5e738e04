"""Constrained output through llguidance: JSON schema, regex, Lark, GBNF, choices.

``Structured`` is shared by the reader threads, which compile (a lock guards tokenizer and memo); a ``Mask`` belongs to
one request and the engine thread.
"""

from __future__ import annotations

import codecs
import json
import threading
from collections import OrderedDict
from typing import Any, cast

import llguidance
import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from barrel_inference.engine.backend import Backend
from barrel_inference.errors import SchemaError
from barrel_inference.types import Constraint

COMPILED_KEPT = 64
# Unbounded white space lets a weak model fill its whole budget with it.
_KINDS = ("json_schema", "regex", "grammar", "choices")
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
        return Mask(matcher.deep_copy(), self._backend, constraint.start_after)

    def _compile(self, constraint: Constraint) -> Any:
        grammar = _grammar(constraint)
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(cast(Any, _Vocabulary(self._backend)))
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise SchemaError(f"the constraint cannot be used: {_first_line(matcher.get_error())}")
        return matcher


class Mask:
    """The constraint of one answer. With ``start_after`` everything is allowed until that text has been produced."""

    def __init__(self, matcher: Any, backend: Backend, start_after: str | None) -> None:
        self._matcher = matcher
        self._backend = backend
        self._bits = np.zeros((backend.info.n_vocab + 31) // 32, np.int32)
        self._start_after = start_after
        self._tail = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def is_complete(self) -> bool:
        return self._start_after is None and bool(self._matcher.is_stopped())

    def mask(self, logits: NDArray[np.float32]) -> None:
        if self._start_after is not None:
            return
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=len(logits))
        np.copyto(logits, -np.inf, where=allowed == 0)

    def accept(self, token: int) -> None:
        if self._start_after is None:
            self._matcher.consume_token(token)
            return
        self._tail += self._decoder.decode(self._backend.piece(token, special=True))
        if self._start_after in self._tail:
            self._start_after = None
        else:
            self._tail = self._tail[-len(self._start_after) :]


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
        self.eos_token_id = next((token for token in special if backend.is_eog(token)), 0)
        self.bos_token_id = None
        self._tokenize = backend.tokenize

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return self._tokenize(data, add_special=False, parse_special=False)


def _grammar(constraint: Constraint) -> str:
    given = [name for name in _KINDS if getattr(constraint, name) is not None]
    match given:
        case ["json_schema"]:
            return _json_grammar(constraint.json_schema or "")
        case ["regex"]:
            return str(LLMatcher.grammar_from_regex(constraint.regex or ""))
        case ["choices"]:
            if not constraint.choices or not all(constraint.choices):
                raise SchemaError("choices must be non-empty strings, at least one")
            return str(llguidance.grammar_from("choice", json.dumps(list(constraint.choices))))
        case ["grammar"]:
            return _text_grammar(constraint.grammar or "")
    raise SchemaError(f"exactly one of json_schema, regex, grammar and choices, not {given or 'none'}")


def _json_grammar(schema: str) -> str:
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the JSON schema is not JSON: {error}") from error
    if isinstance(parsed, bool):
        parsed = {} if parsed else {"not": {}}
    if not isinstance(parsed, dict):
        raise SchemaError("a JSON schema is an object or a boolean")
    return str(LLMatcher.grammar_from_json_schema(parsed, overrides={"whitespace_pattern": _JSON_WHITESPACE}))


def _text_grammar(text: str) -> str:
    try:
        return str(llguidance.grammar_from("gbnf" if "::=" in text else "lark", text))
    except ValueError as error:
        raise SchemaError(f"the grammar cannot be used: {_first_line(str(error))}") from error


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "unknown reason"
