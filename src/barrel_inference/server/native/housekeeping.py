"""``/api/edit``, ``/api/gc`` and ``/api/search``: the registry's own. Owns nothing."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.registry import Registry
from barrel_inference.registry.modelfile import cap_note
from barrel_inference.server.http import plain
from barrel_inference.server.http.operation import Operation, count, read
from barrel_inference.server.http.plain import answer
from barrel_inference.server.native import wire

MAX_RESULTS = 100


class Housekeeping:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def operations(self) -> list[Operation]:
        row = partial(Operation, failure=plain.failure)
        return [
            row("POST", "/api/edit", self.edit, "Change a model's parameters", wire.EditRequest, wire.Edited),
            row("POST", "/api/gc", self.gc, "Remove what no model uses", wire.GcRequest, wire.Collected),
            row("GET", "/api/search", self.search, "Find models to pull", response=wire.Found, query=("q", "limit")),
        ]

    async def edit(self, request: Request) -> Response:
        body = await read(request, wire.EditRequest)
        manifest = await self._registry.aside(
            self._registry.edit,
            body.model,
            parameters=body.parameters,
            unset=body.unset,
            system=body.system,
            template=body.template,
        )
        note = cap_note(body.parameters, self._registry.options.max_context_size)
        return answer(wire.Edited(str(manifest.model_name), manifest.parameters, note))

    async def gc(self, request: Request) -> Response:
        body = await read(request, wire.GcRequest, empty=b"{}")
        removed = await self._registry.aside(self._registry.gc, dry_run=body.dry_run)
        garbage = [wire.Garbage(each.kind, each.name, each.freed_bytes) for each in removed]
        freed = sum(each.freed_bytes for each in garbage)
        return answer(wire.Collected(garbage, freed, body.dry_run))

    async def search(self, request: Request) -> Response:
        limit = count(request.query_params.get("limit", "20"), most=MAX_RESULTS, option="limit")
        found = await self._registry.search(request.query_params.get("q", "")[:200], limit=limit)
        return answer(wire.Found(list(found)))
