"""Where tests find real chat templates: about seventy of them lie in the source package of llama-cpp-python. They are
fetched with pip as pip is configured here and kept in the repository's ``.models``."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

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
            _fetch(folder)
        except (subprocess.SubprocessError, OSError, tarfile.TarError) as error:
            pytest.skip(f"the source package with the templates cannot be fetched: {error}")
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


def _fetch(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python"]
        subprocess.run([*pip, "--dest", scratch, PACKAGE], check=True, timeout=FETCH_S)
        (archive,) = Path(scratch).glob("*.tar.gz")
        new = Path(scratch) / "templates"
        new.mkdir()
        with tarfile.open(archive) as package:
            for member in package:
                if MEMBERS in member.name and member.name.endswith(".jinja"):
                    found = package.extractfile(member)
                    assert found is not None
                    (new / Path(member.name).name).write_bytes(found.read())
        new.replace(folder)
