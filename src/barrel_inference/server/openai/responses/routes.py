"""``/v1/responses``. Owns the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.errors import BarrelError, InvalidRequestError
from barrel_inference.server.http import ids
from barrel_inference.server.http.operation import Operation, read
from barrel_inference.server.http.streaming import JSON, SSE, Answer, Stream, noted, sse
from barrel_inference.server.neutral import ChatRequest, Service
from barrel_inference.server.openai.failure import failure
from barrel_inference.server.openai.responses import translate, wire
from barrel_inference.server.openai.responses.store import Store, Stored
from barrel_inference.server.openai.responses.stream import Writer
from barrel_inference.types import Message

PATH = "/v1/responses"
ONE = PATH + "/{response_id}"


class Responses:
    def __init__(self, service: Service, keep_alive: bool) -> None:
        self._service = service
        self._keep_alive = keep_alive
        self._store = Store()

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                PATH,
                self.create,
                failure,
                "Answer, and remember the answer",
                request=wire.ResponseRequest,
                response=wire.Response,
                stream=wire.StreamEvent,
            ),
            Operation(
                "POST",
                PATH + "/input_tokens",
                self.input_tokens,
                failure,
                "Count the tokens of a request",
                request=wire.ResponseRequest,
                response=wire.InputTokens,
            ),
            Operation("GET", ONE, self.retrieve, failure, "A remembered response", response=wire.Response),
            Operation("DELETE", ONE, self.delete, failure, "Forget a response", response=wire.Deleted),
            Operation("POST", ONE + "/cancel", self.cancel, failure, "Cancel a background response"),
            Operation("GET", ONE + "/input_items", self.input_items, failure, "Its input", response=wire.Items),
        ]

    async def create(self, request: Request) -> Response:
        body = await read(request, wire.ResponseRequest)
        asked, history = self._asked(body)
        writer = Writer(body)

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

        if body.stream:
            return Stream(_encoded(events()), media_type=SSE, last_words=_last_words(writer), failure=failure)
        return Answer(_whole(events(), writer), failure=failure)

    async def input_tokens(self, request: Request) -> Response:
        body = await read(request, wire.ResponseRequest)
        count = await self._service.count_tokens(self._asked(body)[0])
        return _json(wire.InputTokens(input_tokens=count))

    async def retrieve(self, request: Request) -> Response:
        return _json(self._stored(request).response)

    async def delete(self, request: Request) -> Response:
        stored = self._stored(request)
        self._store.delete(stored.response.id)
        return _json(wire.Deleted(id=stored.response.id))

    async def cancel(self, request: Request) -> Response:
        self._stored(request)
        raise InvalidRequestError("only background responses can be cancelled", option="response_id")

    async def input_items(self, request: Request) -> Response:
        items = self._stored(request).items
        first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
        return _json(wire.Items(data=items[::-1], first_id=last, last_id=first))

    def _asked(self, body: wire.ResponseRequest) -> tuple[ChatRequest, Sequence[Message]]:
        before = self._store.get(body.previous_response_id).messages if body.previous_response_id else ()
        return translate.request(body, before, keep_alive=self._keep_alive), before

    def _keep(self, body: wire.ResponseRequest, response: wire.Response, history: Sequence[Message]) -> None:
        if body.store is False:
            return
        items = [_identified(item) for item in translate.items(body)]
        output = [msgspec.to_builtins(item) for item in response.output]
        self._store.put(Stored(response, items, (*history, *translate.messages([*items, *output]))))

    def _stored(self, request: Request) -> Stored:
        return self._store.get(request.path_params["response_id"])


def _identified(item: dict[str, Any]) -> dict[str, Any]:
    return {"id": ids.new("msg_"), "type": "message", **item}


async def _encoded(events: AsyncGenerator[wire.StreamEvent, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            yield _piece(event)


async def _whole(events: AsyncGenerator[wire.StreamEvent, None], writer: Writer) -> bytes:
    async with aclosing(events):
        async for _ in events:
            pass
    return msgspec.json.encode(writer.response)


def _last_words(writer: Writer) -> Any:
    def words(error: BarrelError) -> bytes:
        return b"".join(_piece(event) for event in writer.failed(noted(error)))

    return words


def _piece(event: Any) -> bytes:
    return sse(msgspec.json.encode(event), event.__struct_config__.tag)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
