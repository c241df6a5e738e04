"""Bounded GGUF metadata reading: ``read(path)``. Milliseconds for any file, and safe on hostile ones. Owns nothing."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path, PurePath
from typing import TypeVar

from barrel_inference.errors import InvalidModelError, os_reason
from barrel_inference.registry.gguf.info import GgufInfo
from barrel_inference.registry.gguf.reader import Header, MetadataValue, Skipped, read_header
from barrel_inference.registry.gguf.tensors import Tensor

__all__ = [
    "GgufInfo",
    "MetadataValue",
    "Skipped",
    "Tensor",
    "is_first_of_model",
    "read",
    "read_file",
    "read_files",
    "shard_paths",
]

MAX_ARRAY = 1024  # keeps what is a layer's or a head's; vocabularies are skipped
MAX_SHARDS = 1000

AnyPath = TypeVar("AnyPath", bound=PurePath)

_LATER_SHARD = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def read(path: str | os.PathLike[str], *, max_array: int = MAX_ARRAY) -> GgufInfo:
    """Everything but the weights of the model at ``path``: one file, or the first of a split model's.

    Raises ``InvalidModelError`` (one line, the cause named) for what is missing, malformed, truncated or not GGUF.
    """
    return read_files(shard_paths(Path(path)), max_array=max_array)


def read_files(paths: tuple[Path, ...], *, max_array: int = MAX_ARRAY) -> GgufInfo:
    """As ``read``, with all files of a split model given in order, whatever they are called."""
    parts = [read_file(path, max_array=max_array) for path in paths]
    first = parts[0][0]
    expected = first.metadata.get("split.count", 1) or 1
    if expected != len(parts):
        raise InvalidModelError(f"{paths[0].name}: split into {expected} files, {len(parts)} are given")
    for number, (header, _) in enumerate(parts):
        if header.metadata.get("split.no", 0) != number:
            raise InvalidModelError(f"{paths[number].name}: not part {number + 1} of {len(parts)}")
    tensors = tuple(tensor for header, _ in parts for tensor in header.tensors)
    declared = first.metadata.get("split.tensors.count", len(tensors))
    if len(parts) > 1 and declared != len(tensors):
        raise InvalidModelError(f"{paths[0].name}: {declared} tensors declared, the parts hold {len(tensors)}")
    return GgufInfo(paths[0], paths, first.version, first.metadata, tensors, sum(size for _, size in parts))


def is_first_of_model(name: str) -> bool:
    """Whether a file of this name is a model's only or first file: no projector, no later shard."""
    lower = name.lower()
    return lower.endswith(".gguf") and "mmproj" not in lower and not _LATER_SHARD.search(lower)


def shard_paths(path: AnyPath) -> tuple[AnyPath, ...]:
    """All files of the model that ``path`` is the first file of."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match["count"])
    if int(match["number"]) != 1:
        raise InvalidModelError(f"{path.name}: name the first file of a split model, {match['stem']}-00001-of-…")
    if not 1 <= count <= MAX_SHARDS:
        raise InvalidModelError(f"{path.name}: a model of {count} files")
    return tuple(path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1))


def read_file(path: Path, *, max_array: int = MAX_ARRAY) -> tuple[Header, int]:
    """Header and size of one file. Only regular files are read: a pipe or a device could block or never end."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidModelError("not a regular file")
        return read_header(fd, status.st_size, max_array), status.st_size
    except OSError as error:
        raise InvalidModelError(f"{path.name}: {os_reason(error)}", path=str(path)) from None
    except ValueError:  # a NUL in the path
        raise InvalidModelError("not a file name", path=str(path)) from None
    except InvalidModelError as error:
        raise InvalidModelError(f"{path.name}: {error.message}", path=str(path)) from None
    finally:
        if fd >= 0:
            os.close(fd)
