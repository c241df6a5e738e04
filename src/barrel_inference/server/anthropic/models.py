"""``/v1/models`` in Anthropic's form, for requests that bear its version header. Owns nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.errors import InvalidRequestError
from barrel_inference.server.anthropic import wire
from barrel_inference.server.anthropic.failure import failure
from barrel_inference.server.http.operation import Operation, count
from barrel_inference.server.http.streaming import JSON
from barrel_inference.server.neutral import ModelCard, Service

DEFAULT_LIMIT = 20
MAX_LIMIT = 1000


class Models:
    def __init__(self, service: Service) -> None:
        self._service = service

    def operations(self) -> list[Operation]:
        get = partial(Operation, "GET", failure=failure)
        query = ("limit", "before_id", "after_id", "lifecycle")
        return [
            get("/v1/models", self.list, "List the models", response=wire.Models, query=query),
            get("/v1/models/{model:path}", self.get, "Describe a model", response=wire.Model),
        ]

    async def list(self, request: Request) -> Response:
        asked = request.query_params
        stages = [*asked.getlist("lifecycle"), *asked.getlist("lifecycle[]")]
        listed = not stages or "active" in stages  # as all models here are
        cards = sorted(await self._service.models() if listed else [], key=lambda card: (-card.created, card.id))
        return Response(msgspec.json.encode(page([_model(card) for card in cards], asked)), media_type=JSON)

    async def get(self, request: Request) -> Response:
        card = await self._service.model(request.path_params["model"])
        return Response(msgspec.json.encode(_model(card)), media_type=JSON)


def page(models: list[wire.Model], asked: Mapping[str, str]) -> wire.Models:
    """The ``limit`` models behind ``after_id`` or before ``before_id``. Raises InvalidRequestError."""
    limit = count(asked.get("limit", str(DEFAULT_LIMIT)), most=MAX_LIMIT, option="limit")
    ids = [model.id for model in models]
    if (before := asked.get("before_id")) is not None:
        left = models[: _index(ids, before, "before_id")]
        shown, has_more = left[-limit:], len(left) > limit
    else:
        after = asked.get("after_id")
        left = models if after is None else models[_index(ids, after, "after_id") + 1 :]
        shown, has_more = left[:limit], len(left) > limit
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return wire.Models(data=shown, has_more=has_more, first_id=first, last_id=last)


def _index(ids: list[str], wanted: str, option: str) -> int:
    if wanted in ids:
        return ids.index(wanted)
    raise InvalidRequestError(f"{option}: no model {wanted[:120]!r}", option=option)


def _model(card: ModelCard) -> wire.Model:
    created = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
    return wire.Model(
        id=card.id, display_name=card.id, created_at=created, max_input_tokens=card.n_ctx, max_tokens=card.n_ctx
    )
