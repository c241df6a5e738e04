"""The runtime of a process: its loaded models and its tiers. Belongs to the event loop that started it.

Closing it unloads every model and removes the automatic tier; a runtime that is killed leaves that to the next one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from barrel_inference.aio.cache import AsyncCache
from barrel_inference.aio.model import AsyncModel
from barrel_inference.aio.params import Prompt, StrPath, check_seconds
from barrel_inference.aio.stream import AsyncStream
from barrel_inference.aio.tiers import Tiers, tier_info
from barrel_inference.config import LoadArguments, RuntimeConfig, TierSpec
from barrel_inference.errors import AlreadyLoadedError, ConfigError, NotLoadedError
from barrel_inference.kvcache.admin import pressure
from barrel_inference.kvcache.tier import NS_HEX
from barrel_inference.options import build, nearest, users_own
from barrel_inference.threads import alone
from barrel_inference.types import Completion, ModelInfo, TierInfo, TierKind
from barrel_inference.worker.memory import MemoryReader, PsutilMemory
from barrel_inference.worker.messages import NeedRoom, Progress, Room, Touched
from barrel_inference.worker.supervisor import Supervisor, summed

MAX_ID_LENGTH = 200

_log = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]


class _Loaded(NamedTuple):
    model: AsyncModel
    supervisor: Supervisor
    held: ExitStack  # leases on its installed files


class AsyncRuntime:
    """``async with AsyncRuntime(config) as runtime`` starts the tiers of the configuration and closes everything at
    the end. Without a ``config`` it has the user's own, of the file and the environment; ``RuntimeConfig()`` has the
    defaults.

    ``memory_pressure`` (a callable that gives the used fraction, 0 to 1, on the janitor's thread) takes the place of
    the configured source;
    ``worker_command`` and ``memory`` are seams for tests.
    """

    def __init__(
        self,
        config: RuntimeConfig | None = None,
        *,
        worker_command: Sequence[str] | None = None,
        memory: MemoryReader | None = None,
        memory_pressure: pressure.Source | None = None,
    ) -> None:
        from barrel_inference.fingerprint import Fingerprints  # these and ``loading`` read models: not for those who
        from barrel_inference.registry import Registry  # only import the package

        if not isinstance(config, RuntimeConfig | None):
            raise ConfigError(f"config={config!r:.80} is not allowed: expected a RuntimeConfig", option="config")
        self.config = users_own(RuntimeConfig()) if config is None else config
        self._worker_command = worker_command
        self._memory = PsutilMemory() if memory is None else memory
        self._tiers = Tiers(self.config, self._memory, on_room=self._on_room, memory_pressure=memory_pressure)
        self._fingerprints = Fingerprints(_cache_dir(self.config) / "fingerprints.json")
        self._registry = Registry.configured(self.config)
        self._models: dict[str, _Loaded | None] = {}  # None: being loaded
        self._past: dict[str, dict[str, float]] = {}  # counters of the models that were unloaded
        self._unloading: dict[Supervisor, asyncio.Task[None]] = {}
        self.cache = AsyncCache(self._tiers, self.model, self._counters, self._model_of)
        self._namespaces: dict[str, str] = {}  # of the models that were loaded
        self._loop: asyncio.AbstractEventLoop | None = None  # once it has started
        self._made = 0  # the highest number of an automatic id
        self._closed = False

    async def start(self) -> None:
        """Open the tiers of the configuration; the first load does it too."""
        if self._loop is None:
            for spec in self.config.tiers:
                self._tiers.start(spec)
            self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Unload everything at once, also what still drains; safe to call twice. A load in progress ends in a
        NotLoadedError."""
        self._closed = True
        self._fingerprints.close()
        for each in self._loaded():
            self._begin_to_unload(each, 0.0)
        await asyncio.gather(*self._unloading.values(), *(_stop(each, 0.0) for each in self._unloading))
        self._tiers.close()
        self.cache.close()
        self._registry.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # ---- models

    async def load_model(
        self, model_id: str | None = None, /, *, on_progress: OnProgress | None = None, **options: Any
    ) -> AsyncModel:
        """Load a model into a worker of its own; usable when this returns. Options: docs/configuration.md.

        Raises ConfigError, InvalidModelError, a TierError, AlreadyLoadedError, or what the worker answered (LoadError,
        OutOfMemoryError). ``on_progress`` hears (stage, fraction) while the weights load.
        """
        from barrel_inference.aio import loading

        self._require_open()
        await self.start()
        arguments = loading.parse(options, self.config, model_id)
        path = None if arguments.model_path is None else loading.locate(arguments.model_path, self._registry)
        number = self._free_number() if model_id is None else self._made
        model_id = self._reserve(_automatic_id(number) if model_id is None else model_id)
        try:
            with ExitStack() as held:
                files = [] if path is None else [path, *(Path(lora) for lora, _ in arguments.lora)]
                held.enter_context(await self._registry.hold(*files))
                supervisor = await self._start_worker(model_id, arguments, path, on_progress)
                if namespace := supervisor.info().namespace:
                    self._namespaces[namespace[:NS_HEX]] = model_id
                self._models[model_id] = _Loaded(AsyncModel(supervisor), supervisor, held.pop_all())
                self._made = max(self._made, number)
        finally:
            if self._models.get(model_id) is None:
                self._models.pop(model_id, None)
        return self.model(model_id)

    async def _start_worker(
        self, model_id: str, arguments: LoadArguments, path: Path | None, on_progress: OnProgress | None
    ) -> Supervisor:
        from barrel_inference.aio import loading

        # perhaps it reads the whole file, for its fingerprint
        options = await alone(loading.resolve, model_id, arguments, path, self._fingerprints)
        self._require_open()
        if arguments.cache:
            save_tier = self._tiers.resolve(arguments.tier, arguments.tier_srv)
            options = msgspec.structs.replace(options, tiers=self._tiers.readable(), save_tier=save_tier.name)
        supervisor = Supervisor(
            options,
            observe=lambda message: self._observe(message, on_progress if supervisor.phase == "starting" else None),
            ready_timeout_s=self.config.ready_timeout_s,
            command=self._worker_command,
        )
        info = await supervisor.start()
        if self._closed:
            await supervisor.stop(drain_s=0, save_s=0)
            self._require_open()
        for warning in info.warnings:
            _log.warning("model %s: %s", model_id, warning)
        return supervisor

    def _require_open(self) -> None:
        if self._closed:
            raise NotLoadedError("the runtime is closed")

    def _reserve(self, model_id: str) -> str:
        if not isinstance(model_id, str) or not 0 < len(model_id) <= MAX_ID_LENGTH or not model_id.isprintable():
            raise ConfigError(
                f"id={model_id!r:.80} is not allowed: expected 1 to {MAX_ID_LENGTH} printable characters", option="id"
            )
        if model_id in self._models:
            raise AlreadyLoadedError(f"model {model_id!r} is loaded already", id=model_id)
        self._models[model_id] = None
        return model_id

    def _free_number(self) -> int:
        """Of a model without a name: higher than that of any that was loaded, so that no handle ever means another."""
        return next(n for n in itertools.count(self._made + 1) if _automatic_id(n) not in self._models)

    def model(self, model_id: str) -> AsyncModel:
        """Raises NotLoadedError."""
        return self._get(model_id).model

    def _get(self, model_id: str) -> _Loaded:
        loaded = self._models.get(model_id) if isinstance(model_id, str) else None
        if loaded is None:
            state = "is still being loaded" if model_id in list(self._models) else "is not loaded"
            raise NotLoadedError(f"model {model_id!r} {state}{nearest(model_id, self._models)}", id=str(model_id))
        return loaded

    def _loaded(self) -> list[_Loaded]:
        return [each for each in self._models.values() if each is not None]

    def models(self) -> list[ModelInfo]:
        """A snapshot of every loaded model."""
        return [each.model.info() for each in self._loaded()]

    async def unload(self, model_id: str, *, drain_s: float = 0.0) -> None:
        """Let running requests go on for ``drain_s``, then cancel them; save what is unsaved (at most the policy's
        evict_save_timeout_ms); end the process. Cancelling this call does not stop it. Raises NotLoadedError."""
        loaded = self._get(model_id)
        await asyncio.shield(self._begin_to_unload(loaded, check_seconds("drain_s", drain_s)))

    def _begin_to_unload(self, loaded: _Loaded, drain_s: float) -> asyncio.Task[None]:
        model, supervisor, held = loaded
        model_id = model.id
        del self._models[model_id]

        async def work() -> None:
            try:
                with held:
                    await _stop(supervisor, drain_s)
            finally:
                del self._unloading[supervisor]
                self._past[model_id] = summed(self._past.get(model_id, {}), supervisor.counters())

        self._unloading[supervisor] = task = asyncio.create_task(work(), name=f"unload {model_id}")
        return task

    async def complete(self, model_id: str, prompt: Prompt, **options: Any) -> Completion:
        """``AsyncModel.complete`` by id."""
        return await self.model(model_id).complete(prompt, **options)

    def stream(self, model_id: str, prompt: Prompt, **options: Any) -> AsyncStream:
        """``AsyncModel.stream`` by id."""
        return self.model(model_id).stream(prompt, **options)

    # ---- tiers and cache

    def start_tier(
        self, name: str, kind: TierKind, path: StrPath, quota_bytes: int, *, min_free_bytes: int | None = None
    ) -> TierInfo:
        """Open a directory as a tier that later loads read from and may save to; models that are loaded already keep
        the tiers they were loaded with. ``min_free_bytes`` are left free on its file system. Raises ConfigError or
        TierUnusableError."""
        from barrel_inference.aio import loading

        values = {"name": name, "kind": kind, "path": loading.text(path)}
        values |= {"quota_bytes": quota_bytes, "min_free_bytes": min_free_bytes}
        spec = build(TierSpec(name="", kind="disk", path="", quota_bytes=1), values)
        absolute = str(loading.absolute(spec.path))
        return tier_info(self._tiers.start(msgspec.structs.replace(spec, path=absolute)))

    def _counters(self) -> dict[str, dict[str, float]]:
        found = dict(self._past)
        for supervisor in (*(each.supervisor for each in self._loaded()), *self._unloading):
            model_id = supervisor.options.id
            found[model_id] = summed(found.get(model_id, {}), supervisor.counters())
        return found

    def _model_of(self, namespace: str) -> str:
        """One of those that share it."""
        return self._namespaces.get(namespace, "")

    def _observe(self, message: Progress | NeedRoom | Touched, on_progress: OnProgress | None) -> None:
        match message:
            case Progress(stage, fraction):
                if on_progress is not None:
                    on_progress(stage, fraction)
            case NeedRoom(tier, n_bytes):
                self._tiers.janitor.need_room(tier, n_bytes)
            case Touched(tier, keys):
                self._tiers.janitor.touched(tier, keys)

    def _on_room(self, tier: str) -> None:
        """Janitor's thread."""
        if self._loop is None:  # a tier was started, and no worker waits for room in it yet
            return
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._tell_workers, Room(tier))

    def _tell_workers(self, message: Room) -> None:
        for each in self._loaded():
            each.supervisor.send(message)


def _automatic_id(number: int) -> str:
    return f"barrel_inference_model_{number}"


async def _stop(supervisor: Supervisor, drain_s: float) -> None:
    await supervisor.stop(drain_s=drain_s, save_s=supervisor.options.policy.evict_save_timeout_ms / 1000)


def _cache_dir(config: RuntimeConfig) -> Path:
    import platformdirs  # not for those who only import the package

    return Path(config.cache_dir or platformdirs.user_cache_dir("barrel_inference"))
