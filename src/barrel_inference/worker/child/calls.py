"""The questions a runtime asks that are not generations: one function for each ``op``. Intake thread; what needs the
context is handed to the engine thread and answered by a Future."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from barrel_inference.engine.backend import Backend
from barrel_inference.engine.checkpoints import Checkpoints
from barrel_inference.engine.engine import Engine
from barrel_inference.engine.requests.prepare import check_ids
from barrel_inference.errors import CacheError, InvalidRequestError, KVFullError, UnsupportedError
from barrel_inference.kvcache.admin import archive, content
from barrel_inference.kvcache.store import Store
from barrel_inference.types import CacheLookup, Embedding

T = TypeVar("T")

FLUSH_S = 10.0  # longest wait for saves before a pin or an export
LOOKUP_S = 0.5  # and before a lookup, as a request would wait for what is on its way


class Calls:
    def __init__(self, backend: Backend, engine: Engine, checkpoints: Checkpoints) -> None:
        self._backend = backend
        self._engine = engine
        self._checkpoints = checkpoints
        self._ops: dict[str, Callable[..., Any]] = {
            "tokenize": self.tokenize,
            "detokenize": self.detokenize,
            "embed": self.embed,
            "end_session": self.end_session,
            "cache_lookup": self.cache_lookup,
            "cache_pin": self.cache_pin,
            "cache_unpin": self.cache_unpin,
            "cache_export": self.cache_export,
        }
        self._slow = ThreadPoolExecutor(1, "slow calls")

    def answer(self, op: str, args: dict[str, Any]) -> Any:
        """Raises a BarrelError; an unknown op is one."""
        if op not in self._ops:
            raise UnsupportedError(f"the worker knows no call {op!r}")
        return self._ops[op](**args)

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return self._backend.tokenize(text.encode(), add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: list[int], special: bool) -> str:
        check_ids(tokens, self._backend.info.n_vocab)
        return b"".join(self._backend.piece(token, special=special) for token in tokens).decode(errors="replace")

    def embed(self, inputs: list[str | list[int]]) -> Future[Embedding]:
        prompts = [self._tokens(each) for each in inputs]

        def work() -> Embedding:
            vectors = tuple(tuple(map(float, vector)) for vector in self._vectors(prompts))
            return Embedding(vectors=vectors, prompt_tokens=sum(map(len, prompts)))

        return self._engine.call(work)

    def _vectors(self, prompts: list[list[int]]) -> list[NDArray[np.float32]]:
        try:
            return self._backend.embed(prompts)
        except KVFullError:
            if not self._engine.make_room():
                raise
            return self._backend.embed(prompts)

    def end_session(self, session: str) -> None:
        self._engine.end_session(session)

    def cache_lookup(self, prompt: str | list[int], salt: str) -> CacheLookup | Future[CacheLookup]:
        tokens = self._tokens(prompt)

        def wait_and_look() -> CacheLookup:
            self._checkpoints.flush(LOOKUP_S)
            return self._checkpoints.lookup(tokens, salt=salt)

        return wait_and_look() if self._checkpoints.flush(0.0) else self._slow.submit(wait_and_look)

    def cache_pin(self, prompt: str | list[int], salt: str) -> Future[int]:
        return self._on_saved(lambda store: content.pin(store, self._tokens(prompt), salt=salt))

    def cache_unpin(self, prompt: str | list[int], salt: str) -> Future[bool]:
        return self._on_saved(lambda store: content.unpin(store, self._tokens(prompt), salt=salt))

    def cache_export(self, prompt: str | list[int], salt: str, path: str) -> Future[archive.Moved]:
        return self._on_saved(lambda store: archive.export(store, self._tokens(prompt), Path(path), salt=salt))

    def _on_saved(self, work: Callable[[Store], T]) -> Future[T]:
        """Once what was captured is written."""
        store = self._checkpoints.store
        if store is None:
            raise CacheError(f"the cache of this model is off: {self._checkpoints.verdict}")

        def wait_and_work() -> T:
            self._checkpoints.flush(FLUSH_S)
            return work(store)

        return self._slow.submit(wait_and_work)

    def _tokens(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            tokens = self.tokenize(prompt, add_special=True, parse_special=True)
        else:
            check_ids(prompt, self._backend.info.n_vocab)
            tokens = list(prompt)
        if not tokens:
            raise InvalidRequestError("an input is empty")
        return tokens
