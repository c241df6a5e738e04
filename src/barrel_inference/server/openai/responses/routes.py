"""``/v1/responses``. Owns the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.errors import BarrelError, InvalidRequestError, UnsupportedError
from barrel_inference.server.http import ids, record
from barrel_inference.server.http.operation import Operation, count, read
from barrel_inference.server.http.streaming import JSON, SSE, Answer, Stream, sse
from barrel_inference.server.neutral import ChatRequest, Service
from barrel_inference.server.openai.failure import failure
from barrel_inference.server.openai.responses import translate, wire
from barrel_inference.server.openai.responses.store import Store, Stored
from barrel_inference.server.openai.responses.stream import Writer
from barrel_inference.types import Message

PATH = "/v1/responses"
ONE = PATH + "/{response_id}"
SHOW = ("include", "stream", "starting_after", "include_obfuscation")  # what may be asked of one
LIST = ("limit", "order", "after", "include")  # and of its input


class Responses:
    def __init__(self, service: Service, keep_alive: bool) -> None:
        self._service = service
        self._keep_alive = keep_alive
        self._store = Store()

    def operations(self) -> list[Operation]:
        row = partial(Operation, failure=failure)
        body = wire.ResponseRequest
        return [
            row("POST", PATH, self.create, "Answer, and remember the answer", body, wire.Response, wire.StreamEvent),
            row(
                "POST",
                PATH + "/input_tokens",
                self.input_tokens,
                "Count the tokens of a request",
                body,
                wire.InputTokens,
            ),
            row("GET", ONE, self.retrieve, "A remembered response", response=wire.Response, query=SHOW),
            row("DELETE", ONE, self.delete, "Forget a response", response=wire.Deleted),
            row("POST", ONE + "/cancel", self.cancel, "Cancel a background response"),
            row("GET", ONE + "/input_items", self.input_items, "Its input", response=wire.Items, query=LIST),
        ]

    async def create(self, request: Request) -> Response:
        body = await read(request, wire.ResponseRequest)
        asked, history = self._asked(body)
        tools = translate.tools_of(body)
        record.current().ignored += tools.unheeded
        writer = Writer(body, tools)

        async def events() -> AsyncGenerator[wire.StreamEvent, None]:
            async with aclosing(self._service.chat(asked)) as pieces:
                begun = False
                async for piece in pieces:
                    for event in () if begun else writer.begin():
                        yield event
                    begun = True
                    for event in writer.take(piece):
                        yield event
            self._keep(body, writer.response, history)

        def last_words(error: BarrelError) -> bytes:
            return b"".join(map(_piece, writer.failed(error)))

        if body.stream:
            return Stream(_encoded(events()), media_type=SSE, last_words=last_words, failure=failure)
        return Answer(_whole(events(), writer), failure=failure)

    async def input_tokens(self, request: Request) -> Response:
        body = await read(request, wire.ResponseRequest)
        count = await self._service.count_tokens(self._asked(body)[0])
        return _json(wire.InputTokens(input_tokens=count))

    async def retrieve(self, request: Request) -> Response:
        if request.query_params.get("stream") in ("true", "1"):
            raise UnsupportedError("stream: a remembered response comes whole", option="stream")
        return _json(self._stored(request).response)

    async def delete(self, request: Request) -> Response:
        stored = self._stored(request)
        self._store.delete(stored.response.id)
        return _json(wire.Deleted(id=stored.response.id))

    async def cancel(self, request: Request) -> Response:
        self._stored(request)
        raise InvalidRequestError("only background responses can be cancelled", option="response_id")

    async def input_items(self, request: Request) -> Response:
        return _json(page(self._stored(request).items, request.query_params))

    def _asked(self, body: wire.ResponseRequest) -> tuple[ChatRequest, Sequence[Message]]:
        before = self._store.previous(body.previous_response_id).messages if body.previous_response_id else ()
        return translate.request(body, before, keep_alive=self._keep_alive), before

    def _keep(self, body: wire.ResponseRequest, response: wire.Response, history: Sequence[Message]) -> None:
        if body.store is False:
            return
        items = [_identified(item) for item in translate.items(body)]
        output = [msgspec.to_builtins(item) for item in response.output]
        self._store.put(Stored(response, items, (*history, *translate.messages([*items, *output]))))

    def _stored(self, request: Request) -> Stored:
        return self._store.get(request.path_params["response_id"])


def page(items: Sequence[dict[str, Any]], asked: Mapping[str, str]) -> wire.Items:
    """The ``limit`` items behind ``after``, the newest first unless ``order`` is "asc". Raises InvalidRequestError."""
    limit = count(asked.get("limit", "20"), most=100, option="limit")
    order, after = asked.get("order", "desc"), asked.get("after")
    if order not in ("asc", "desc"):
        raise InvalidRequestError("order must be asc or desc", option="order")
    left = list(items) if order == "asc" else list(items[::-1])
    if after is not None:
        known = [item["id"] for item in left]
        if after not in known:
            raise InvalidRequestError(f"after: there is no item {after[:120]!r}", option="after")
        left = left[known.index(after) + 1 :]
    shown = left[:limit]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return wire.Items(data=shown, first_id=first, last_id=last, has_more=len(left) > len(shown))


def _identified(item: dict[str, Any]) -> dict[str, Any]:
    """As it is given out again: with an id and a type, a text as a list of parts."""
    found = {"type": "message", **item, "id": item.get("id") or ids.new("msg_")}
    if found["type"] == "message" and isinstance(found.get("content"), str):
        part = {"type": "input_text", "text": found["content"]}
        if found.get("role") == "assistant":
            part |= {"type": "output_text", "annotations": []}
        found["content"] = [part]
    return found


async def _encoded(events: AsyncGenerator[wire.StreamEvent, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            yield _piece(event)


async def _whole(events: AsyncGenerator[wire.StreamEvent, None], writer: Writer) -> bytes:
    async with aclosing(events):
        async for _ in events:
            pass
    return msgspec.json.encode(writer.response)


def _piece(event: Any) -> bytes:
    return sse(msgspec.json.encode(event), event.__struct_config__.tag)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
