"""The OpenAPI 3.1 document, made from the operations and their msgspec types; and a page that shows it. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from barrel_inference.server.http.operation import Operation

_REF = "#/components/schemas/{name}"


def document(operations: Sequence[Operation], *, version: str) -> dict[str, Any]:
    types = {kind for each in operations for kind in (each.request, each.response, each.stream) if kind is not None}
    ordered = sorted(types, key=str)
    schemas, components = msgspec.json.schema_components(ordered, schema_hook=_anything, ref_template=_REF)
    by_type = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _described(each, by_type)
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


def _described(operation: Operation, by_type: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}{re.sub(r'[^a-z0-9]+', '_', operation.path.lower())}".rstrip("_"),
        "summary": operation.summary,
        "responses": {"200": _success(operation, by_type), "default": {"description": "An error"}},
    }
    if operation.request is not None:
        described["requestBody"] = {"required": True, "content": _json(by_type[operation.request])}
    if names := re.findall(r"{(\w+)(?::\w+)?}", operation.path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if not operation.open:
        described["security"] = [{}, {"bearer": []}]
    return described


def _success(operation: Operation, by_type: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.response is not None:
        content |= _json(by_type[operation.response])
    if operation.stream is not None:
        kind = "application/x-ndjson" if operation.path.startswith("/api/") else "text/event-stream"
        content[kind] = {"schema": by_type[operation.stream]}
    return {"description": "Success", **({"content": content} if content else {})}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def page(operations: Sequence[Operation], *, version: str) -> str:
    """One table, no scripts."""
    rows = "\n".join(
        f"<tr><td>{each.method}</td><td><code>{html.escape(each.path)}</code></td>"
        f"<td>{html.escape(each.summary)}</td></tr>"
        for each in operations
        if each.method != "HEAD"
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Barrel Inference</title>'
        "<style>body{font-family:sans-serif;max-width:60rem;margin:2rem auto}td{padding:.2rem .8rem}</style>"
        f"<h1>Barrel Inference {html.escape(version)}</h1>"
        '<p>The whole description: <a href="/openapi.json">/openapi.json</a></p>'
        f"<table>{rows}</table></html>"
    )
