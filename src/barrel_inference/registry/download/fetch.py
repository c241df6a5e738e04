"""``fetch``: one remote file into one Part, hashed, whatever happens on the way. A Fetch owns the tasks of one
download; the Part owns the files.

Pieces are fetched in order by several connections, so that the front of the file, which is hashed meanwhile, is never
far behind the rest.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import aiohttp

from barrel_inference.config import RegistryOpts
from barrel_inference.errors import PullError
from barrel_inference.registry.blobs import require_digest
from barrel_inference.registry.download.hasher import Hasher
from barrel_inference.registry.download.network import Network, Sleep, TransientError, refusal, transient
from barrel_inference.registry.download.part import Part, Piece, Version
from barrel_inference.registry.download.rate import Rate
from barrel_inference.registry.download.server import CONTENT_RANGE, Remote, Server
from barrel_inference.threads import alone

SYNC_EVERY_S = 2.0
MAX_RESTARTS = 8

OnProgress = Callable[[int, int | None], None]  # completed, total


class _Restart(Exception):  # noqa: N818 - a signal, not an error
    """The server's file is not the one that was begun."""


async def fetch(
    network: Network,
    remote: Remote,
    part: Part,
    options: RegistryOpts,
    on_progress: OnProgress,
    sleep: Sleep = asyncio.sleep,
) -> tuple[str, Version]:
    """Complete ``part``, check it against the promised digest, sync it; returns the digest and the server's version.

    On failure or cancellation the part stays for the next try, except that a wrong digest discards it.
    """
    return await _Fetch(network, remote, part, options, on_progress, sleep).run()


class _Fetch:
    def __init__(
        self, network: Network, remote: Remote, part: Part, options: RegistryOpts, on_progress: OnProgress, sleep: Sleep
    ) -> None:
        self._remote, self._part, self._options, self._on_progress = remote, part, options, on_progress
        self._server = Server(network, remote, options, sleep)
        self._rate = Rate(options.max_bytes_per_s, sleep)
        self._version, self._has_ranges = Version(remote.size), False
        self._hasher = Hasher(part.path)
        self._reader = ThreadPoolExecutor(1, "part-hash")  # the hasher's, from the first byte to the last
        self._writer = ThreadPoolExecutor(1, "part-write")  # keeps the order of writes
        self._syncer = ThreadPoolExecutor(1, "part-sync")  # an fsync may take seconds, writing goes on

    async def run(self) -> tuple[str, Version]:
        try:
            for _ in range(MAX_RESTARTS):
                try:
                    return await self._attempt(), self._version
                except _Restart:
                    self._part.restart(Version(None))
            raise PullError(f"{self._remote.file_name} keeps changing on the server")
        finally:
            # a thread that still works on the part would do so after its descriptors are closed
            await asyncio.shield(alone(self._shut_threads))

    def _shut_threads(self) -> None:
        for threads in (self._reader, self._writer, self._syncer):
            threads.shutdown(wait=True)

    async def _attempt(self) -> str:
        self._version, self._has_ranges = await self._server.probe()
        self._part.begin(self._version, ranges=self._has_ranges)
        if self._version.size is not None:
            self._part.require_room(self._version.size * self._remote.n_copies)
        self._report()
        digest = await self._transfer()
        if self._remote.digest and digest != self._remote.digest:
            self._part.discard()
            require_digest(self._remote.digest, digest)
        await asyncio.get_running_loop().run_in_executor(self._syncer, self._part.sync)
        return digest

    # ---- the transfer

    async def _transfer(self) -> str:
        self._hasher = Hasher(self._part.path)
        hashing = asyncio.get_running_loop().run_in_executor(self._reader, self._hasher.run)
        pending = [piece for piece in reversed(self._part.pieces) if not piece.is_done]
        self._hasher.advance(self._part.frontier)
        try:
            async with asyncio.TaskGroup() as group:
                syncing = group.create_task(self._sync_often())
                n_workers = min(self._options.connections, len(pending))
                workers = [group.create_task(self._work(pending, n_workers)) for _ in range(n_workers)]
                if workers:
                    await asyncio.wait(workers)
                syncing.cancel()
        except BaseExceptionGroup as errors:
            self._hasher.end(-1)
            await asyncio.wait([hashing])
            raise errors.exceptions[0] from None
        except BaseException:
            self._hasher.end(-1)
            raise
        self._hasher.end(self._part.completed)
        return await hashing

    async def _work(self, pending: list[Piece], n_workers: int) -> None:
        while pending:
            piece = pending.pop()
            while not piece.is_done:
                await self._server.patiently(functools.partial(self._fetch_piece, piece), n_workers)

    async def _fetch_piece(self, piece: Piece) -> None:
        if piece.written and not self._has_ranges:
            raise _Restart  # what has been hashed cannot be taken back
        async with await self._server.get(self._range_headers(piece)) as response:
            await self._check_answer(response, piece)
            await self._receive(response, piece)

    def _range_headers(self, piece: Piece) -> dict[str, str]:
        if not self._has_ranges:
            return {}
        headers = {"Range": f"bytes={piece.start + piece.written}-{piece.start + piece.length - 1}"}
        if self._version.if_range:
            headers["If-Range"] = self._version.if_range
        return headers

    async def _check_answer(self, response: aiohttp.ClientResponse, piece: Piece) -> None:
        if response.status == 416 or (response.status == 200 and self._has_ranges):
            raise _Restart  # the file has changed, or this server ignores ranges after all
        if response.status not in (200, 206):
            raise await refusal(response)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise PullError(f"{response.url.host} encodes the content, although asked not to")
        if response.status == 206:
            match = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            first, last = piece.start + piece.written, piece.start + piece.length - 1
            right = match is not None and (int(match[1]), int(match[2])) == (first, last)
            if match is None or not right or response.content_length not in (None, last - first + 1):
                raise TransientError(f"{response.url.host} answers another range than the one asked for")
            if int(match[3]) != self._version.size:
                raise _Restart
        elif self._version.size is not None and response.content_length not in (None, self._version.size):
            raise _Restart

    async def _receive(self, response: aiohttp.ClientResponse, piece: Piece) -> None:
        loop = asyncio.get_running_loop()
        try:
            async for data in response.content.iter_any():
                if piece.written + len(data) > piece.length:
                    raise TransientError(f"{response.url.host} sends more than was asked for")
                await loop.run_in_executor(self._writer, self._part.write, piece, data)
                self._server.progressed()
                self._report()
                await self._rate.spend(len(data))
                if piece.is_done:
                    return
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise transient(error, str(response.url)) from None
        if self._version.size is None:
            self._part.end_at_written()
        elif not piece.is_done:
            raise TransientError(f"{response.url.host} ends the connection early")

    async def _sync_often(self) -> None:
        while True:
            await asyncio.sleep(SYNC_EVERY_S)
            await asyncio.get_running_loop().run_in_executor(self._syncer, self._part.sync)

    def _report(self) -> None:
        self._hasher.advance(self._part.frontier)
        self._on_progress(self._part.completed, self._version.size)
