"""``/api/pull``, ``/api/push``, ``/api/create``, ``/api/copy``, ``/api/delete`` and ``/api/blobs``. Owns nothing; the
registry is asked on threads of its own where it may wait for the disk."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.errors import DirectiveError, InvalidNameError, UnsupportedError
from barrel_inference.registry import Registry
from barrel_inference.registry.names import parse_digest, parse_name, parse_spec, tagged
from barrel_inference.server.http import record
from barrel_inference.server.http.operation import Operation, read
from barrel_inference.server.http.streaming import BYTES, NDJSON, Answer, Stream, ndjson
from barrel_inference.server.models import based
from barrel_inference.server.ollama import wire
from barrel_inference.server.ollama.failure import copy_failure, failure, line
from barrel_inference.server.ollama.listing import model_name

if TYPE_CHECKING:
    from barrel_inference.registry.create import CreateRequest, Known

Events = AsyncGenerator[dict[str, Any], None]


class Installing:
    """``configured``: ``server.models``, whose names no registry is asked for. ``local_files``: whether specs may name
    files of this machine: only while its own users alone can ask."""

    def __init__(self, registry: Registry, configured: Mapping[str, Mapping[str, Any]], *, local_files: bool) -> None:
        self._registry = registry
        self._configured = frozenset(map(tagged, configured))
        self._known = based.configured(configured)
        self._local_files = local_files

    def operations(self) -> list[Operation]:
        row = partial(Operation, failure=failure)
        asked, told = wire.TransferRequest, wire.Progress
        return [
            row("POST", "/api/pull", self.pull, "Download a model", asked, told, told),
            row("POST", "/api/push", self.push, "Refused: pushing is not supported", asked),
            row("POST", "/api/create", self.create, "Make a model", wire.CreateRequest, told, told),
            row("POST", "/api/copy", self.copy, "Give a second name", wire.CopyRequest, failure=copy_failure),
            row("DELETE", "/api/delete", self.delete, "Remove a name", wire.Named),
            row("HEAD", "/api/blobs/{digest:path}", self.has_blob, "Whether a blob is here"),
            row("POST", "/api/blobs/{digest:path}", self.receive_blob, "Upload a blob", also={201: None}, takes=BYTES),
        ]

    async def pull(self, request: Request) -> Response:
        body = await read(request, wire.TransferRequest)
        name = model_name(body)
        check_source(name, local_files=self._local_files)
        record.current().model = name.partition("?")[0]  # a signed URL is a secret
        if tagged(name) in self._configured:
            return _progress(_nothing_to_do(), body.stream)
        own_name = body.name if body.model and body.name != body.model else None  # ours: what to call it here
        return _progress(self._registry.pull(name, name=own_name, insecure=bool(body.insecure)), body.stream)

    async def push(self, request: Request) -> Response:
        await read(request, wire.TransferRequest)
        raise UnsupportedError("pushing models is not supported: this server cannot upload to a registry")

    async def create(self, request: Request) -> Response:
        body = await read(request, wire.CreateRequest)
        name = model_name(body)
        parse_name(name)
        record.current().model = name
        return _progress(self._registry.create(name, create_request(body, self._known)), body.stream)

    async def copy(self, request: Request) -> Response:
        body = await read(request, wire.CopyRequest)
        for what, name in (("source", body.source), ("destination", body.destination)):
            _check_name(name, f'{what} "{name[:120]}" is invalid')
        await self._registry.aside(self._registry.copy, body.source, body.destination)
        return Response()

    async def delete(self, request: Request) -> Response:
        body = await read(request, wire.Named)
        name = model_name(body, 'name "" is invalid')
        _check_name(name, f'name "{name[:120]}" is invalid')
        await self._registry.aside(self._registry.remove, name)
        return Response()

    async def has_blob(self, request: Request) -> Response:
        digest = parse_digest(request.path_params["digest"])
        return Response(status_code=200 if await self._registry.aside(self._registry.has_blob, digest) else 404)

    async def receive_blob(self, request: Request) -> Response:
        created = await self._registry.receive_blob(request.path_params["digest"], request.stream())
        return Response(status_code=201 if created else 200)


async def _nothing_to_do() -> Events:
    yield {"status": "success"}


def check_source(spec: str, *, local_files: bool) -> None:
    """Of a pull, whoever asks for it. Raises InvalidNameError."""
    if parse_spec(spec).scheme == "file" and not local_files:
        raise InvalidNameError("invalid model name: files are pulled on the machine of the server only")


def create_request(body: wire.CreateRequest, known: Callable[[str], Known | None]) -> CreateRequest:
    """Raises DirectiveError for a field that would make another model than we can."""
    from barrel_inference.registry.create import CreateRequest  # brings the HTTP client, half of the time to start

    for name in wire.NOT_CREATED:
        if getattr(body, name):
            raise DirectiveError(f"{name}: not supported by this server", directive=name)
    given: dict[str, Any] = {
        "modelfile": body.modelfile or None,
        "from_": body.from_,
        "files": body.files,
        "adapters": body.adapters,
        "template": body.template,
        "system": body.system,
        "license": body.license,
        "parameters": body.parameters,
        "messages": body.messages,
        "quantize": body.quantize or body.quantization,
    }
    return CreateRequest(**{name: value for name, value in given.items() if value is not None}, known=known)


def _check_name(name: str, words: str) -> None:
    try:
        parse_name(name)
    except InvalidNameError:
        raise InvalidNameError(words, name=name[:120]) from None


def _progress(events: Events, stream: bool | None) -> Response:
    """As lines, or the last one as the whole answer."""
    if stream is False:
        return Answer(_last(events), failure=failure)
    return Stream(ndjson(events), media_type=NDJSON, last_words=line, failure=failure)


async def _last(events: Events) -> bytes:
    last: dict[str, Any] = {"status": "success"}
    async with aclosing(events):
        async for event in events:
            last = event
    return msgspec.json.encode(last)
