"""How much a request may ask for beyond its size in bytes: messages, and the size and depth of what its output must
match. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from barrel_inference.config import ServerOptions
from barrel_inference.errors import InvalidRequestError, SchemaError
from barrel_inference.server.neutral import ChatRequest

MAX_SCHEMA_BYTES = 256 << 10  # of one schema, grammar, regular expression or list of choices
MAX_TOOLS_BYTES = 4 << 20  # of all tools together


def check(request: ChatRequest, options: ServerOptions) -> None:
    """Raises InvalidRequestError or SchemaError."""
    if len(request.messages) > options.max_messages:
        raise InvalidRequestError(
            f"a conversation has at most {options.max_messages} messages, not {len(request.messages)}"
        )
    if request.constraint is not None:
        check_form(msgspec.structs.asdict(request.constraint), options.max_nesting)
    total = 0
    for tool in request.tools:
        encoded = msgspec.json.encode(tool)
        check_schema(encoded, "the schema of a tool", options.max_nesting + 2)
        total += len(encoded)
    if total > MAX_TOOLS_BYTES:
        raise InvalidRequestError(f"the tools together have {total} bytes, at most {MAX_TOOLS_BYTES} are allowed")


def check_form(given: Mapping[str, Any], max_nesting: int) -> None:
    """``given``: a Constraint's fields among whatever else; what is not of their type is for others to refuse."""
    for name in ("regex", "grammar"):
        if isinstance(text := given.get(name), str):
            _check_size(len(text.encode(errors="replace")), f"the {name}")
    if isinstance(choices := given.get("choices"), list | tuple):
        _check_size(sum(len(str(choice)) for choice in choices), "the list of choices")
    if isinstance(schema := given.get("json_schema"), str):
        check_schema(schema.encode(errors="replace"), "the schema of the format", max_nesting)


def _check_size(n_bytes: int, what: str) -> None:
    if n_bytes > MAX_SCHEMA_BYTES:
        raise SchemaError(f"{what} has {n_bytes} bytes, at most {MAX_SCHEMA_BYTES} are allowed")


def check_schema(encoded: bytes, what: str, max_nesting: int) -> None:
    _check_size(len(encoded), what)
    try:
        depth = depth_of(msgspec.json.decode(encoded))
    except msgspec.DecodeError as error:
        raise SchemaError(f"{what} is not JSON: {error}") from None
    if depth > max_nesting:
        raise SchemaError(f"{what} is {depth} levels deep, at most {max_nesting} are allowed")


def depth_of(value: Any) -> int:
    """Of nested objects and arrays; level by level, so that no depth is too much."""
    depth = 0
    level = [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
    return depth
