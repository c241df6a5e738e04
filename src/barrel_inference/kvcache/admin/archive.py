"""A warmed prefix in one file, to be shipped to another machine: a plain tar of object files.

    <namespace>/ns.json
    <namespace>/<parent>-<key>.<kind>.<provenance>

Owns nothing. Every object is proven on the way out and on the way in. Archives come from anywhere: only the headers are
tarfile's, whose reader follows extended headers into recursion and sparse members into memory.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from barrel_inference.errors import CacheError, CacheFullError, os_reason
from barrel_inference.files import is_full, read_small
from barrel_inference.kvcache.admin.content import found, prove, read_whole
from barrel_inference.kvcache.lookup import Found, Piece
from barrel_inference.kvcache.record import CorruptError, Name, parse_name
from barrel_inference.kvcache.store import Store
from barrel_inference.kvcache.tier import NS_HEX, NoRoomError, Tier

ATTEMPTS = 4  # each failed one gives up an object that was evicted or is damaged
RECORD = tarfile.BLOCKSIZE


class Moved(msgspec.Struct, frozen=True):
    """``tokens``: of the prompt, from its beginning: that would be restored (export), that the objects hold (import).
    ``present``: objects that were there already (import only)."""

    objects: int
    bytes: int
    tokens: int = 0
    present: int = 0
    refused: int = 0


class _Span(NamedTuple):
    """The tokens of an object, between two nodes of its chain."""

    parent: str
    key: str
    first: int
    end: int


class _LostError(Exception):
    """An object that was found can not be read any more."""


def export(store: Store, tokens: Sequence[int], path: Path, *, salt: str = "") -> Moved:
    """Write all that is stored of a prompt to ``path``; CacheError when nothing is, or it cannot be written
    (CacheFullError: for want of space)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")  # others may export there
    try:
        moved = _write(store, tokens, salt, temporary)
        temporary.rename(path)
        return moved
    except OSError as error:
        kind = CacheFullError if is_full(error) else CacheError
        raise kind(f"cannot export to {path}: {os_reason(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _write(store: Store, tokens: Sequence[int], salt: str, path: Path) -> Moved:
    for _ in range(ATTEMPTS):
        held = found(store, tokens, salt)
        try:
            objects, n_bytes = _write_all(store, held, path)
        except _LostError:
            continue
        return Moved(objects, n_bytes, tokens=held.length)
    raise CacheError("what is stored of this prompt cannot be read")


def _write_all(store: Store, held: Found, path: Path) -> tuple[int, int]:
    """Objects and their bytes."""
    namespace, pieces, n_bytes = store.folder[:NS_HEX], list(held.pieces), 0
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        if (about := _about(pieces[0].tier.folder(namespace))) is not None:
            _add(tar, f"{namespace}/ns.json", memoryview(about))
        for piece in pieces:
            data = _read(store, piece)
            _add(tar, f"{namespace}/{piece.name.file}", data)
            n_bytes += len(data)
    return len(pieces), n_bytes


def _about(folder: Path) -> bytes | None:
    try:
        return read_small(folder / "ns.json")
    except OSError:  # lost, or none of ours: it is only there to be read by people
        return None


def _read(store: Store, piece: Piece) -> memoryview:
    try:
        return read_whole(piece.tier, store.folder[:NS_HEX], piece.name)
    except (CorruptError, OSError) as error:
        store.lost(piece.tier, piece.name, corrupt=isinstance(error, CorruptError))
        raise _LostError from error


def _add(tar: tarfile.TarFile, name: str, data: memoryview) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def import_file(path: Path, tier: Tier) -> Moved:
    """Put the objects of an exported file into ``tier``. Damaged or foreign members are refused and counted; CacheError
    when the file cannot be read, CacheFullError when the tier has no room."""
    objects = n_bytes = present = refused = 0
    spans = []
    try:
        with _opened(path) as file:
            for member in _members(file):
                try:
                    namespace, name, data, span = _object(file, member, tier)
                except CorruptError:
                    refused += not member.name.endswith("/ns.json")
                    continue
                written = tier.put(namespace, name, [data])
                present += not written
                objects += written
                spans.append(span)
                n_bytes += len(data) if written else 0
    except NoRoomError as error:
        raise CacheFullError(f"tier {tier.name} has no room for all of {path}") from error
    except (OSError, ValueError, tarfile.TarError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else error
        raise CacheError(f"cannot import {path}: {reason}") from error
    return Moved(objects, n_bytes, tokens=_reach(spans), present=present, refused=refused)


def _reach(spans: Iterable[_Span]) -> int:
    """How far the longest prompt goes without a gap."""
    reached: dict[str, int] = {}  # by key
    for span in sorted(spans, key=lambda span: span.first):
        if span.first == 0 or span.parent in reached:
            reached[span.key] = max(span.end, reached.get(span.key, 0))
    return max(reached.values(), default=0)


def _opened(path: Path) -> BinaryIO:
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CacheError(f"cannot import {path}: not a regular file")
    return file


def _members(file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """Each with ``file`` at its first byte, and none longer than the file."""
    at, end = 0, os.fstat(file.fileno()).st_size
    if not end:
        raise tarfile.ReadError("it is empty")
    while (header := file.read(RECORD)).strip(b"\0"):
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        at += RECORD
        if not 0 <= member.size <= end - at:
            raise tarfile.ReadError("it is cut short")
        yield member
        at += -(-member.size // RECORD) * RECORD
        file.seek(at)


def _object(file: BinaryIO, member: tarfile.TarInfo, tier: Tier) -> tuple[str, Name, memoryview, _Span]:
    """Namespace, name, bytes and tokens of an object, proven; CorruptError when it is none."""
    namespace, name = _place(member)
    if name is None or member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise CorruptError("not an object")
    if member.size > tier.quota.limit_bytes:
        raise NoRoomError(member.size)
    data = memoryview(file.read(member.size))
    record = prove(data, namespace, name)
    end = record.first + record.count
    return namespace, name, data, _Span(namespace + name.parent, namespace + name.key, record.first, end)


def _place(member: tarfile.TarInfo) -> tuple[str, Name | None]:
    """Namespace and object that a member's name means; nothing else of the name is used."""
    namespace, _, file = member.name.partition("/")
    is_hex = len(namespace) == NS_HEX and not set(namespace) - set("0123456789abcdef")
    return namespace, parse_name(file) if is_hex else None
