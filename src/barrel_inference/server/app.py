"""The server put together: one runtime, one pool of models, all dialects, the checks before them and the numbers after.

Owns the pool and the metrics; the runtime and the registry are its maker's. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Scope

from barrel_inference.aio.cache import AsyncCache
from barrel_inference.config import RuntimeConfig
from barrel_inference.registry import Registry
from barrel_inference.server import samples
from barrel_inference.server.anthropic import routes as anthropic
from barrel_inference.server.anthropic import wire as anthropic_wire
from barrel_inference.server.anthropic.failure import failure as anthropic_failure
from barrel_inference.server.failures import MethodNotAllowedError, NotFoundError
from barrel_inference.server.http import auth, plain, shared
from barrel_inference.server.http.metrics import Metrics, Sample
from barrel_inference.server.http.middleware import Access, Body, Guard, Records
from barrel_inference.server.http.operation import Operation
from barrel_inference.server.http.record import Record
from barrel_inference.server.http.streaming import Failure, UnderWay
from barrel_inference.server.models.catalog import Configured
from barrel_inference.server.models.pool import Pool
from barrel_inference.server.models.registered import Registered
from barrel_inference.server.models.slot import Runtime as SlotRuntime
from barrel_inference.server.native import wire
from barrel_inference.server.native.housekeeping import Housekeeping
from barrel_inference.server.native.models import Asking
from barrel_inference.server.native.operations import Operating
from barrel_inference.server.native.shipping import Shipping
from barrel_inference.server.ollama import routes as ollama
from barrel_inference.server.ollama.installing import check_source
from barrel_inference.server.openai import routes as openai
from barrel_inference.server.openai import wire as openai_wire
from barrel_inference.server.openai.failure import failure as openai_failure
from barrel_inference.server.service import ModelService
from barrel_inference.worker.memory import PsutilMemory


class _Dialect(NamedTuple):
    prefix: str
    failure: Failure
    error: type  # what ``failure`` writes


_DIALECTS = (
    _Dialect("/v1/messages", anthropic_failure, anthropic_wire.Failed),
    _Dialect("/v1/", openai_failure, openai_wire.Failed),
    _Dialect("", plain.failure, plain.Failed),
)
ANTHROPIC_HEADER = "anthropic-version"
_access_log = logging.getLogger("barrel_inference.requests")
_log = logging.getLogger(__name__)


class Runtime(SlotRuntime, Protocol):
    @property
    def cache(self) -> AsyncCache: ...


class Server:
    """``asgi`` is the application. ``start`` and ``close`` belong around its serving."""

    def __init__(self, config: RuntimeConfig, runtime: Runtime, registry: Registry | None) -> None:
        options = config.server
        self._options = options
        self._registry = registry
        catalog = Configured(options.models, None if registry is None else Registered(registry))
        self._missing = catalog.missing
        self.pool = Pool(
            runtime,
            options,
            memory=PsutilMemory(),
            timers=asyncio.get_running_loop(),
            max_context=config.registry.max_context_size,
            defaults=_save_options(config),
        )
        pull = self._pull if options.auto_pull and registry is not None else None
        self.service = ModelService(catalog, self.pool, options, pull)
        self.metrics = Metrics()
        self._cache = runtime.cache
        self._save_tier = config.tiers[0].name if config.tiers else None
        self._active = 0
        self._under_way = UnderWay()
        self._state = "starting"
        self.operations = self._operations()
        self.asgi = self._stack()

    # ---- life

    async def start(self) -> None:
        """Load what is to be loaded from the start; a model that cannot be, or is not here, is a warning."""
        for what in self._missing():
            _log.warning("%s", what)
        for name in self._options.preload:
            try:
                await self.service.load(name)
            except Exception as error:
                _log.warning("preload of %s: %s", name, error)
        self._state = "ok"

    async def close(self) -> None:
        """Refuse what is new and let what runs go on for a while."""
        self._state = "stopping"
        await self.pool.close()

    def end(self) -> None:
        """Tell whoever still waits, for a load or a pull, that there will be no answer."""
        self._under_way.end()

    async def _pull(self, name: str) -> None:
        assert self._registry is not None
        check_source(name, local_files=auth.is_loopback(self._options.host))
        async for _ in self._registry.pull(name):
            pass

    # ---- composition

    def _operations(self) -> list[Operation]:
        options = self._options
        found = ollama.routes(self.service, self._registry, options.models, local_files=auth.is_loopback(options.host))
        found += shared.merged(
            openai.routes(self.service, keep_alive=options.v1_keep_alive),
            anthropic.routes(self.service, keep_alive=options.v1_keep_alive, ping_s=options.ping_s),
            header=ANTHROPIC_HEADER,
        )
        found += Asking(self.service, self._cache).operations()
        found += Shipping(self.service, self._cache, self._save_tier).operations()
        found += Housekeeping(self._registry).operations() if self._registry is not None else []
        found += Operating(
            self._health, self._metrics_text, lambda: self.operations, lambda path: _dialect(path).error
        ).operations()
        return found

    def _stack(self) -> ASGIApp:
        options = self._options
        routes = [each.route() for each in self.operations]
        routed = Starlette(routes=routes, exception_handlers={HTTPException: self._not_routed})
        routed.state.under_way = self._under_way
        app: ASGIApp = routed
        app = Body(
            app,
            max_bytes=options.max_body_bytes,
            pause_s=options.read_timeout_s,
            failure_of=_failure_of,
            unlimited=("/api/blobs/", "/api/cache/import"),
        )
        access = Access(
            keys=auth.Keys(options.api_keys),
            origins=auth.Origins(options.origins),
            # A page that has made its own name mean this machine has no key
            check_host=auth.is_loopback(options.host) or bool(options.hosts) or not options.api_keys,
            hosts=options.hosts,
            open_paths=frozenset(each.path for each in self.operations if each.open),
        )
        app = Guard(app, access=access, failure_of=_failure_of, is_closing=lambda: self._state == "stopping")
        return Records(app, begun=self._begun, ended=self._ended, failure_of=_failure_of)

    async def _not_routed(self, request: Request, error: Exception) -> Response:
        """404 and 405 in the dialect's shape; outside of /v1 as Go's router says them."""
        assert isinstance(error, HTTPException)
        words = {404: "404 page not found", 405: "405 method not allowed"}
        text = words.get(error.status_code, error.detail)
        if not request.url.path.startswith("/v1/"):
            return PlainTextResponse(text, status_code=error.status_code, headers=error.headers)
        kind = MethodNotAllowedError if error.status_code == 405 else NotFoundError
        response = _failure_of(request.scope)(kind(text))
        response.headers.update(error.headers or {})
        return response

    # ---- what is the case

    def _health(self) -> wire.Health:
        loaded = len(self.pool.loaded())
        return wire.Health(status=self._state, models_loaded=loaded, requests_active=self._others())

    def _others(self) -> int:
        """Requests under way beside the one that asks for their number."""
        return self._active - 1

    def _begun(self) -> None:
        self._active += 1

    def _ended(self, entry: Record) -> None:
        self._active -= 1
        self.metrics.ended(entry)
        _access_log.info("%s", log_line(entry))

    async def _metrics_text(self) -> bytes:
        stats = await self._cache.stats()
        now = [Sample("requests_active", "Requests under way", self._others())]
        pulls = () if self._registry is None else samples.of_pulls(self._registry)
        return self.metrics.text([*now, *samples.of_models(self.pool.slots()), *samples.of_cache(stats), *pulls])


def _dialect(path: str) -> _Dialect:
    return next(dialect for dialect in _DIALECTS if path.startswith(dialect.prefix))


def _failure_of(scope: Scope) -> Failure:
    """Of what is below /v1 the header says whose client asks."""
    path = scope["path"]
    if path.startswith("/v1/") and ANTHROPIC_HEADER in Headers(scope=scope):
        return anthropic_failure
    return _dialect(path).failure


def _save_options(config: RuntimeConfig) -> dict[str, Any]:
    """Load options: what is read is kept in the first tier of the configuration, so that it outlives the server."""
    return {"tier": config.tiers[0].kind, "tier_srv": config.tiers[0].name} if config.tiers else {}


def log_line(entry: Record) -> str:
    """One JSON object: what was asked, of which model, what it took."""
    fields = {
        "id": entry.id,
        "method": entry.method,
        "path": entry.path[:200],
        "status": entry.status,
        "s": round(entry.elapsed_s(), 4),
    }
    optional = {
        "model": entry.model[:200],
        "error": entry.error,
        "disconnected": entry.disconnected,
        "prompt_tokens": entry.prompt_tokens,
        "cached_tokens": entry.cached_tokens,
        "completion_tokens": entry.completion_tokens,
        **entry.too_long,
        "cache": entry.cache,
        "tier": entry.tier,
        "queued_s": round(entry.queued_s, 4),
        "load_s": round(entry.load_s, 4),
        "first_token_s": round(entry.first_token_s, 4),
    }
    return msgspec.json.encode(fields | {name: value for name, value in optional.items() if value}).decode()
