"""Writes small GGUF files: metadata and float tensors, nothing else. Pure but for the file it writes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Scalar = bool | int | float | str
Value = Scalar | Sequence[int] | Sequence[float] | Sequence[str]
Tensors = Mapping[str, NDArray[np.float32]]

ALIGNMENT = 32


class U16(int):
    """An integer that is written in 16 bits, as some keys of split files want it."""


class I32(int):
    """An integer that is written with its sign."""


_FORMATS = {"u16": (2, "<H"), "u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}
_STRING, _ARRAY = 8, 9


def write_gguf(path: Path, metadata: Mapping[str, Value], tensors: Tensors | None = None) -> Path:
    """Integers become u32 (i32 in lists), floats f32; ``tensors`` have numpy's order of dimensions."""
    tensors = tensors or {}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    data = b""
    for name, array in tensors.items():
        dimensions = struct.pack(f"<I{array.ndim}Q", array.ndim, *reversed(array.shape))
        head += _text(name) + dimensions + struct.pack("<IQ", 0, len(data))
        data += _padded(array.astype("<f4").tobytes())
    path.write_bytes(_padded(head) + data)
    return path


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, Sequence):
        return struct.pack("<I", _ARRAY) + _array(value)
    number, form = _FORMATS[_kind(value)]
    return struct.pack("<I", number) + struct.pack(form, value)


def _array(values: Sequence[Scalar]) -> bytes:
    if isinstance(values[0], str):
        return struct.pack("<IQ", _STRING, len(values)) + b"".join(_text(str(value)) for value in values)
    number, form = _FORMATS["i32" if _kind(values[0]) == "u32" else _kind(values[0])]
    return struct.pack("<IQ", number, len(values)) + b"".join(struct.pack(form, value) for value in values)


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, U16 | I32):
        return type(value).__name__.lower()
    return "f32" if isinstance(value, float) else "u32"
