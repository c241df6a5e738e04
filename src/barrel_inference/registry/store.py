"""Manifests on disk, one JSON file per name and tag. The directory is the state: every call reads it, so two processes
on one root agree; the only thing owned is a cache of decoded manifests, checked by inode, size and time.

Names compare without case. A manifest that cannot be read is set aside as ``<tag>.json.bad`` and reported by ``list``;
it stops nothing else. Callers hold the root's lock around changes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from barrel_inference.config import RegistryOpts
from barrel_inference.errors import (
    DiskFullError,
    InvalidNameError,
    ManifestError,
    ModelNotFoundError,
    RegistryError,
    os_reason,
)
from barrel_inference.registry.blobs import Blobs
from barrel_inference.registry.files import Root, absolute, sync_directory, write_atomic, writing
from barrel_inference.registry.manifest import MAX_MANIFEST_BYTES, Manifest, decode, encode
from barrel_inference.registry.names import BUILT_IN, ModelName, is_path, name_of, parse_name, parse_spec, split_tag
from barrel_inference.threads import Threads

SUFFIX = ".json"
BAD = ".bad"
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)

Stamp = tuple[int, int, int]  # inode, size, time: tells one content of a path from another


class Broken(NamedTuple):
    """A manifest that cannot be read, and why."""

    name: str
    reason: str


class Listing(NamedTuple):
    manifests: list[Manifest]
    broken: list[Broken]


class Store:
    def __init__(self, root: Root) -> None:
        self._root = root
        self._cache: dict[str, tuple[Stamp, Manifest]] = {}

    def list(self) -> Listing:
        """Every manifest, newest first, and every one that is unreadable."""
        listing = Listing([], [])
        for path in self._paths():
            try:
                listing.manifests.append(self._read(path))
            except FileNotFoundError:
                continue  # removed a moment ago
            except ManifestError as error:
                listing.broken.append(Broken(_display(path), error.message))
        listing.manifests.sort(key=lambda manifest: (manifest.modified_at, manifest.name, manifest.tag), reverse=True)
        return listing

    def installed(self) -> Sequence[Manifest]:
        return self.list().manifests

    def find(self, name: ModelName) -> Manifest | None:
        """The manifest of exactly this name and tag, whatever their case; ``ManifestError`` if it is unreadable."""
        try:
            return self._read(str(self.path(name)))
        except FileNotFoundError:
            return None

    def resolve(self, text: str) -> Manifest:
        """The installed model that ``text`` means: a name, with or without tag, or the spec it was pulled from."""
        manifest = self._by_spec(text) if "://" in text or is_path(text) else self._by_name(text)
        if manifest is None:
            raise ModelNotFoundError(f"model '{text}' not found", model=text)
        return manifest

    def pulled_from(self, spec: str) -> Manifest | None:
        """The newest model that a pull of exactly this canonical spec installed."""
        return next((m for m in self.list().manifests if m.spec == spec), None)

    def write(self, manifest: Manifest) -> None:
        """Replace or add. A name that exists in another case keeps the case it has."""
        path, content = self.path(manifest.model_name), encode(manifest)
        self._make_directory(path.parent, manifest.model_name)
        write_atomic(path, content)

    def _make_directory(self, directory: Path, name: ModelName) -> None:
        try:
            self._root.make(directory)
        except RegistryError as error:
            if (
                isinstance(error, DiskFullError)
                or ":" not in directory.name
                or directory.exists()
                or not os.access(self._root.manifests, os.W_OK)
            ):
                raise
            raise RegistryError(  # FAT and exFAT
                f"this file system takes no file name with ':', which stands for '/' in {name}; choose a name without, "
                "or set model_cache_dir to another file system"
            ) from None

    def remove(self, name: ModelName) -> None:
        path = self.path(name)
        with writing(path):
            path.unlink(missing_ok=True)
            path.with_name(path.name + BAD).unlink(missing_ok=True)
            if path.parent.is_dir():
                sync_directory(path.parent)
                _remove_if_empty(path.parent)

    def canonical(self, name: ModelName) -> ModelName:
        """``name`` in the case that an existing manifest gave it."""
        path = self.path(name)
        manifest = self.find(name) if path.exists() else None
        return manifest.model_name if manifest else name

    def path(self, name: ModelName) -> Path:
        """Where the manifest of ``name`` is, or would be."""
        directory = _same_but_case(self._root.manifests, name.directory)
        if directory.is_symlink():  # what it leads to is not ours to replace or remove
            raise RegistryError(f"the directory of {name.name} is a link; nothing behind it is read or written")
        return directory / _same_but_case(directory, name.tag + SUFFIX).name

    def is_broken(self, name: ModelName) -> bool:
        """Whether a manifest of this name exists but cannot be read."""
        path = self.path(name)
        return path.exists() or path.with_name(path.name + BAD).exists()

    def mentioned_digests(self) -> set[str] | None:
        """Digests that manifests mention, unreadable ones too: gc must not take the weights of one that a repair could
        save. None when one mentions none (a power cut leaves it empty) or cannot be opened: nobody can tell which
        weights were its own."""
        found: set[str] = set()
        for path in self._paths():
            try:
                content = _content(path)[1]
            except FileNotFoundError:
                continue  # set aside a moment ago, or removed
            except (OSError, ManifestError):
                return None
            mentioned = re.findall(rb"sha256[:-]([0-9a-f]{64})", content)
            if not mentioned:
                return None
            found.update(match.decode() for match in mentioned)
        return found

    def _by_name(self, text: str) -> Manifest | None:
        name = name_of(text)
        found = self.find(name)
        if found or split_tag(text)[1] is not None or text.lower() in BUILT_IN:
            return found
        # ``Org/Repo`` means its only tag: a model from the Hub is tagged by revision, not "latest".
        hub = self.find(ModelName(name.name, "main"))
        tags = [m for m in self.list().manifests if m.name.casefold() == name.name.casefold()]
        return hub or (tags[0] if len(tags) == 1 else None)

    def _by_spec(self, text: str) -> Manifest | None:
        spec = parse_spec(text)
        wanted = {spec.canonical, f"file://{absolute(Path(spec.location))}"}
        return next((m for m in self.list().manifests if m.spec in wanted), None) or self._named(spec.default_name)

    def _named(self, name: ModelName) -> Manifest | None:
        try:
            return self.find(parse_name(str(name)))
        except InvalidNameError:
            return None

    def _paths(self) -> Sequence[str]:
        """Every manifest's path, as plain text: a thousand of them must take milliseconds. All are listed before the
        first is read, which takes a sixth less time than the two by turns."""
        found: list[str] = []
        for directory in _folders(str(self._root.manifests)):
            try:
                names = os.listdir(directory)  # noqa: PTH208
            except FileNotFoundError:
                continue  # its last tag was removed a moment ago
            found += [f"{directory}/{name}" for name in names if name.endswith((SUFFIX, SUFFIX + BAD))]
        return found

    def _read(self, path: str) -> Manifest:
        if path.endswith(BAD):
            raise ManifestError("unreadable, set aside; pull the model again or remove it")
        cached = self._cache.get(path)
        if cached is None or cached[0] != _stamp(os.stat(path)):  # noqa: PTH116 - see _paths
            cached = self._cache[path] = self._load(path)
        return cached[1]

    def _load(self, path: str) -> tuple[Stamp, Manifest]:
        try:
            stamp, content = _content(path)
        except FileNotFoundError:
            raise
        except OSError as error:  # a matter of permissions, not of content: nothing to set aside
            raise ManifestError(f"cannot be read: {os_reason(error)}") from None
        try:
            return stamp, decode(content)
        except (ManifestError, InvalidNameError) as error:
            self._set_aside(Path(path), stamp)
            raise ManifestError(f"unreadable manifest of {_display(path)}: {error.message}; pull it again") from None

    def _set_aside(self, path: Path, stamp: Stamp) -> None:
        """Only if it is still the file that was read, and only when nobody is changing anything: else the next time."""
        with contextlib.suppress(OSError, RegistryError), self._root.try_lock() as held:
            if held and _stamp(path.stat()) == stamp:
                path.replace(path.with_name(path.name + BAD))


class Ground(NamedTuple):
    """The stores of one models root, handed around together. They belong to the Registry. ``threads``: for what waits
    for the root's lock or the disk; what reads whole files has a thread of its own."""

    root: Root
    blobs: Blobs
    store: Store
    options: RegistryOpts
    threads: Threads


def _content(path: str) -> tuple[Stamp, bytes]:
    """A file object for each of a thousand files would take as long as all the rest."""
    fd = os.open(path, _READ)
    try:
        stamp = _stamp(os.fstat(fd))
        if stamp[1] > MAX_MANIFEST_BYTES:
            raise ManifestError(f"{stamp[1]} bytes long, the limit is {MAX_MANIFEST_BYTES}")
        return stamp, os.read(fd, stamp[1])
    finally:
        os.close(fd)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _folders(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []  # nothing was ever installed


def _same_but_case(directory: Path, name: str) -> Path:
    """The entry called ``name`` in any case, preferring the exact one; else where it would be."""
    exact = directory / name
    if exact.exists() or not directory.is_dir():
        return exact
    folded = name.casefold()
    return next((entry for entry in directory.iterdir() if entry.name.casefold() == folded), exact)


def _display(path: str) -> str:
    directory, file = os.path.split(path)
    return f"{os.path.basename(directory).replace(':', '/')}:{file.removesuffix(BAD).removesuffix(SUFFIX)}"  # noqa: PTH119


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):  # other tags live there
        directory.rmdir()
