"""Two dialects on one path."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from barrel_inference.errors import BarrelError, InvalidRequestError
from barrel_inference.server.http.operation import Operation
from barrel_inference.server.http.shared import merged

HEADER = "x-other"


def operation(name: str, error: Exception | None) -> Operation:
    async def endpoint(request: Request) -> Response:
        if error is not None:
            raise error
        return PlainTextResponse(f"{name} answers")

    def failure(error: BarrelError) -> Response:
        return PlainTextResponse(f"{name} fails")

    return Operation("GET", "/shared", endpoint, "", failure=failure)


async def asked(both: Operation, *headers: str) -> bytes:
    scope = {"type": "http", "headers": [(name.encode(), b"1") for name in headers]}
    return bytes((await both.answer(Request(scope))).body)


@pytest.mark.parametrize("error", [None, InvalidRequestError("known"), ValueError("a bug")])
async def test_whoever_the_header_means_answers_and_fails(error: Exception | None) -> None:
    (both,) = merged([operation("usual", error)], [operation("other", error)], header=HEADER)
    word = b"answers" if error is None else b"fails"
    assert await asked(both) == b"usual " + word
    assert await asked(both, HEADER) == b"other " + word
