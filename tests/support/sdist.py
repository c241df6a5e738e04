"""Files out of a source package, fetched with pip as pip is configured here: test input that is not ours to ship."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

ERRORS = (subprocess.SubprocessError, OSError, tarfile.TarError)


def unpack(requirement: str, folder: Path, place: Callable[[str], str | None], timeout_s: float) -> None:
    """Make ``folder`` out of the members that ``place`` gives a path in it. All or nothing; raises ERRORS."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    name = requirement.partition("==")[0]
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name]
        subprocess.run([*pip, "--dest", scratch, requirement], check=True, timeout=timeout_s)
        (archive,) = Path(scratch).glob("*.tar.gz")
        new = Path(scratch) / "new"
        new.mkdir()
        with tarfile.open(archive) as package:
            for member in package:
                if (to := place(member.name)) is not None:
                    content = package.extractfile(member)
                    assert content is not None
                    (new / to).parent.mkdir(parents=True, exist_ok=True)
                    (new / to).write_bytes(content.read())
        new.replace(folder)
