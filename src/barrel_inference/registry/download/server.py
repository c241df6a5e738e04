"""One remote file as a server offers it: where it is, which version, whether in ranges, and how often to ask again.
A Server owns the direct URL of the last redirect and the count of failures.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import aiohttp

from barrel_inference.config import RegistryOpts
from barrel_inference.errors import PullError
from barrel_inference.registry.download.network import Credential, Network, Sleep, TransientError, refusal
from barrel_inference.registry.download.part import Version

MAX_BACKOFF_S = 30.0
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

Renew = Callable[[aiohttp.ClientResponse], Awaitable[Credential | None]]
Result = TypeVar("Result")


class Remote(NamedTuple):
    """One file to fetch. ``digest`` and ``size`` as the source promises them, if it does."""

    url: str
    file_name: str
    digest: str | None = None
    size: int | None = None
    credential: Credential | None = None
    n_copies: int = 1  # how often its bytes will be on the disk at the same time
    renew: Renew | None = None  # another credential, from a 401: tokens live for minutes, downloads for hours


class Server:
    def __init__(self, network: Network, remote: Remote, options: RegistryOpts, sleep: Sleep) -> None:
        self._network, self._remote, self._options, self._sleep = network, remote, options, sleep
        self._direct: str | None = None
        self._credential = remote.credential
        self._failures = 0  # in a row, without a byte of progress

    async def probe(self) -> tuple[Version, bool]:
        """What the server has now and whether it serves ranges, by a request for one byte."""
        version, has_ranges = await self.patiently(self._probe)
        promised = self._remote.size
        if promised is not None and version.size not in (promised, None):
            raise PullError(f"{self._remote.file_name}: the server has {version.size} bytes, not {promised}")
        return version, has_ranges

    async def get(self, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Ask where the last redirect led; when that has expired, as signed URLs do, ask the source again."""
        if self._direct:
            response = await self._network.get(self._direct, headers=headers, credential=self._credential)
            if response.status in (200, 206, 416):
                return response
            response.release()
            self._direct = None
        response = await self._network.get(self._remote.url, headers=headers, credential=self._credential)
        if response.status == 401 and self._remote.renew and (fresh := await self._remote.renew(response)):
            response.release()
            self._credential = fresh
            response = await self._network.get(self._remote.url, headers=headers, credential=fresh)
        if str(response.url) != self._remote.url:
            self._direct = str(response.url)
        return response

    async def patiently(self, action: Callable[[], Awaitable[Result]], n_parallel: int = 1) -> Result:
        """Try again after what may pass, with growing pauses, as long as bytes arrive now and then.

        ``n_parallel`` callers do this at the same time; when the server is down they fail together.
        """
        while True:
            try:
                return await action()
            except TransientError as error:
                self._direct = None
                self._failures += 1
                await self._sleep(self._pause(error, n_parallel))

    def progressed(self) -> None:
        self._failures = 0

    def _pause(self, error: TransientError, n_parallel: int) -> float:
        rounds = -(-self._failures // n_parallel)
        if rounds >= self._options.max_attempts:
            message = f"{error.message}; gave up after {self._failures} attempts without progress"
            raise PullError(message, **error.details) from None
        return min(MAX_BACKOFF_S, 0.25 * 2**rounds) if error.retry_after is None else error.retry_after

    async def _probe(self) -> tuple[Version, bool]:
        async with await self.get({"Range": "bytes=0-0"}) as response:
            if response.status not in (200, 206, 416):
                raise await refusal(response)
            return self._version_of(response), response.status == 206

    def _version_of(self, response: aiohttp.ClientResponse) -> Version:
        match = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status == 206 and (match is None or (match[1], match[2]) != ("0", "0")):
            raise PullError(f"{response.url.host} answers ranges wrongly")
        size = int(match[3]) if match else (0 if response.status == 416 else response.content_length)
        return Version(size, _validator(response, "ETag"), _validator(response, "Last-Modified"), self._remote.digest)


def _validator(response: aiohttp.ClientResponse, header: str) -> str | None:
    """None also for one that cannot be remembered as text and sent back as it was."""
    value = response.headers.get(header)
    return value if value and value.isascii() and value.isprintable() else None
