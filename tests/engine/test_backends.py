"""Backends by name, those of other packages too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from barrel_inference.config import LoadOptions
from barrel_inference.engine.backends import open_backend
from barrel_inference.errors import ConfigError, InvalidModelError
from barrel_inference.fingerprint import identity

PACKAGE = """
from barrel_inference.engine.stub import StubBackend

class Theirs(StubBackend):
    theirs = True
"""
SCRIPT = """
from barrel_inference.config import LoadOptions
from barrel_inference.engine.backends import open_backend
backend = open_backend(LoadOptions(id="m", backend="theirs"), lambda fraction: None)
print(backend.theirs, backend.info.architecture)
"""


def test_ours_is_found_by_name() -> None:
    seen: list[float] = []
    backend = open_backend(LoadOptions(id="m", backend="stub"), seen.append)
    assert backend.info.architecture == "stub"
    assert seen[-1] == 1.0


class Replaced:
    """Puts another file in its place while the model is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, fraction: float) -> None:
        (self._path.parent / "other").write_bytes(b"two")
        (self._path.parent / "other").replace(self._path)


@pytest.mark.parametrize("before", [True, False], ids=["before", "while it is loaded"])
def test_files_that_were_replaced_are_not_loaded_under_the_old_fingerprint(tmp_path: Path, before: bool) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    options = LoadOptions(id="m", backend="stub", files=((str(path), identity(path)),))
    replace = Replaced(path)
    if before:
        replace(0.0)
    with pytest.raises(InvalidModelError, match=r"m\.gguf has been replaced"):
        open_backend(options, replace)


def test_an_unknown_name_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="llama, stub") as caught:
        open_backend(LoadOptions(id="m", backend="nonsense"), lambda fraction: None)
    assert caught.value.details["option"] == "backend"


def test_another_package_s_backend_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(PACKAGE)
    installed = tmp_path / "theirs-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[barrel_inference.backends]\ntheirs = theirs:Theirs\n")
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(tmp_path)!r})\n{SCRIPT}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout.split() == ["True", "stub"], run.stderr
