"""The OpenAPI 3.1 document, made from the operations and their msgspec types; and a page that shows it. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from barrel_inference.server.http.operation import Operation

_REF = "#/components/schemas/{name}"


Schemas = dict[Any, dict[str, Any]]  # by type


def document(operations: Sequence[Operation], *, version: str, error_of: Callable[[str], Any]) -> dict[str, Any]:
    """``error_of(path)``: the type of the errors there."""
    types = {kind for each in operations for kind in _types(each, error_of(each.path)) if kind is not None}
    ordered = sorted(types, key=str)
    schemas, components = msgspec.json.schema_components(ordered, schema_hook=_anything, ref_template=_REF)
    by_type = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        described = _described(each, by_type, by_type[error_of(each.path)])
        paths.setdefault(template(each.path), {})[each.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Barrel Inference", "version": version, "license": {"name": "MIT"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _anything(kind: type) -> dict[str, Any]:
    """The schema of ``object``: no demands, said in a way that msgspec takes for one."""
    if kind is object:
        return {"description": "anything"}
    raise NotImplementedError(f"{kind} has no schema")


def template(path: str) -> str:
    """Without Starlette's converters: OpenAPI knows names only."""
    return re.sub(r":\w+}", "}", path)


def _types(operation: Operation, error: Any) -> list[Any]:
    return [operation.request, operation.response, operation.stream, *operation.also.values(), error]


def _described(operation: Operation, by_type: Schemas, error: dict[str, Any]) -> dict[str, Any]:
    path = template(operation.path)
    described: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}{re.sub(r'[^a-z0-9]+', '_', path.lower())}".rstrip("_"),
        "summary": operation.summary,
        "responses": _responses(operation, by_type, error),
    }
    if operation.request is not None:
        described["requestBody"] = {"required": True, "content": _json(by_type[operation.request])}
    if operation.takes:
        binary = {"schema": {"type": "string", "format": "binary"}}
        described["requestBody"] = {"required": True, "content": {operation.takes: binary}}
    parameters = [_parameter(name, "path") for name in re.findall(r"{(\w+)}", path)]
    parameters += [_parameter(name, "query") for name in operation.query]
    if parameters:
        described["parameters"] = parameters
    if not operation.open:
        described["security"] = [{}, {"bearer": []}]
    return described


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}


def _responses(operation: Operation, by_type: Schemas, error: dict[str, Any]) -> dict[str, Any]:
    responses = {"200": _success(operation, by_type, error)}
    for status, kind in operation.also.items():
        responses[str(status)] = _response("Success" if status < 300 else "Not now", kind and _json(by_type[kind]))
    return responses | {"default": _response("An error", None if operation.method == "HEAD" else _json(error))}


def _success(operation: Operation, by_type: Schemas, error: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.response is not None and operation.method != "HEAD":
        content |= _json(by_type[operation.response])
    if operation.stream is not None:
        content |= _stream(operation.path, {"anyOf": [by_type[operation.stream], error]})
    if operation.media:
        content[operation.media] = {"schema": {"type": "string"}}
    return _response("Success", content)


def _stream(path: str, piece: dict[str, Any]) -> dict[str, Any]:
    """One line, or one event as OpenAPI 3.2 describes events; OpenAI's last one has the data ``[DONE]``."""
    if path.startswith("/api/"):
        return {"application/x-ndjson": {"schema": piece}}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": piece}
    event = {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}
    return {"text/event-stream": {"schema": event}}


def _response(description: str, content: dict[str, Any] | None) -> dict[str, Any]:
    return {"description": description, **({"content": content} if content else {})}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def page(operations: Sequence[Operation], *, version: str) -> str:
    """One table, no scripts. A HEAD beside a GET goes without saying."""
    fetched = {each.path for each in operations if each.method == "GET"}
    rows = "\n".join(
        f"<tr><td>{each.method}</td><td><code>{html.escape(template(each.path))}</code></td>"
        f"<td>{html.escape(each.summary)}</td></tr>"
        for each in operations
        if each.method != "HEAD" or each.path not in fetched
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Barrel Inference</title>'
        "<style>body{font-family:sans-serif;max-width:60rem;margin:2rem auto}td{padding:.2rem .8rem}</style>"
        f"<h1>Barrel Inference {html.escape(version)}</h1>"
        '<p>The whole description: <a href="/openapi.json">/openapi.json</a></p>'
        f"<table>{rows}</table></html>"
    )
