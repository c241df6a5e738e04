"""Small but real GGUF files as bytes, of any size wanted. Pure."""

from __future__ import annotations

import random
import struct
from typing import Any

_TYPES: dict[type, tuple[int, str]] = {bool: (7, "<?"), int: (4, "<I"), float: (6, "<f")}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """One metadata value with its type."""
    if isinstance(item, str):
        return struct.pack("<I", 8) + text(item)
    if isinstance(item, list):
        kind = 8 if isinstance(item[0], str) else _TYPES[type(item[0])][0]
        body = b"".join(text(each) if kind == 8 else struct.pack(_TYPES[type(each)][1], each) for each in item)
        return struct.pack("<IIQ", 9, kind, len(item)) + body
    kind, form = _TYPES[type(item)]
    return struct.pack("<I", kind) + struct.pack(form, item)


def header(metadata: dict[str, Any], tensors: list[tuple[str, tuple[int, ...], int, int]]) -> bytes:
    """Everything before the data; tensors are (name, shape, type, offset)."""
    keys = b"".join(text(key) + value(item) for key, item in metadata.items())
    infos = b"".join(
        text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        for name, shape, kind, offset in tensors
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + keys + infos
    return head + bytes(-len(head) % 32)


def model(size: int = 4096, seed: int = 0, **metadata: Any) -> bytes:
    """A model with one tensor of about ``size`` random bytes."""
    n_floats = max(8, size // 32 * 8)
    facts = {
        "general.architecture": "llama",
        "general.name": f"test {seed}",
        "general.file_type": 0,
        "llama.context_length": 2048,
        "llama.embedding_length": 64,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    head = header({**facts, **metadata}, [("weights", (n_floats,), 0, 0)])
    return head + random.Random(seed).randbytes(4 * n_floats)


def shards(count: int, seed: int = 0) -> list[bytes]:
    """A split model, one tensor a file."""
    parts = []
    for number in range(count):
        facts: dict[str, Any] = {"general.architecture": "llama"} if number == 0 else {}
        facts |= {"split.no": number, "split.count": count, "split.tensors.count": count}
        data = random.Random(seed + number).randbytes(1024)
        parts.append(header(facts, [(f"t{number}", (256,), 0, 0)]) + data)
    return parts
