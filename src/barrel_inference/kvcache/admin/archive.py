"""A warmed prefix in one file, to be shipped to another machine: a plain tar of object files.

    <namespace>/ns.json
    <namespace>/<parent>-<key>.<kind>.<provenance>

Owns nothing. Every object is proven on the way out and on the way in.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from barrel_inference.errors import CacheError
from barrel_inference.kvcache.admin.content import found, prove, read_whole
from barrel_inference.kvcache.record import CorruptError, Name, parse_name
from barrel_inference.kvcache.store import Store
from barrel_inference.kvcache.tier import NS_HEX, NoRoomError, Tier

MAX_OBJECT_BYTES = 8 << 30


class Moved(msgspec.Struct, frozen=True):
    """``tokens``: of the prompt (export only). ``present``: objects that were there already (import only)."""

    objects: int
    bytes: int
    tokens: int = 0
    present: int = 0
    refused: int = 0


def export(store: Store, tokens: Sequence[int], path: Path, *, salt: str = "") -> Moved:
    """Write all that is stored of a prompt to ``path``; CacheError when nothing is, or it cannot be written."""
    held = found(store, tokens, salt)
    namespace = store.folder[:NS_HEX]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")  # others may export there
    objects = n_bytes = 0
    try:
        with tarfile.open(temporary, "w") as tar:
            about = next(held.pieces).tier.folder(namespace) / "ns.json"
            if about.exists():
                _add(tar, f"{namespace}/ns.json", memoryview(about.read_bytes()))
            for piece in held.pieces:
                data = read_whole(piece.tier, namespace, piece.name)
                _add(tar, f"{namespace}/{piece.name.file}", data)
                objects += 1
                n_bytes += len(data)
        temporary.rename(path)
    except OSError as error:
        raise CacheError(f"cannot export to {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return Moved(objects, n_bytes, tokens=held.length)


def import_file(path: Path, tier: Tier) -> Moved:
    """Put the objects of an exported file into ``tier``. Damaged or foreign members are refused and counted; CacheError
    when the file cannot be read or the tier has no room."""
    objects = n_bytes = present = refused = 0
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CacheError(f"cannot import {path}: not a regular file")
        with tarfile.open(path, "r:") as tar:  # as export writes it: what is compressed could be a bomb
            for member in tar:
                data = _member(tar, member)
                namespace, name = _place(member)
                try:
                    if data is None or name is None:
                        raise CorruptError("not an object")
                    prove(data, namespace, name)
                except CorruptError:
                    refused += not member.name.endswith("/ns.json")
                    continue
                written = tier.put(namespace, name, [data])
                present += not written
                objects += written
                n_bytes += len(data) if written else 0
    except NoRoomError as error:
        raise CacheError(f"tier {tier.name} has no room for all of {path}") from error
    except (OSError, ValueError, tarfile.TarError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise CacheError(f"cannot import {path}: {reason}") from error
    return Moved(objects, n_bytes, present=present, refused=refused)


def _add(tar: tarfile.TarFile, name: str, data: memoryview) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> memoryview | None:
    file = tar.extractfile(member) if member.isreg() and member.size <= MAX_OBJECT_BYTES else None
    return memoryview(file.read()) if file is not None else None


def _place(member: tarfile.TarInfo) -> tuple[str, Name | None]:
    """Namespace and object that a member's name means; nothing else of the name is used."""
    namespace, _, file = member.name.partition("/")
    is_hex = len(namespace) == NS_HEX and not set(namespace) - set("0123456789abcdef")
    return namespace, parse_name(file) if is_hex else None
