"""Asks questions over HTTP and says how each ended. Owns nothing; the session is its caller's."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from tests.soak.dialects import Dialect, Question

PATIENCE_S = 240.0  # then a request counts as unanswered
RETRY_STATUSES = (429, 503)  # busy, or the worker died twice or while loading: typed, with the time to try again

# whole: to its end. left: we went before that. refused: a typed error that says to try again.
# wrong: an answer that no client could use. unanswered: nothing, or no end of it.
Outcome = Literal["whole", "left", "refused", "wrong", "unanswered"]


@dataclass(frozen=True)
class Reply:
    outcome: Outcome
    text: str = ""
    detail: str = ""


class Asker:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def ask(self, question: Question, dialect: Dialect, *, stream: bool, leave_after: int | None = None) -> Reply:
        """``leave_after``: so many lines of a stream, then the client is gone."""
        body = {**dialect.body(question), "stream": stream}
        try:
            async with asyncio.timeout(PATIENCE_S), self._session.post(self._url + dialect.path, json=body) as response:
                if response.status != 200:
                    return await _refusal(response, dialect)
                if not stream:
                    return Reply("whole", dialect.text(await response.json()))
                return await _streamed(response, dialect, leave_after)
        except (TimeoutError, aiohttp.ClientError) as error:
            return Reply("unanswered", detail=f"{dialect.name}: {error!r}")
        except (KeyError, ValueError, TypeError) as error:
            return Reply("wrong", detail=f"{dialect.name}: {error!r}")

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON (None without one) of an operator's request. Raises TimeoutError, ClientError."""
        async with (
            asyncio.timeout(PATIENCE_S),
            self._session.request(method, self._url + path, json=body) as response,
        ):
            data = await response.read()
            return response.status, json.loads(data) if data.startswith((b"{", b"[")) else None

    async def begin(self, path: str, body: Any, n_lines: int) -> None:
        """Ask for a stream and leave after so many lines."""
        async with asyncio.timeout(PATIENCE_S), self._session.post(self._url + path, json=body) as response:
            for _ in range(n_lines):
                await response.content.readline()
            response.close()


async def _refusal(response: aiohttp.ClientResponse, dialect: Dialect) -> Reply:
    detail = f"{dialect.name} {response.status}: {dialect.error(await response.json())}"
    typed = response.status in RETRY_STATUSES and "Retry-After" in response.headers
    return Reply("refused" if typed else "wrong", detail=detail)


async def _streamed(response: aiohttp.ClientResponse, dialect: Dialect, leave_after: int | None) -> Reply:
    text, n_lines = "", 0
    async for line in response.content:
        if not line.strip():
            continue
        piece = dialect.piece(line.strip())
        text += piece.text
        n_lines += 1
        if piece.error:
            return Reply("refused", text, f"{dialect.name} stream: {piece.error}")
        if piece.end:
            return Reply("whole", text)
        if n_lines == leave_after:
            response.close()
            return Reply("left", text)
    return Reply("unanswered", text, f"{dialect.name}: the stream ended without its end")
