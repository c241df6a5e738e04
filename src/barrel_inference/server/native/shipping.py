"""``/api/cache/export`` and ``/api/cache/import``: a warmed prompt as a file, from here and to here.

Owns the threads that move the bytes; a file under way is in a directory of its own that ends with the request.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.aio.cache import AsyncCache
from barrel_inference.server.failures import TooLargeError
from barrel_inference.server.http import plain
from barrel_inference.server.http.middleware import discard
from barrel_inference.server.http.operation import Operation, read
from barrel_inference.server.http.streaming import BYTES, Download
from barrel_inference.server.native import wire
from barrel_inference.server.native.models import prompt_of
from barrel_inference.server.service import PLAIN, ModelService
from barrel_inference.threads import Threads

ROOM_FOR_HEADS = 1 << 20  # of an archive, beside what the tier may hold


class Shipping:
    """``tier``: where imports go that do not say; None: the automatic one."""

    def __init__(self, service: ModelService, cache: AsyncCache, tier: str | None) -> None:
        self._service = service
        self._cache = cache
        self._tier = tier
        self._threads = Threads(2, "shipping")

    def operations(self) -> list[Operation]:
        row = partial(Operation, "POST", failure=plain.failure)
        return [
            row("/api/cache/export", self.export, "A prompt's KV as a file", wire.PromptRequest, media=BYTES),
            row(
                "/api/cache/import",
                self.import_,
                "Take what export gave",
                response=wire.Imported,
                takes=BYTES,
                query=("tier",),
            ),
        ]

    async def export(self, request: Request) -> Response:
        body = await read(request, wire.PromptRequest)
        prompt = prompt_of(body)

        async def work() -> tuple[BinaryIO, tuple[bytes, bytes]]:
            with tempfile.TemporaryDirectory(prefix="barrel-export-") as folder:
                file = Path(folder) / "archive"
                async with self._service.lease(body.model, PLAIN, body.keep_alive) as lease:
                    moved = await self._cache.export(lease.model.id, await prompt(lease), file)
                return file.open("rb"), (wire.EXPORTED.encode(), msgspec.json.encode(moved))  # it outlives its name

        return Download(work(), self._threads, failure=plain.failure)

    async def import_(self, request: Request) -> Response:
        tier = request.query_params.get("tier") or self._tier
        most = self._cache.quota_bytes(tier) + ROOM_FOR_HEADS
        with tempfile.TemporaryDirectory(prefix="barrel-import-") as folder:
            file = Path(folder) / "archive"
            await self._receive(request, file, most)
            moved = await self._cache.import_(file, tier=tier)
        return plain.answer(msgspec.convert(moved, wire.Imported, from_attributes=True))

    async def _receive(self, request: Request, file: Path, most: int) -> None:
        """Raises TooLargeError as soon as it is known that there is more than ``most`` bytes."""
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            if "expect" not in request.headers:  # else nothing comes before we ask for it
                await discard(request.receive)
            raise _too_large(most)
        n_bytes = 0
        with file.open("xb") as out:
            async for block in request.stream():
                n_bytes += len(block)
                if n_bytes > most:
                    await discard(request.receive)
                    raise _too_large(most)
                await self._threads.run(out.write, block)


def _too_large(most: int) -> TooLargeError:
    return TooLargeError(f"the archive is larger than {most} bytes, which is what the tier may hold", limit=most)
