"""Reads the header of a GGUF file and nothing else. Every count, length and offset is checked before it is used: what
passes here is safe to hand to llama.cpp, which aborts the process on much that is refused here. Owns nothing.

    "GGUF" | u32 version | u64 tensors | u64 keys | keys… | tensors… | padding | data
    key     = string name | u32 type | value          string = u64 length | bytes
    tensor  = string name | u32 dimensions | u64 each | u32 type | u64 offset
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from barrel_inference.errors import InvalidModelError
from barrel_inference.registry.gguf.cursor import Cursor
from barrel_inference.registry.gguf.tensors import MAX_DIMENSIONS, Tensor, check_layout, check_tensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_NAME_BYTES = 1 << 10
MAX_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME, less its NUL
MAX_STRING_BYTES = 4 << 20  # chat templates and licences; the longest seen is under 100 KB
MAX_KEPT_BYTES = 64 << 20  # all kept values of one file together
MAX_ARRAY_STRINGS = 1 << 22

_U32, _STRING, _ARRAY = 4, 8, 9
_SCALARS = {i: struct.Struct("<" + code) for i, code in enumerate("BbHhIif?")} | {
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}


class Skipped(NamedTuple):
    """Stands for an array too long to keep: its element type and how many."""

    type: str
    n_items: int


Scalar = bool | int | float | str
MetadataValue = Scalar | list[Scalar] | Skipped


class Header(NamedTuple):
    version: int
    metadata: dict[str, MetadataValue]
    tensors: tuple[Tensor, ...]
    data_offset: int


def read_header(fd: int, size: int, max_array: int) -> Header:
    """Parse the header of an open file of ``size`` bytes; arrays longer than ``max_array`` become ``Skipped``."""
    cursor = Cursor(fd, size)
    version = _read_version(cursor)
    n_tensors = _bounded(cursor.u64("the tensor count"), MAX_TENSORS, "tensors")
    n_keys = _bounded(cursor.u64("the key count"), MAX_KEYS, "metadata keys")
    metadata = _Metadata(cursor, max_array).read(n_keys)
    tensors = tuple(_read_tensor(cursor) for _ in range(n_tensors))
    _refuse_twins([tensor.name for tensor in tensors], "tensor")
    alignment = _alignment(metadata)
    data_offset = -(-cursor.offset // alignment) * alignment
    check_layout(tensors, alignment, size - data_offset)
    return Header(version, metadata, tensors, data_offset)


def _read_version(cursor: Cursor) -> int:
    if cursor.size < 24:
        raise InvalidModelError(f"too short for a GGUF file ({cursor.size} bytes)")
    if (magic := cursor.take(4, "the magic")) != MAGIC:
        raise InvalidModelError(f"not a GGUF file (it begins with {magic!r})")
    version = cursor.u32("the version")
    if version not in VERSIONS:
        big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        kind = "big-endian GGUF is" if big_endian else f"GGUF version {version} is"
        raise InvalidModelError(f"{kind} not supported")
    return version


def _bounded(count: int, limit: int, what: str) -> int:
    if count > limit:
        raise InvalidModelError(f"the file claims {count} {what}, the limit is {limit}")
    return count


def _read_string(cursor: Cursor, limit: int, what: str) -> str:
    length = _bounded(cursor.u64(what), limit, f"bytes for {what}")
    # Vocabularies and some licences hold broken UTF-8; a name that does is merely odd.
    return cursor.take(length, what).decode("utf-8", "replace")


def _refuse_twins(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidModelError(f"{what} {name!r} occurs twice")
        seen.add(name)


class _Metadata:
    """Reads the key-value section; counts what it keeps."""

    def __init__(self, cursor: Cursor, max_array: int) -> None:
        self._cursor = cursor
        self._max_array = max_array
        self._kept = 0

    def read(self, n_keys: int) -> dict[str, MetadataValue]:
        metadata: dict[str, MetadataValue] = {}
        for _ in range(n_keys):
            key = self._string("a metadata key", MAX_NAME_BYTES)
            if not key:
                raise InvalidModelError("a metadata key has no name")
            if key in metadata:
                raise InvalidModelError(f"metadata key {key!r} occurs twice")
            metadata[key] = self._value(key)
        return metadata

    def _value(self, key: str) -> MetadataValue:
        type_id = self._cursor.u32(f"the type of {key!r}")
        if key == "general.alignment" and type_id != _U32:
            raise InvalidModelError(f"{key} must be a 32-bit number, not of type {type_id}")
        return self._array(key) if type_id == _ARRAY else self._scalar(type_id, f"the value of {key!r}")

    def _array(self, key: str) -> MetadataValue:
        what = f"the array {key!r}"
        type_id, count = self._cursor.u32(what), self._cursor.u64(what)
        if type_id != _STRING:
            _scalar_struct(type_id, what)  # also when the array is empty
        if count <= self._max_array:
            return [self._scalar(type_id, what) for _ in range(count)]
        if type_id == _STRING:
            self._cursor.skip_strings(_bounded(count, MAX_ARRAY_STRINGS, f"strings in {what}"), what)
            return Skipped("str", count)
        self._cursor.skip(count * _scalar_struct(type_id, what).size, what)
        return Skipped(_scalar_struct(type_id, what).format[1:], count)

    def _scalar(self, type_id: int, what: str) -> Scalar:
        if type_id == _STRING:
            return self._string(what, MAX_STRING_BYTES)
        form = _scalar_struct(type_id, what)
        self._keep(form.size)
        value: Scalar = form.unpack(self._cursor.take(form.size, what))[0]
        return value

    def _string(self, what: str, limit: int) -> str:
        value = _read_string(self._cursor, limit, what)
        self._keep(len(value))
        return value

    def _keep(self, n_bytes: int) -> None:
        self._kept = _bounded(self._kept + n_bytes, MAX_KEPT_BYTES, "bytes of metadata")


def _scalar_struct(type_id: int, what: str) -> struct.Struct:
    if (form := _SCALARS.get(type_id)) is None:
        raise InvalidModelError(f"{what} has the unsupported type {type_id}")
    return form


def _read_tensor(cursor: Cursor) -> Tensor:
    name = _read_string(cursor, MAX_TENSOR_NAME_BYTES, "a tensor name")
    what = f"tensor {name!r}"
    n_dimensions = _bounded(cursor.u32(what), MAX_DIMENSIONS, f"dimensions for {what}")
    shape = struct.unpack(f"<{n_dimensions}Q", cursor.take(8 * n_dimensions, what))
    return check_tensor(name, shape, cursor.u32(what), cursor.u64(what))


def _alignment(metadata: dict[str, MetadataValue]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or value & (value - 1):
        raise InvalidModelError(f"general.alignment must be a power of two, not {value!r}")
    return value
