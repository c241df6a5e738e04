"""The blocking face of ``aio``: every call runs on one private event loop in a daemon thread, so it works from scripts,
threads and notebooks alike. It adds nothing of its own.

Owns the default runtime, made at the first call, and the set of open ones, which are closed at exit. A forked child
starts without any: the parent's workers are not the child's.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from barrel_inference.aio.cache import AsyncCache
from barrel_inference.aio.model import AsyncModel
from barrel_inference.aio.params import Messages, Prompt, StrPath
from barrel_inference.aio.runtime import AsyncRuntime, OnProgress
from barrel_inference.aio.stream import Streaming
from barrel_inference.chat.events import Answer, Event
from barrel_inference.config import RuntimeConfig
from barrel_inference.errors import NotLoadedError
from barrel_inference.kvcache.admin import pressure
from barrel_inference.types import (
    CacheLookup,
    CacheReport,
    CacheStats,
    Chunk,
    Completion,
    Embedding,
    ModelInfo,
    TierInfo,
    TierKind,
)

if TYPE_CHECKING:
    from barrel_inference.kvcache.admin.archive import Moved
    from barrel_inference.kvcache.admin.content import NamespaceStats, Removed, Scrubbed

T = TypeVar("T")
Item = TypeVar("Item")
Whole = TypeVar("Whole", bound=msgspec.Struct)

EXIT_TIMEOUT_S = 60.0
CANCEL_TIMEOUT_S = 10.0


class _LoopThread:
    """An event loop in a thread. Any other thread may use it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._asking = threading.Lock()  # nothing is asked of a loop that stops
        self._is_stopping = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="barrel_inference", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Wait for a coroutine; an interrupt while waiting (Ctrl-C) cancels it, and is raised when it has ended. Raises
        NotLoadedError when the loop is stopped before the coroutine ends."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call from within the runtime's own event loop would never return")
        future = self._begin(work)
        try:
            return future.result(timeout_s)
        except CancelledError:
            raise NotLoadedError("the runtime was closed in the meantime") from None
        except BaseException:
            future.cancel()
            if timeout_s is None:
                _wait_for_end(work)
            raise

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self.is_alive:  # otherwise the lock may be one that was held when this process was forked
            with self._asking:
                if not self._is_stopping:
                    return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise NotLoadedError("the runtime is closed, or belongs to the process that this one was forked from")

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        async def work() -> T:
            return function(*args, **kwargs)

        return self.run(work())

    @property
    def is_alive(self) -> bool:
        """False after ``stop``, and in a forked child, which has none of its parent's threads."""
        return self._thread.is_alive()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a coroutine that nobody waits for."""
        try:
            if self.is_alive:
                asyncio.run_coroutine_threadsafe(work, self._loop)
                return
        except RuntimeError:  # it was closed in this moment
            pass
        work.close()

    def stop(self) -> None:
        """Cancel what still runs; whoever waits for it gets a NotLoadedError. Safe to call twice."""
        if threading.current_thread() is self._thread or not self.is_alive:
            return
        with self._asking:
            is_first, self._is_stopping = not self._is_stopping, True
        if is_first:
            try:
                asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        if is_first:
            self._loop.close()


def _wait_for_end(work: Coroutine[Any, Any, Any]) -> None:
    """What was interrupted holds nothing any more: the same load can be begun again."""
    deadline = time.monotonic() + CANCEL_TIMEOUT_S
    while inspect.getcoroutinestate(work) != inspect.CORO_CLOSED and time.monotonic() < deadline:
        time.sleep(0.002)


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class _Blocking(Generic[Item, Whole]):
    """An iterator. Closing it, leaving its ``with``, or dropping it stops the work."""

    def __init__(self, loop: _LoopThread, stream: Streaming[Item, Whole]) -> None:
        self._loop = loop
        self._stream = stream
        self._ended = False

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        try:
            item = self._loop.run(self._next())
        except BaseException:
            self._ended = True
            raise
        if item is None:
            self._ended = True
            raise StopIteration
        return item

    async def _next(self) -> Item | None:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._loop.spawn(self._stream.aclose())

    def close(self) -> None:
        """Any thread; one that waits for the next item gets the end of it. Nothing after the runtime's own end."""
        self._ended = True
        with suppress(NotLoadedError):
            self._loop.run(self._stream.aclose())

    def cancel(self) -> None:
        """End it within one step: the stream then closes with finish reason ``cancelled``. Any thread; nothing after
        the runtime's own end."""
        with suppress(NotLoadedError):
            self._loop.call(self._stream.cancel)

    def result(self) -> Whole:
        """Read to the end; the whole."""
        self._ended = True
        return self._loop.run(self._stream.result())


class Stream(_Blocking[Chunk, Completion]):
    """Chunks of a generation; its result is a Completion."""


class ChatStream(_Blocking[Event, Answer]):
    """Events of an answer (chat.events); its result is an Answer."""


class Model:
    """Handle of one loaded model; see ``aio.AsyncModel`` for every method."""

    def __init__(self, runtime: Runtime, model: AsyncModel) -> None:
        self._runtime = runtime
        self._loop = runtime._loop
        self._model = model

    def __repr__(self) -> str:
        return f"<Model {self.id!r}>"

    @property
    def id(self) -> str:
        """What it was loaded as."""
        return self._model.id

    def info(self) -> ModelInfo:
        return self._loop.call(self._model.info)

    def complete(self, prompt: Prompt, **options: Any) -> Completion:
        return self._loop.run(self._model.complete(prompt, **options))

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        return Stream(self._loop, self._loop.call(self._model.stream, prompt, **options))

    def chat(self, messages: Messages, **options: Any) -> Answer:
        return self._loop.run(self._model.chat(messages, **options))

    def chat_stream(self, messages: Messages, **options: Any) -> ChatStream:
        return ChatStream(self._loop, self._loop.call(self._model.chat_stream, messages, **options))

    def apply_template(self, messages: Messages, **options: Any) -> str:
        return self._loop.run(self._model.apply_template(messages, **options))

    def embed(self, texts: str | Sequence[Prompt]) -> Embedding:
        return self._loop.run(self._model.embed(texts))

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return self._loop.run(self._model.tokenize(text, add_special=add_special, parse_special=parse_special))

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str:
        return self._loop.run(self._model.detokenize(tokens, special=special))

    def prefill(self, prompt: Prompt, **options: Any) -> CacheReport:
        return self._loop.run(self._model.prefill(prompt, **options))

    def lookup(self, prompt: Prompt, *, salt: str = "") -> CacheLookup:
        return self._loop.run(self._model.lookup(prompt, salt=salt))

    def pin(self, prompt: Prompt, *, salt: str = "") -> int:
        return self._loop.run(self._model.pin(prompt, salt=salt))

    def unpin(self, prompt: Prompt, *, salt: str = "") -> bool:
        return self._loop.run(self._model.unpin(prompt, salt=salt))

    def end_session(self, session: str) -> None:
        self._loop.run(self._model.end_session(session))

    def unload(self, *, drain_s: float = 0.0) -> None:
        """``Runtime.unload`` of this model."""
        self._runtime.unload(self.id, drain_s=drain_s)


class Cache:
    """``aio.cache.AsyncCache`` of a runtime."""

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        self._runtime = runtime

    def stats(self) -> CacheStats:
        return self._run(lambda cache: cache.stats())

    def namespaces(self) -> list[NamespaceStats]:
        return self._run(lambda cache: cache.namespaces())

    def lookup(self, model_id: str, prompt: Prompt, *, salt: str = "") -> CacheLookup:
        return self._run(lambda cache: cache.lookup(model_id, prompt, salt=salt))

    def pin(self, model_id: str, prompt: Prompt, *, salt: str = "") -> int:
        return self._run(lambda cache: cache.pin(model_id, prompt, salt=salt))

    def unpin(self, model_id: str, prompt: Prompt, *, salt: str = "") -> bool:
        return self._run(lambda cache: cache.unpin(model_id, prompt, salt=salt))

    def clear(
        self, *, namespace: str | None = None, older_than_s: float | None = None, tier: str | None = None
    ) -> Removed:
        return self._run(lambda cache: cache.clear(namespace=namespace, older_than_s=older_than_s, tier=tier))

    def verify(self, *, tier: str | None = None) -> Scrubbed:
        return self._run(lambda cache: cache.verify(tier=tier))

    def export(self, model_id: str, prompt: Prompt, file: StrPath, *, salt: str = "") -> Moved:
        return self._run(lambda cache: cache.export(model_id, prompt, file, salt=salt))

    def import_(self, file: StrPath, *, tier: str | None = None) -> Moved:
        return self._run(lambda cache: cache.import_(file, tier=tier))

    def _run(self, ask: Callable[[AsyncCache], Coroutine[Any, Any, T]]) -> T:
        runtime = self._runtime()
        return runtime._loop.run(ask(runtime._runtime.cache))


class Runtime:
    """``aio.AsyncRuntime`` on a loop of its own, with the user's configuration unless one is given. Also a context
    manager."""

    def __init__(self, config: RuntimeConfig | None = None, *, memory_pressure: pressure.Source | None = None) -> None:
        self._loop = _LoopThread()
        try:
            self._runtime = self._loop.call(AsyncRuntime, config, memory_pressure=memory_pressure)
            self._loop.run(self._runtime.start())
        except BaseException:
            self._loop.stop()
            raise
        _open.add(self)
        self.cache = Cache(lambda: self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def load_model(
        self, model_id: str | None = None, /, *, on_progress: OnProgress | None = None, **options: Any
    ) -> Model:
        return Model(self, self._loop.run(self._runtime.load_model(model_id, on_progress=on_progress, **options)))

    def model(self, model_id: str) -> Model:
        return Model(self, self._loop.call(self._runtime.model, model_id))

    def models(self) -> list[ModelInfo]:
        return self._loop.call(self._runtime.models)

    def unload(self, model_id: str, *, drain_s: float = 0.0) -> None:
        self._loop.run(self._runtime.unload(model_id, drain_s=drain_s))

    def start_tier(
        self, name: str, kind: TierKind, path: StrPath, quota_bytes: int, *, min_free_bytes: int | None = None
    ) -> TierInfo:
        start = self._runtime.start_tier
        return self._loop.call(start, name, kind, path, quota_bytes, min_free_bytes=min_free_bytes)

    def close(self, timeout_s: float | None = None) -> None:
        """Unload everything; safe to call twice."""
        try:
            with suppress(NotLoadedError):  # it is closed already
                self._loop.run(self._runtime.close(), timeout_s)
        finally:
            self._loop.stop()
            _open.discard(self)


for _facade, _source in ((Model, AsyncModel), (Cache, AsyncCache), (Runtime, AsyncRuntime)):
    for _name, _method in vars(_facade).items():
        if inspect.isfunction(_method) and not _method.__doc__ and _name in vars(_source):
            _method.__doc__ = vars(_source)[_name].__doc__  # it does the same

_open: set[Runtime] = set()  # from ``start`` to ``close``


@atexit.register
def _close_all() -> None:
    for each in list(_open):
        with suppress(TimeoutError):  # its workers end with this process
            each.close(EXIT_TIMEOUT_S)


# ---- the default runtime

_default: Runtime | None = None
_making = threading.Lock()


def runtime() -> Runtime:
    """The one that the functions of this module use; made at the first call."""
    global _default
    with _making:
        if _default is None or _default not in _open:
            _default = Runtime()
        return _default


cache = Cache(runtime)


def _forget_all() -> None:
    global _making
    _making = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_forget_all)


def load_model(model_id: str | None = None, /, *, on_progress: OnProgress | None = None, **options: Any) -> Model:
    """Load a model into a worker of its own; usable when this returns. With no id one is made."""
    return runtime().load_model(model_id, on_progress=on_progress, **options)


def model(model_id: str) -> Model:
    """The handle of a loaded model: everything that can be asked of one. Raises NotLoadedError."""
    return runtime().model(model_id)


def models() -> list[ModelInfo]:
    """A snapshot of every loaded model."""
    return runtime().models()


def unload(model_id: str, *, drain_s: float = 0.0) -> None:
    """End a model's worker; running requests go on for at most ``drain_s``. Raises NotLoadedError."""
    runtime().unload(model_id, drain_s=drain_s)


def complete(model_id: str, prompt: Prompt, **options: Any) -> Completion:
    """``Model.complete`` by id."""
    return model(model_id).complete(prompt, **options)


def stream(model_id: str, prompt: Prompt, **options: Any) -> Stream:
    """``Model.stream`` by id."""
    return model(model_id).stream(prompt, **options)


def start_tier(
    name: str, kind: TierKind, path: StrPath, quota_bytes: int, *, min_free_bytes: int | None = None
) -> TierInfo:
    """Open a directory as a tier that later loads read from and may save to (``tier=kind, tier_srv=name``)."""
    return runtime().start_tier(name, kind, path, quota_bytes, min_free_bytes=min_free_bytes)
