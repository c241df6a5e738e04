"""Object headers and file names."""

from __future__ import annotations

import random

import pytest

from barrel_inference.kvcache.chain import pack_tokens
from barrel_inference.kvcache.record import (
    CorruptError,
    Expected,
    Name,
    Record,
    decode,
    encode,
    header_bytes,
    parse_name,
    payload_hash,
    verify,
)


def record(n_tokens: int = 64, **changes: object) -> Record:
    facts: dict[str, object] = {
        "kind": "block",
        "provenance": "p",
        "namespace": b"n" * 32,
        "key": b"k" * 32,
        "parent": b"p" * 32,
        "first": 128,
        "tokens": pack_tokens(range(n_tokens)),
        "created_us": 1,
        "cost_us": 250_000,
        "payload_bytes": 3,
        "payload_hash": payload_hash([memoryview(b"abc")]),
    }
    return Record(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("n_tokens", [0, 1, 63, 64, 5000])
def test_a_header_comes_back(n_tokens: int) -> None:
    written = record(n_tokens)
    header = encode(written)
    assert len(header) == header_bytes(n_tokens)
    assert len(header) % 64 == 0
    assert decode(header + b"payload") == written


def test_a_header_costs_little() -> None:
    assert header_bytes(64) <= 448


def test_any_flipped_byte_is_noticed() -> None:
    header = bytearray(encode(record()))
    rng = random.Random(3)
    for at in range(len(header)):
        bad = bytearray(header)
        bad[at] ^= 1 << rng.randrange(8)
        with pytest.raises(CorruptError):
            decode(bad)


def test_any_short_header_is_noticed() -> None:
    header = encode(record())
    for size in range(len(header)):
        with pytest.raises(CorruptError):
            decode(header[:size])


def test_names_come_back() -> None:
    name = record(provenance="g", kind="window").name
    assert parse_name(name.file) == name
    assert name.shard == name.parent[:2]


@pytest.mark.parametrize("file", ["", "ns.json", "a-b.block.p", "../x", f"{'0' * 32}-{'g' * 32}.block.p", "x" * 100])
def test_other_files_are_not_objects(file: str) -> None:
    assert parse_name(file) is None


def test_a_hash_alone_is_never_trusted() -> None:
    held = record()
    expected = Expected(held.namespace, "block", held.parent, 128, held.tokens)
    verify(held, expected)
    for wrong in (
        record(namespace=b"x" * 32),
        record(parent=b"x" * 32),
        record(first=64),
        record(kind="tail"),
        record(tokens=pack_tokens([*range(63), 999])),
        record(tokens=pack_tokens(range(63))),
    ):
        with pytest.raises(CorruptError):
            verify(wrong, expected)


def test_the_start_of_an_object_may_be_wanted() -> None:
    held = record()
    verify(held, Expected(held.namespace, "block", held.parent, 128, held.tokens[:40]))


def test_name_of_keys() -> None:
    assert Name.of(b"\1" * 32, b"\2" * 32, "tail", "g").file == f"{'01' * 16}-{'02' * 16}.tail.g"
