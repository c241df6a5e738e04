"""All models of a server: a slot for each file and set of load options. ``room`` says which of them are loaded.

Owns the slots; belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from barrel_inference.aio import AsyncModel
from barrel_inference.config import ServerOptions
from barrel_inference.errors import InvalidModelError
from barrel_inference.server.failures import ShuttingDownError
from barrel_inference.server.http import record
from barrel_inference.server.models.admission import Gate
from barrel_inference.server.models.catalog import Entry, damaged
from barrel_inference.server.models.keepalive import FOREVER, Timers
from barrel_inference.server.models.parameters import merge
from barrel_inference.server.models.room import Room
from barrel_inference.server.models.slot import NO_HINTS, Runtime, Slot
from barrel_inference.worker.memory import MemoryReader


class Lease(NamedTuple):
    """A model for the time of one request. ``wait_s``: in the queue and for loading."""

    model: AsyncModel
    entry: Entry
    n_ctx: int
    wait_s: float


class Pool:
    """``max_context``: no request gets more, whatever it asks. ``defaults``: load options below those of a model."""

    def __init__(
        self,
        runtime: Runtime,
        options: ServerOptions,
        *,
        memory: MemoryReader,
        timers: Timers,
        max_context: int,
        defaults: Mapping[str, Any] = NO_HINTS,
    ) -> None:
        self._runtime = runtime
        self._options = options
        self._max_context = max_context
        self._defaults = defaults
        self._timers = timers
        self._slots: dict[str, Slot] = {}
        self._room = Room(memory, timers, self.slots, options.max_loaded_models)
        self._closing = False

    # ---- requests

    @asynccontextmanager
    async def lease(
        self,
        entry: Entry,
        *,
        n_ctx: int | None = None,
        hints: Mapping[str, Any] = NO_HINTS,
        keep_s: float | None = None,
        embeddings: bool = False,
    ) -> AsyncIterator[Lease]:
        """Queue, load if need be, and hold. Raises QueueFullError, OutOfMemoryError, ShuttingDownError and what loading
        raises."""
        if self._closing:
            raise ShuttingDownError("the server is shutting down")
        slot = self._slot(entry, embeddings)
        wanted = self.context(entry, n_ctx)
        known = record.current()
        known.model, known.model_known = entry.name, True
        clock = self._timers.time
        patience_s = self._options.queue_timeout_s
        until = asyncio.get_running_loop().time() + patience_s if patience_s else None
        began, admitted, ready = clock(), None, None
        slot.keep.enter(keep_s)
        try:
            async with slot.gate.admit(known.client):
                admitted = clock()
                async with slot.use(wanted, hints, until) as model:
                    ready = clock()
                    yield Lease(model, entry, slot.n_ctx, ready - began)
        except InvalidModelError as error:  # at the load, or when a worker that had died found other files
            raise damaged(entry, error) from error
        finally:  # whatever it did not come to has taken no time
            admitted = clock() if admitted is None else admitted
            ready = clock() if ready is None else ready
            known.queued_s += admitted - began
            known.load_s += ready - admitted
            slot.keep.leave()
            if slot.is_idle:
                self._room.changed.set()

    def context(self, entry: Entry, n_ctx: int | None = None) -> int:
        """What a request gets that wants ``n_ctx``: at most what the model was trained on, and max_context or what the
        configuration gives this model by name."""
        own: int = entry.load.get("context_opts", {}).get("n_ctx", 0)
        wanted = n_ctx or own or self._options.context_size or self._max_context
        return min(wanted, max(self._max_context, own), entry.context_size or wanted)

    def keep_alive(self, entry: Entry, keep_s: float | None) -> None:
        """Set the time of a loaded model; 0 unloads it as soon as it is idle."""
        for slot in self._of(entry):
            slot.keep.set(keep_s)

    # ---- what there is

    @property
    def active(self) -> int:
        """Requests that wait for a model or have one."""
        return sum(slot.keep.active for slot in self._slots.values())

    def loaded(self) -> list[Slot]:
        """The longest remaining first."""
        loaded = [slot for slot in self._slots.values() if slot.loaded]
        return sorted(loaded, key=lambda slot: slot.keep.left_s(), reverse=True)

    def slots(self) -> list[Slot]:
        return list(self._slots.values())

    # ---- the end

    async def close(self) -> None:
        """Accept nothing more; wait at most ``drain_s`` for what runs. The runtime ends the rest."""
        self._closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.drain_s):
                while self.active:
                    self._room.changed.clear()
                    await self._room.changed.wait()
        for slot in self._slots.values():
            slot.keep.forget()

    # ---- slots

    def _slot(self, entry: Entry, embeddings: bool) -> Slot:
        options = self._load_options(entry, embeddings)
        key = msgspec.json.encode([entry.digest or entry.path or entry.name, options], order="sorted").decode()
        if key not in self._slots or not self._slots[key].in_use:  # a load anew has none of the names of the last one
            self._slots = {key: slot for key, slot in self._slots.items() if slot.in_use}
            self._slots[key] = self._new_slot(entry, options)
        self._slots[key].names.add(entry.name)
        self._give_up_older(entry)
        return self._slots[key]

    def _give_up_older(self, entry: Entry) -> None:
        """What this name meant before it was replaced goes once it is idle, unless another name still means it."""
        for slot in self._slots.values():
            if entry.name in slot.names and _version(slot.entry) != _version(entry):
                slot.names.remove(entry.name)
                if not slot.names:
                    slot.keep.set(0.0)

    def _load_options(self, entry: Entry, embeddings: bool) -> dict[str, Any]:
        context: dict[str, Any] = {"n_seq_max": self._options.num_parallel}
        if embeddings:
            context["embeddings"] = True
        where = {} if entry.path is None else {"model_path": entry.path}
        options = merge({**self._defaults, "context_opts": context, **where}, entry.load)
        options["context_opts"].pop("n_ctx", None)
        return options

    def _new_slot(self, entry: Entry, options: dict[str, Any]) -> Slot:
        taken = {slot.id for slot in self._slots.values()}
        names = (entry.name if number == 1 else f"{entry.name}#{number}" for number in range(1, len(taken) + 2))
        server = self._options
        keep_ms = server.keep_alive_default_ms
        return Slot(
            next(name for name in names if name not in taken),
            entry,
            options,
            runtime=self._runtime,
            timers=self._timers,
            gate=Gate(options["context_opts"]["n_seq_max"], server.max_queue, server.queue_timeout_s),
            keep_s=FOREVER if keep_ms < 0 else keep_ms / 1000,
            need=self._room.needed,
            make_room=self._room.make,
            freed=self._room.changed.set,
            asked=0 if "n_ctx" in entry.load.get("context_opts", {}) else server.context_size or 0,
        )

    def _of(self, entry: Entry) -> list[Slot]:
        return [slot for slot in self._slots.values() if _same(slot.entry, entry)]


def _same(first: Entry, second: Entry) -> bool:
    return first.name == second.name or (first.path is not None and first.path == second.path)


def _version(entry: Entry) -> tuple[str | None, dict[str, Any]]:
    """Of what is loaded."""
    return entry.digest or entry.path, entry.load
