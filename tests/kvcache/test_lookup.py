"""The walk along a chain: how far a prompt can be restored, and from what."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from barrel_inference.kvcache.chain import rest_key
from barrel_inference.kvcache.lookup import Found, find
from barrel_inference.kvcache.record import Record, encode
from barrel_inference.kvcache.store import Shape, Store
from barrel_inference.kvcache.tier import Tier
from tests.kvcache.harness import spec
from tests.kvcache.objects import NAMESPACE, put, records, store

TOKENS = list(range(300))


def tier(path: Path, name: str = "disk") -> Tier:
    return Tier(spec(path / name, name=name))


def look(one: Store, tokens: list[int], **more: object) -> Found:
    return find(one, tokens, limit=lambda at: at, **more)  # type: ignore[arg-type]


def test_the_longest_beginning_is_found_to_the_token(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    put(disk, TOKENS[:200])
    one = store(disk)
    assert look(one, TOKENS).length == 200
    assert look(one, TOKENS[:130]).length == 129, "the last token is always decoded"
    assert look(one, TOKENS[:1]).length == 0
    assert look(one, []).length == 0
    assert look(one, [999, *TOKENS]).length == 0


@pytest.mark.parametrize("edited", [0, 1, 63, 64, 100, 191, 192, 199])
def test_an_edit_reuses_everything_before_it(tmp_path: Path, edited: int) -> None:
    disk = tier(tmp_path)
    put(disk, TOKENS[:200])
    found = look(store(disk), [*TOKENS[:edited], 999, *TOKENS[edited + 1 :]])
    assert (found.length, found.first_mismatch) == (edited, edited)


def test_the_fastest_tier_that_has_an_object_lends_it(tmp_path: Path) -> None:
    fast, slow = tier(tmp_path, "fast"), tier(tmp_path, "slow")
    put(slow, TOKENS[:256])
    put(fast, TOKENS[:128])
    one = store(fast, slow)
    found = look(one, TOKENS)
    assert [piece.tier.name for piece in found.blocks] == ["fast", "fast", "slow", "slow"]
    assert found.by_tier() == {"fast": 128, "slow": 128}
    assert look(one, TOKENS, tiers=[fast]).length == 128
    assert look(one, TOKENS, tiers=[]).length == 0


def test_the_chain_ends_at_the_first_gap(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    names = put(disk, TOKENS[:256])
    disk.remove(NAMESPACE.hex(), names[1])
    assert look(store(disk), TOKENS).length == 64


def test_what_was_generated_serves_no_cold_prompt(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    put(disk, TOKENS[:64], "p")
    put(disk, TOKENS[:128], "g")
    one = store(disk)
    assert look(one, TOKENS).length == 128
    assert look(one, TOKENS).prefill_end == 64
    assert look(one, TOKENS, cold=True).length == 64


def test_salts_and_namespaces_keep_apart(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    put(disk, TOKENS[:128], salt="one")
    one = store(disk)
    assert [look(one, TOKENS, salt=salt).length for salt in ("one", "two", "")] == [128, 0, 0]
    other = Store([disk], disk, b"\x08" * 32, one.shape)
    assert look(other, TOKENS, salt="one").length == 0


def test_the_request_may_limit_where_it_resumes(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    put(disk, TOKENS[:256])
    found = find(store(disk), TOKENS, limit=lambda at: at // 100 * 100)
    assert found.length == 200
    assert [(piece.start, piece.stop) for piece in found.blocks] == [(0, 64), (64, 128), (128, 192), (192, 200)]


def test_a_damaged_lender_is_given_up_and_another_taken(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    long, short = put(disk, TOKENS[:100])[1], put(disk, TOKENS[:80])[1]
    one = store(disk)
    assert look(one, TOKENS).length == 100
    path = Path(disk.path(NAMESPACE.hex(), long))
    path.write_bytes(b"\0" * 500)
    again = store(disk)
    found = look(again, TOKENS)
    assert (found.length, found.blocks[-1].name) == (80, short)
    assert again.counters["corrupt"] == 1
    assert not path.exists()


def add(disk: Tier, of: Record, **changes: object) -> None:
    made = dataclasses.replace(of, **changes)  # type: ignore[arg-type]
    disk.put(NAMESPACE.hex(), made.name, [encode(made), bytes(made.payload_bytes)])


@pytest.mark.parametrize(("provenance", "prefilled"), [("p", 128), ("g", 0)])
def test_what_goes_on_from_a_generated_state_is_not_as_if_prefilled(
    tmp_path: Path, provenance: str, prefilled: int
) -> None:
    """Whatever the blocks before it: ``exact="cold"`` must not get what such a run saves."""
    disk = tier(tmp_path)
    put(disk, TOKENS[:128])
    parent = records(TOKENS[:128])[1].key
    key = rest_key("state", parent, b"")
    state = {"kind": "state", "parent": parent, "key": key, "first": 128, "tokens": b"", "provenance": provenance}
    add(disk, records(TOKENS[:128])[1], **state)
    found = look(store(disk, shape=Shape(has_blocks=True, n_swa=0, has_state=True)), TOKENS)
    assert (found.length, found.prefill_end) == (128, prefilled)


@pytest.mark.parametrize(("provenance", "prefilled"), [("p", 128), ("g", 64)])
def test_what_goes_on_from_a_generated_window_is_not_as_if_prefilled(
    tmp_path: Path, provenance: str, prefilled: int
) -> None:
    disk = tier(tmp_path)
    put(disk, TOKENS[:128])
    for record, own in zip(records(TOKENS[:128]), ("p", provenance), strict=True):
        add(disk, record, kind="window", provenance=own)
    found = look(store(disk, shape=Shape(has_blocks=True, n_swa=100, has_state=False)), TOKENS)
    assert (found.length, found.prefill_end) == (128, prefilled)
