"""Constrained output through llguidance: JSON schema, regex, Lark, GBNF, choices.

``Structured`` compiles on a thread of its own: some constraints take seconds, and llguidance follows rules and
references by recursion. A ``Mask`` belongs to one request and the engine thread.
"""

from __future__ import annotations

import codecs
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar, cast

import llguidance
import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from barrel_inference import threads
from barrel_inference.chat.schema import usable
from barrel_inference.chat.tools.grammar import control_tokens
from barrel_inference.engine.backend import Backend
from barrel_inference.errors import OutOfMemoryError, SchemaError
from barrel_inference.types import Constraint

T = TypeVar("T")

COMPILED_KEPT = 64
STACK_BYTES = 256 << 20  # reserved, not used: a chain of rules takes up to 8 KB a link
MAX_RULES = 30_000  # lines of a grammar; STACK_BYTES is enough for more
MAX_GBNF_RULES = 2_000  # llguidance's converter takes the square of their number
_KINDS = ("json_schema", "regex", "grammar", "choices")
# Unbounded white space lets a weak model fill its whole budget with it.
_JSON_WHITESPACE = r"[\x20\x0A]{0,16}"


class Structured:
    """Compiles constraints for one model. The tokenizer (up to 2 s for a large vocabulary) is built at first use. Any
    thread; what was compiled last, or found unusable, is remembered."""

    def __init__(self, backend: Backend) -> None:
        self.stack_bytes = STACK_BYTES
        self._backend = backend
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._compiled: OrderedDict[Constraint, Future[Any]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "constraints")

    def compiling(self, constraint: Constraint) -> Future[Any] | None:
        """What to wait for before ``mask`` answers at once; None when it does already."""
        future = self._begin(constraint)
        return None if future.done() else future

    def mask(self, constraint: Constraint) -> Mask:
        """Raises SchemaError saying what is unusable."""
        matcher = self._begin(constraint).result()
        return Mask(matcher.deep_copy(), self._backend, constraint.start_after, constraint.outside)

    def _begin(self, constraint: Constraint) -> Future[Any]:
        with self._lock:
            future = self._compiled.pop(constraint, None)
            if future is None or _is_worth_another_try(future):
                future = self._thread.submit(_on_a_stack, self.stack_bytes, lambda: self._compile(constraint))
            self._compiled[constraint] = future
            while len(self._compiled) > COMPILED_KEPT:
                self._compiled.popitem(last=False)
            return future

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


def _is_worth_another_try(future: Future[Any]) -> bool:
    """Not what compiled, nor what is unusable: what had no memory."""
    return future.done() and not isinstance(future.exception(), SchemaError | None)


def _on_a_stack(n_bytes: int, function: Callable[[], T]) -> T:
    """Run on a thread that ends with it, so that the stack's memory is given back. Raises OutOfMemoryError."""
    usual = threading.stack_size(n_bytes)
    try:
        result = threads.start("constraint", function)
    except RuntimeError as error:
        raise OutOfMemoryError(f"a constraint cannot be compiled: {error}") from None
    finally:
        threading.stack_size(usual)
    return result.result()


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
                _check_rules(text, MAX_GBNF_RULES)
                return str(llguidance.grammar_from("gbnf", text))
            _check_rules(text, MAX_RULES)
            return str(llguidance.grammar_from("lark", control_tokens(text, controls)))
    raise SchemaError(f"exactly one of json_schema, regex, grammar and choices, not {given or 'none'}")


def _json_grammar(schema: str) -> str:
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the JSON schema is not JSON: {error}") from error
    if not isinstance(parsed, dict | bool):
        raise SchemaError("a JSON schema is an object or a boolean")
    return str(LLMatcher.grammar_from_json_schema(usable(parsed), overrides={"whitespace_pattern": _JSON_WHITESPACE}))


def _check_rules(grammar: str, most: int) -> None:
    if (found := grammar.count("\n")) > most:
        raise SchemaError(f"the grammar has {found} lines, at most {most} are allowed")


def _check(matcher: Any) -> None:
    if matcher.is_error():
        raise SchemaError(f"the constraint cannot be used: {_reason(matcher.get_error())}")


def _reason(text: str) -> str:
    """What matters of llguidance's many lines: the first, and what the regex parser found."""
    lines = [line.strip() for line in text.strip().splitlines()] or ["unknown reason"]
    if lines[0].startswith("NoExtensionBias"):
        return "nothing can be written that it allows"
    return " ".join([lines[0], *(line for line in lines[1:] if line.startswith("error:"))])
