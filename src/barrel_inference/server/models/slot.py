"""One model that requests ask for: not loaded, loaded, or on the way. Owned by the event loop; the pool makes them.

Loading, reloading with a larger context and unloading are one task at a time; whoever needs its outcome waits for it,
and a caller that leaves does not stop it for the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from barrel_inference.aio import AsyncModel
from barrel_inference.errors import BarrelError, QueueFullError
from barrel_inference.server.models.admission import Gate
from barrel_inference.server.models.catalog import Entry
from barrel_inference.server.models.keepalive import KeepAlive, Timers
from barrel_inference.server.models.parameters import merge

NO_HINTS: Mapping[str, Any] = {}

_log = logging.getLogger(__name__)


class Runtime(Protocol):
    """The part of AsyncRuntime that a slot needs."""

    async def load_model(self, model_id: str | None = None, /, **options: Any) -> AsyncModel: ...

    async def unload(self, model_id: str, *, drain_s: float = 0.0) -> None: ...


class Slot:
    """``need(slot, n_ctx)`` tells the bytes that a load takes, ``make_room(slot, bytes)`` reserves them; both may
    refuse it. ``load`` are the options of load_model without n_ctx. ``freed`` hears that memory was given back.
    ``asked``: the context that the configuration would give it."""

    def __init__(
        self,
        model_id: str,
        entry: Entry,
        load: Mapping[str, Any],
        *,
        runtime: Runtime,
        timers: Timers,
        gate: Gate,
        keep_s: float,
        need: Callable[[Slot, int], Awaitable[int]],
        make_room: Callable[[Slot, int], Awaitable[None]],
        freed: Callable[[], None],
        asked: int = 0,
    ) -> None:
        self.id = model_id
        self.entry = entry
        self.names = {entry.name}  # that it is asked for by
        self.load = load
        self.gate = gate
        self.keep = KeepAlive(timers, keep_s, self.unload)
        self.model: AsyncModel | None = None
        self.n_ctx = 0
        self.bytes = 0  # of memory, reserved before the load
        self.load_s = 0.0
        self.loaded_at = 0.0
        self._runtime = runtime
        self._timers = timers
        self._need = need
        self._make_room = make_room
        self._freed = freed
        self._asked = asked
        self._using = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._change: asyncio.Task[None] | None = None
        self._has_room = asyncio.Event()  # no change waits for others to make way
        self._has_room.set()
        self._coming = 0  # the context that it is being loaded with

    @property
    def loaded(self) -> bool:
        """It may be about to be loaded with a larger context, once nobody uses this one any more."""
        return self.model is not None and self.model.info().phase != "failed"

    @property
    def in_use(self) -> bool:
        """Loaded, about to be, or wanted."""
        return self.model is not None or self._change is not None or self.keep.active > 0

    @property
    def is_idle(self) -> bool:
        """Nobody uses it, or will before the gate is opened again."""
        return not self.keep.active or not (self.gate.is_open or self.gate.running)

    @property
    def is_settled(self) -> bool:
        """Loaded, and to stay so."""
        return self.model is not None and self._change is None

    @asynccontextmanager
    async def use(
        self, n_ctx: int, hints: Mapping[str, Any] = NO_HINTS, until: float | None = None
    ) -> AsyncIterator[AsyncModel]:
        """The model with a context of at least ``n_ctx``, which stays as it is until the end. Raises what loading
        raises, and QueueFullError when there is no room for it at ``until``, on the loop's clock. ``hints``: load
        options that count if it is loaded for this request, and are no reason to load again."""
        while self._change is not None or not self.loaded or self.n_ctx < n_ctx:
            if self._change is None:
                self._coming = max(n_ctx, self.n_ctx)
                self._has_room.clear()
                self._begin(self._reload(self._coming, hints))
            await self._changed(n_ctx, until)
        assert self.model is not None
        self._using += 1
        self._unused.clear()
        try:
            yield self.model
        finally:
            self._using -= 1
            if not self._using:
                self._unused.set()

    def unload(self) -> None:
        """Begin to, unless a request came in the meantime."""
        if self.is_settled and self.is_idle:
            if not self.keep.active:  # else those who wait have said how long it is to be kept
                self.keep.forget()
            self._begin(self._unload())

    async def unloaded(self) -> None:
        """Unload now; for idle models. A load that nobody waits for any more is let finish first."""
        while self._change is not None or self.model is not None:
            self.unload()
            if self._change is None:
                return  # a request came
            await asyncio.wait([self._change])

    def _begin(self, change: Coroutine[Any, Any, None]) -> None:
        self._change = asyncio.create_task(self._run(change))
        self._change.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may be waiting

    async def _changed(self, n_ctx: int, until: float | None) -> None:
        """Who needs less than what failed is not refused with it."""
        assert self._change is not None
        change, needs_less = self._change, n_ctx < self._coming
        try:
            async with asyncio.timeout_at(until):
                await self._has_room.wait()
        except TimeoutError:
            raise no_room(self.entry) from None
        try:
            await asyncio.shield(change)
        except BarrelError:
            if not needs_less:
                raise

    async def _run(self, change: Coroutine[Any, Any, None]) -> None:
        """It is over before its task is: to wait for a task that is done does not yield, and who looped until the
        change is gone would loop for ever."""
        try:
            await change
        except Exception as error:
            _log.warning("model %s: %s", self.entry.name, error)
            raise
        finally:
            self._change = None
            self._has_room.set()
            if not self.keep.active:
                self.keep.set(None)  # nobody waited for the end: the time begins now

    async def _reload(self, n_ctx: int, hints: Mapping[str, Any]) -> None:
        """With a larger context, once nobody uses the smaller one, which is not given up for what never fits."""
        needed = await self._need(self, n_ctx)
        await self._unused.wait()
        await self._unload()
        await self._make_room(self, needed)
        self._has_room.set()
        await self._load(n_ctx, hints)

    async def _load(self, n_ctx: int, hints: Mapping[str, Any]) -> None:
        started = self._timers.time()
        try:
            self.model = await self._runtime.load_model(self.id, **self._options(n_ctx, hints))
        except BaseException:
            self._let_go()
            raise
        self.n_ctx = n_ctx
        if n_ctx == self.entry.context_size and n_ctx < self._asked:
            words = "model %s: its context has %d tokens, not %d: it was trained on no more"
            _log.info(words, self.entry.name, n_ctx, self._asked)
        self.loaded_at = self._timers.time()
        self.load_s = self.loaded_at - started

    def _options(self, n_ctx: int, hints: Mapping[str, Any]) -> dict[str, Any]:
        options = merge(merge(self.load, hints), {"context_opts": {"n_ctx": n_ctx}})
        context = options["context_opts"]
        if context.get("embeddings"):  # an input is read in one batch
            context |= {"n_batch": n_ctx, "n_ubatch": n_ctx}
        elif "n_batch" in context:
            context["n_batch"] = max(context["n_batch"], context.get("n_seq_max", 1))
        return options

    async def _unload(self) -> None:
        if self.model is None:
            return
        self.model, self.n_ctx = None, 0
        try:
            await self._runtime.unload(self.id)
        except BarrelError as error:
            _log.warning("model %s was not unloaded in order: %s", self.id, error)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self.bytes = 0
        self._freed()


def no_room(entry: Entry) -> QueueFullError:
    return QueueFullError(f"server busy: no memory for model '{entry.name}' became free", retry_after_s=60)
