"""JSON answers and failures outside of any dialect: ``{"error": text}``, the shape of everything below /api."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from barrel_inference.errors import BarrelError, ModelfileError
from barrel_inference.server import failures
from barrel_inference.server.http.streaming import JSON


class Failed(msgspec.Struct, omit_defaults=True):
    """``code``: where programs need to know more than the status tells, as of a Modelfile."""

    error: str
    code: str | None = None


def answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type=JSON)


def failed(error: BarrelError, words: str | None = None) -> Failed:
    return Failed(words or failures.public(error), error.code if isinstance(error, ModelfileError) else None)


def failure(error: BarrelError, words: str | None = None) -> Response:
    """503 where others say 429, as Ollama does."""
    status = failures.status(error)
    response = answer(failed(error, words), 503 if status == 429 else status)
    response.headers.update(failures.headers(error))
    return response
