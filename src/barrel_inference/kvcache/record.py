"""One object file: a header that proves what the payload is, then the payload. Pure.

    offset  size  field                                offset  size  field
    0       4     magic "BKVB"                         108     4     token count
    4       2     version                              112     8     created, microseconds since 1970
    6       1     kind                                 120     8     cost_us: measured prefill time
    7       1     flags: 1 = holds generated rows      128     8     payload length
    8       32    namespace                            136     8     payload xxh3-64
    40      32    key                                  144     4     header length
    72      32    parent key                           148     4n    tokens, u32
    104     4     first position                       last 8        xxh3-64 of the header before it

All little endian; the header is padded with zeros to a multiple of 64, and the payload follows at once. The file is
named ``<parent>-<key>.<kind>.<provenance>`` with the first 128 bits of both keys, in the folder of the parent's first
two digits: the children of a chain position share a folder.

A ``rest`` completes a tail, so that what grows is not written again: its parent is the tail (or rest) at whose end it
begins, its key that of the block or tail which they make up together.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

import msgspec
import xxhash

from barrel_inference.errors import CacheError
from barrel_inference.kvcache.chain import NAME_HEX

MAGIC = b"BKVB"
VERSION = 1
ALIGN = 64
FIXED = struct.Struct("<4sHBB32s32s32sIIQQQQI")
CHECKSUM = struct.Struct("<Q")
MAX_HEADER = 4 << 20  # a million tokens: enough for a state that carries its whole prompt

ObjectKind = Literal["block", "tail", "window", "state", "rest"]
Provenance = Literal["p", "g"]  # computed by prefill as a cold run would, or not
KINDS: tuple[ObjectKind, ...] = get_args(ObjectKind)
PROVENANCES: tuple[Provenance, ...] = get_args(Provenance)  # the better one first
ROWS: tuple[ObjectKind, ...] = ("block", "tail", "rest")  # of one key the best first
MAX_PARTS = 8  # of a tail or block; each is a file to read
FILE = re.compile(rf"([0-9a-f]{{{NAME_HEX}}})-([0-9a-f]{{{NAME_HEX}}})\.({'|'.join(KINDS)})\.([pg])")


class CorruptError(CacheError):
    """The file is not the object it is named as."""


class Name(NamedTuple):
    """What a file's name says. ``parent`` and ``key`` are 32 hex digits."""

    parent: str
    key: str
    kind: ObjectKind
    provenance: Provenance

    @property
    def file(self) -> str:
        return f"{self.parent}-{self.key}.{self.kind}.{self.provenance}"

    @property
    def shard(self) -> str:
        return self.parent[:2]

    @classmethod
    def of(cls, parent: bytes, key: bytes, kind: ObjectKind, provenance: Provenance) -> Name:
        return cls(short(parent), short(key), kind, provenance)


def short(key: bytes) -> str:
    return key[: NAME_HEX // 2].hex()


def parse_name(file: str) -> Name | None:
    """None for files that are not objects."""
    found = FILE.fullmatch(file)
    if found is None:
        return None
    parent, key, kind, provenance = found.groups()
    return Name(parent, key, cast(ObjectKind, sys.intern(kind)), cast(Provenance, provenance))  # one kind for them all


@dataclass(frozen=True)
class Record:
    """The header. ``tokens`` are packed u32; they occupy positions ``first`` onwards."""

    kind: ObjectKind
    provenance: Provenance
    namespace: bytes
    key: bytes
    parent: bytes
    first: int
    tokens: bytes
    created_us: int
    cost_us: int
    payload_bytes: int
    payload_hash: int

    @property
    def count(self) -> int:
        return len(self.tokens) // 4

    @property
    def header_bytes(self) -> int:
        return header_bytes(self.count)

    @property
    def name(self) -> Name:
        return Name.of(self.parent, self.key, self.kind, self.provenance)


def header_bytes(n_tokens: int) -> int:
    return -(-(FIXED.size + 4 * n_tokens + CHECKSUM.size) // ALIGN) * ALIGN


def payload_hash(pieces: Iterable[memoryview]) -> int:
    state = xxhash.xxh3_64()
    for piece in pieces:
        state.update(piece)
    return state.intdigest()


def encode(record: Record) -> bytes:
    """The header of ``record``, padded."""
    size = header_bytes(record.count)
    fixed = FIXED.pack(
        MAGIC,
        VERSION,
        KINDS.index(record.kind),
        record.provenance == "g",
        record.namespace,
        record.key,
        record.parent,
        record.first,
        record.count,
        record.created_us,
        record.cost_us,
        record.payload_bytes,
        record.payload_hash,
        size,
    )
    body = (fixed + record.tokens).ljust(size - CHECKSUM.size, b"\0")
    return body + CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def decode(header: bytes | bytearray | memoryview) -> Record:
    """Parse and verify a header (``header`` may go on into the payload); CorruptError when anything is off."""
    if len(header) < FIXED.size:
        raise CorruptError("the header is cut short")
    (magic, version, kind, flags, namespace, key, parent, first, count, created, cost, length, hashed, size) = (
        FIXED.unpack_from(header)
    )
    if magic != MAGIC or version != VERSION or kind >= len(KINDS):
        raise CorruptError("not an object of this version")
    if size != header_bytes(count) or size > len(header):
        raise CorruptError("the header has a wrong length")
    body = bytes(header[: size - CHECKSUM.size])
    if CHECKSUM.unpack_from(header, size - CHECKSUM.size)[0] != xxhash.xxh3_64_intdigest(body):
        raise CorruptError("the header's checksum is wrong")
    tokens = body[FIXED.size : FIXED.size + 4 * count]
    provenance: Provenance = "g" if flags & 1 else "p"
    return Record(KINDS[kind], provenance, namespace, key, parent, first, tokens, created, cost, length, hashed)


class Expected(msgspec.Struct, frozen=True):
    """What a request knows of the object it wants. ``tokens``: packed; an object may hold more than these."""

    namespace: bytes
    kind: ObjectKind
    parent: bytes
    first: int
    tokens: bytes


def verify(record: Record, expected: Expected) -> None:
    """A hash alone is never trusted: CorruptError unless namespace, place and tokens are the request's own."""
    if record.namespace != expected.namespace:
        raise CorruptError("the object belongs to another namespace")
    if (record.kind, record.parent, record.first) != (expected.kind, expected.parent, expected.first):
        raise CorruptError("the object belongs to another place")
    if not record.tokens.startswith(expected.tokens):
        raise CorruptError("the object holds other tokens")
