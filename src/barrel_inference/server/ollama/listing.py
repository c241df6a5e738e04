"""``/``, ``/api/version``, ``/api/tags``, ``/api/ps`` and ``/api/show``: what there is. Owns nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from barrel_inference.errors import InvalidModelError, InvalidNameError
from barrel_inference.registry import gguf
from barrel_inference.registry.modelfile import Modelfile, render
from barrel_inference.registry.modelfile.parameters import parameter_lines
from barrel_inference.server.http.operation import Operation, read
from barrel_inference.server.http.plain import answer
from barrel_inference.server.models.catalog import Catalog, Entry, damaged, digest
from barrel_inference.server.models.pool import Pool
from barrel_inference.server.models.slot import Slot
from barrel_inference.server.ollama import wire
from barrel_inference.server.ollama.failure import failure
from barrel_inference.server.ollama.pieces import timestamp, utc_now

OLLAMA_VERSION = "0.33.0"  # the API that this is; clients compare it with what they need
FOREVER_YEARS = 200  # Ollama's clients call more than a hundred years for ever
SHORT_ARRAY = 5
WHOLE_ARRAY = 1 << 20  # vocabularies too
_HIDDEN = ("general.name", "tokenizer.chat_template")


class Listing:
    def __init__(self, catalog: Catalog, pool: Pool) -> None:
        self._catalog = catalog
        self._pool = pool

    def operations(self) -> list[Operation]:
        def get(*row: Any, **more: Any) -> list[Operation]:
            return [Operation(method, *row, failure=failure, **more) for method in ("GET", "HEAD")]

        return [
            *get("/", self.root, "Say that the server runs", media="text/plain", open=True),
            *get("/api/version", self.version, "Versions", response=wire.Version, open=True),
            *get("/api/tags", self.tags, "List the models that are installed", response=wire.Tags),
            *get("/api/ps", self.ps, "List the models that are loaded", response=wire.Processes),
            Operation(
                "POST", "/api/show", self.show, "Describe a model", wire.ShowRequest, wire.Shower, failure=failure
            ),
        ]

    async def root(self, request: Request) -> Response:
        return PlainTextResponse("Ollama is running")

    async def version(self, request: Request) -> Response:
        return answer(wire.Version(OLLAMA_VERSION, version("barrel-inference")))

    async def tags(self, request: Request) -> Response:
        return answer(wire.Tags([_listed(entry) for entry in self._catalog.list()]))

    async def ps(self, request: Request) -> Response:
        now = utc_now()
        models: dict[tuple[str, str], list[Slot]] = {}
        for slot in self._pool.loaded():
            models.setdefault((slot.entry.name, digest(slot.entry)), []).append(slot)
        return answer(wire.Processes([_running(slots, now) for slots in models.values()]))

    async def show(self, request: Request) -> Response:
        body = await read(request, wire.ShowRequest)
        entry = self._catalog.resolve(model_name(body, "model is required"))
        try:
            longest = WHOLE_ARRAY if body.verbose else gguf.MAX_ARRAY
            info = None if entry.path is None else await asyncio.to_thread(gguf.read, entry.path, max_array=longest)
        except InvalidModelError as error:
            raise damaged(entry, error) from None
        shown = _shown(entry, body, info)
        if request.headers.get("user-agent", "").startswith("GitHubCopilotChat/"):
            shown.model_info["general.basename"] = model_name(body)
        return answer(shown)


def model_name(request: wire.Named, error: str = "invalid model name") -> str:
    name = request.model or request.name
    if not name:
        raise InvalidNameError(error)
    return name


def details(entry: Entry) -> wire.Details:
    return wire.Details(
        parent_model=entry.parent,
        format=entry.format,
        family=entry.family,
        families=[entry.family] if entry.family else [],
        parameter_size=entry.parameter_size,
        quantization_level=entry.quantization.upper(),
        context_length=entry.context_size or UNSET,
        embedding_length=entry.embedding_length or UNSET,
    )


def _listed(entry: Entry) -> wire.Listed:
    return wire.Listed(
        name=entry.name,
        model=entry.name,
        modified_at=entry.modified_at,
        size=entry.size_bytes,
        digest=digest(entry),
        details=details(entry),
        capabilities=list(entry.capabilities),
    )


def _running(slots: Sequence[Slot], now: datetime) -> wire.Running:
    """One model, which may be loaded twice: for chats and for embeddings. The longest remaining first."""
    slot, left_s = slots[0], slots[0].keep.left_s()
    held = left_s == math.inf
    ends = now + (timedelta(days=365 * FOREVER_YEARS) if held else timedelta(seconds=left_s))
    return wire.Running(
        name=slot.entry.name,
        names=sorted(set().union(*(each.names for each in slots))),
        model=slot.entry.name,
        size=sum(each.bytes for each in slots),
        digest=digest(slot.entry),
        details=details(slot.entry),
        expires_at=timestamp(ends),
        size_vram=sum(map(_on_gpu, slots)),
        context_length=max(each.n_ctx for each in slots),
        until="never" if held else ends.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        active=sum(each.gate.running for each in slots),
        queued=sum(each.gate.waiting for each in slots),
    )


def _on_gpu(slot: Slot) -> int:
    """Bytes, as the layers that the worker says to have there: what was asked for may be more than this build can."""
    info = None if slot.model is None else slot.model.info()
    if info is None or not info.n_gpu_layers:
        return 0
    return slot.bytes * info.n_gpu_layers // (info.n_layer + 1)


def _shown(entry: Entry, body: wire.ShowRequest, info: gguf.GgufInfo | None) -> wire.Shower:
    metadata = {} if info is None else _model_info(info, verbose=bool(body.verbose))
    shown = wire.Shower(
        modelfile=modelfile(entry),
        parameters=parameter_lines(entry.parameters),
        template=body.template or entry.template or entry.chat_template or "",
        details=details(entry),
        model_info=metadata,
        capabilities=list(entry.capabilities),
        modified_at=entry.modified_at,
        license="\n".join(entry.license) or UNSET,
        system=body.system or entry.system or UNSET,
        messages=list(entry.messages) or UNSET,
    )
    if body.verbose and info is not None:
        shown.tensors = [{"name": t.name, "type": t.type.upper(), "shape": list(t.shape)} for t in info.tensors]
    return shown


def _model_info(info: gguf.GgufInfo, *, verbose: bool) -> dict[str, Any]:
    """The file's metadata; long arrays are left empty unless ``verbose``, as in Ollama."""
    shown: dict[str, Any] = {}
    for key, value in info.metadata.items():
        if key in _HIDDEN:
            continue
        too_long = isinstance(value, gguf.Skipped) or (isinstance(value, list) and len(value) > SHORT_ARRAY)
        shown[key] = None if isinstance(value, gguf.Skipped) or (too_long and not verbose) else value
    return shown | {"general.parameter_count": info.n_params}


def modelfile(entry: Entry) -> str:
    """What would make this model again, by name: no path of this machine is told."""
    described = Modelfile(
        sources=(entry.name,),
        parameters=entry.parameters,
        system=entry.system,
        template=entry.template,
        messages=entry.messages,
        license=entry.license,
    )
    return f"# Modelfile of {entry.name}\n{render(described)}"
