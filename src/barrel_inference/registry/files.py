"""The models root as directories and atomic files. Nothing here knows what a model is; owns no state but the path."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from barrel_inference.errors import BarrelError, DiskFullError, ReadOnlyError, RegistryError, os_reason
from barrel_inference.files import is_full
from barrel_inference.registry.locks import WAIT_S, locked, try_lock

APP = "barrel_inference_server"


def default_root() -> Path:
    return Path(platformdirs.user_cache_dir(APP, appauthor=False)) / "models"


class Root:
    """The directory tree of one models root. Directories are made on the first write, so that reading never writes."""

    def __init__(self, path: Path, lock_wait_s: float = WAIT_S) -> None:
        self.path = absolute(path)
        self._lock_wait_s = lock_wait_s
        self.blobs = self.path / "blobs"
        self.refs = self.path / "refs"
        self.tmp = self.path / "tmp"
        self.manifests = self.path / "manifests"

    def prepare(self) -> None:
        """Make the tree; refuse one whose parts are links to elsewhere, since everything written must stay inside."""
        for directory in (self.blobs, self.refs, self.tmp, self.manifests):
            self.make(directory)

    def make(self, directory: Path) -> None:
        with writing(self.path):
            directory.mkdir(parents=True, exist_ok=True)
        real, root = os.path.realpath(directory), os.path.realpath(self.path)
        if os.path.commonpath([real, root]) != root:
            raise RegistryError(
                f"{directory.name} is a link that leaves the models directory; nothing is written there"
            )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Held around every change of what refers to what; see ``locks``. What the file system refuses meanwhile is the
        registry's own error."""
        with writing(self.path), locked(self.path / ".lock", self._lock_wait_s):
            yield

    @contextlib.contextmanager
    def try_lock(self) -> Iterator[bool]:
        """The same without waiting; yields whether it is held."""
        fd = try_lock(self.path / ".lock")
        try:
            yield fd is not None
        finally:
            if fd is not None:
                os.close(fd)


def absolute(path: Path) -> Path:
    """Absolute, home expanded, ``..`` folded; links stay, as the user may mean them."""
    return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - Path.resolve would follow the links


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into the registry's own errors."""
    try:
        yield
    except OSError as error:
        raise os_error(error, path) from None


def os_error(error: OSError, path: Path) -> BarrelError:
    path = Path(error.filename2 or error.filename or path) if isinstance(error.filename, str) else path
    if is_full(error):
        return DiskFullError(f"no space left for {path.name}; free some, or run: barrel-inference gc")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ReadOnlyError(f"cannot write to the models directory: {os_reason(error)}")
    return RegistryError(f"{path.name}: {os_reason(error)}")


def write_atomic(path: Path, content: bytes) -> None:
    """All of the content or the old file, also after a power cut: temporary file, fsync, rename, fsync."""
    temporary = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}")
    with writing(path):
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows has no directory handles to sync
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
