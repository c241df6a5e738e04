"""JSON answers and failures outside of any dialect: ``{"error": text}``, the shape of everything below /api."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from barrel_inference.errors import BarrelError
from barrel_inference.server import failures
from barrel_inference.server.http.streaming import JSON


class Failed(msgspec.Struct):
    error: str


def answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type=JSON)


def failure(error: BarrelError, words: str | None = None) -> Response:
    """503 where others say 429, as Ollama does."""
    status = failures.status(error)
    response = answer(Failed(words or failures.public(error)), 503 if status == 429 else status)
    response.headers.update(failures.headers(error))
    return response
