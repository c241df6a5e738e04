"""The content-addressed files: ``blobs/sha256-<hex>.gguf``. A file gets that name only after its content was hashed
and synced; owns nothing but the directory's path."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from barrel_inference.errors import DigestMismatchError, InvalidModelError, RegistryError
from barrel_inference.registry.files import Root, sync_directory, writing
from barrel_inference.registry.names import parse_digest

READ_BYTES = 1 << 20

OnBytes = Callable[[int], None]


class Blobs:
    def __init__(self, root: Root) -> None:
        self._root = root

    def path(self, digest: str) -> Path:
        return self._root.blobs / f"sha256-{parse_digest(digest)[7:]}.gguf"

    def has(self, digest: str, size: int | None = None) -> bool:
        """Whether the blob is here, with the size it should have."""
        try:
            status = self.path(digest).stat()
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and size in (None, status.st_size)

    def is_sound(self, digest: str, on_bytes: OnBytes | None = None) -> bool:
        """Whether the blob's bytes are still those of its name; reads all of it."""
        try:
            return hash_file(self.path(digest), on_bytes) == digest
        except (OSError, InvalidModelError):
            return False

    def adopt(self, file: Path, digest: str) -> Path:
        """Give a finished, verified and synced file its name. Atomic; an equal blob may be there already."""
        target = self.path(digest)
        with writing(target):
            file.replace(target)
            sync_directory(target.parent)
        return target

    def link(self, file: Path, digest: str, *, keep: bool) -> Path:
        """Register a user's own file without copying: a hard link where the file system allows, else itself. ``keep``:
        a blob that is here already is sound."""
        target = self.path(digest)
        if keep and self.has(digest, file.stat().st_size):
            return target
        temporary = self._root.tmp / f"{uuid.uuid4().hex}.link"
        try:
            os.link(file, temporary)
            temporary.replace(target)
            sync_directory(target.parent)
        except OSError:  # another file system, or hard links are not allowed
            temporary.unlink(missing_ok=True)
            return file
        return target

    def layout_shards(self, parts: list[tuple[str, Path]]) -> Path:
        """Give a split model's files the names llama.cpp expects, in one directory; returns the first one's path."""
        first, count = parts[0][0], len(parts)
        directory = self._root.blobs / f"sha256-{first[7:]}.shards"
        names = [f"model-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
        self._root.make(directory)
        with writing(directory):
            for name, (_, path) in zip(names, parts, strict=True):
                _link_or_point(path, directory / name)
        return directory / names[0]

    def entries(self) -> Iterator[tuple[str, Path]]:
        """(hex digest, path) of every blob and shard directory; what bears no digest is not ours."""
        if self._root.blobs.is_dir():
            for path in self._root.blobs.iterdir():
                name = path.name
                if name.startswith("sha256-") and name.endswith((".gguf", ".shards")) and len(name.split(".")[0]) == 71:
                    yield name[7:71], path


def linked_parts(path: Path) -> list[Path]:
    """What the parts of a split model point to, given one of them; hard links need nothing else."""
    if path.parent.suffix != ".shards":
        return []
    return [part.readlink() for part in path.parent.iterdir() if part.is_symlink()]


def hash_file(path: Path, on_bytes: OnBytes | None = None) -> str:
    """``sha256:<hex>`` of a regular file; ``on_bytes`` is called with the running total."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise InvalidModelError(f"{path.name}: not a regular file")
    digest, total = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
            total += len(block)
            if on_bytes:
                on_bytes(total)
    return f"sha256:{digest.hexdigest()}"


def require_digest(expected: str, actual: str) -> None:
    if expected != actual:
        raise DigestMismatchError(
            f'digest mismatch, expected "{expected}", got "{actual}"', expected=expected, actual=actual
        )


def _link_or_point(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        return
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        _point(source, target)


def _point(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP):
            raise
        raise RegistryError(
            "a split model needs links, which this file system does not have; set model_cache_dir to another one"
        ) from None


def remove_entry(path: Path) -> int:
    """Delete a blob or shard directory; returns the bytes this gives back (none for links to what remains)."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        return 0
    status = path.lstat()
    path.unlink()
    return status.st_size if status.st_nlink == 1 else 0
