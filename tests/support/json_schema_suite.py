"""The public JSON-Schema test suite, out of the source package of ``jsonschema``; kept in ``.models``."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import sdist

PACKAGE = "jsonschema==4.23.0"
MEMBERS = "/json/tests/"
KEPT = Path(__file__).resolve().parents[2] / ".models" / "json-schema-suite"
FETCH_S = 120


@functools.cache
def groups(draft: str) -> list[tuple[str, dict[str, Any]]]:
    """File stem and group (schema and its tests), without what needs the network. Skips when it cannot be had."""
    folder = Path(os.environ.get("BARREL_TEST_JSON_SCHEMA_SUITE") or KEPT)
    if not folder.is_dir():
        try:
            sdist.unpack(PACKAGE, folder, _place, FETCH_S)
        except sdist.ERRORS as error:
            pytest.skip(f"the source package with the test suite cannot be fetched: {error}")
    files = sorted((folder / draft).glob("*.json"))
    found = [(path.stem, group) for path in files for group in json.loads(path.read_text(encoding="utf-8"))]
    return [(stem, group) for stem, group in found if "http" not in json.dumps(_references(group["schema"]))]


def _references(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        own = [
            value for key, value in schema.items() if key in ("$ref", "$id", "$dynamicRef") and isinstance(value, str)
        ]
        return own + [each for value in schema.values() for each in _references(value)]
    return [each for value in schema for each in _references(value)] if isinstance(schema, list) else []


def _place(member: str) -> str | None:
    draft, _, name = member.partition(MEMBERS)[2].partition("/")
    return f"{draft}/{name}" if name.endswith(".json") and "/" not in name else None
