"""Where tests find real chat templates: about seventy of them lie in the source package of llama-cpp-python. They are
fetched with pip as pip is configured here and kept in the repository's ``.models``."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from tests.support import sdist

PACKAGE = "llama-cpp-python==0.3.36"
MEMBERS = "/vendor/llama.cpp/models/templates/"
KEPT = Path(__file__).resolve().parents[2] / ".models" / "templates"
FETCH_S = 240


@functools.cache
def templates() -> dict[str, str]:
    """Name to Jinja text. Skips the test that asks when they cannot be had: they are test input, not ours to ship."""
    folder = Path(os.environ.get("BARREL_TEST_TEMPLATES") or KEPT)
    if not folder.is_dir():
        try:
            sdist.unpack(PACKAGE, folder, _place, FETCH_S)
        except sdist.ERRORS as error:
            pytest.skip(f"the source package with the templates cannot be fetched: {error}")
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


def _place(member: str) -> str | None:
    return Path(member).name if MEMBERS in member and member.endswith(".jinja") else None
