"""Paths that two dialects share: a header of one of them says which answers. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.server.http.operation import Operation


def merged(usual: Sequence[Operation], others: Sequence[Operation], *, header: str) -> list[Operation]:
    """All operations of both; where they have the same path, ``others`` answer requests that bear ``header``."""
    there = {(each.method, each.path): each for each in others}
    both = [_either(each, there.pop((each.method, each.path), None), header) for each in usual]
    return both + list(there.values())


def _either(usual: Operation, other: Operation | None, header: str) -> Operation:
    if other is None:
        return usual

    async def endpoint(request: Request) -> Response:
        return await (other if header in request.headers else usual).answer(request)

    return dataclasses.replace(usual, endpoint=endpoint, query=(*usual.query, *other.query))
