"""Blocks in parts: a tail is not written again when its conversation goes on, but completed by a rest."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from barrel_inference.engine.checkpoints.saving import Saver
from barrel_inference.kvcache.admin.archive import export, import_file
from barrel_inference.kvcache.admin.content import clear, pin, stats, verify
from barrel_inference.kvcache.chain import block_keys, pack_tokens, rest_key, root
from barrel_inference.kvcache.lookup import Found, find
from barrel_inference.kvcache.policy import Facts, victims
from barrel_inference.kvcache.record import MAX_PARTS, Name, Record, encode, payload_hash
from barrel_inference.kvcache.store import Shape, Store
from barrel_inference.kvcache.tier import Tier
from tests.kvcache.fake_backend import FakeBackend
from tests.kvcache.harness import Run, Runner, open_on, options, same, spec
from tests.kvcache.objects import NAMESPACE, payload, put, records, store

TOKENS = list(range(300))
PROMPT = list(range(10, 510))
LAYOUTS = [
    ("plain", {}),
    ("plain", {"v_trans": True}),
    ("swa", {"n_swa": 100}),
    ("swa", {"n_swa": 16}),
    ("swa", {"n_swa": 64}),
    ("swa", {"n_swa": 128}),
    ("hybrid", {}),
    ("hybrid_swa", {"n_swa": 100}),
]


def part(tokens: list[int], first: int) -> Record:
    """The rows from ``first`` to the end of ``tokens``, behind what ends at ``first`` in the same block."""
    keys = [root(NAMESPACE), *block_keys(root(NAMESPACE), pack_tokens(tokens))]
    i, start = first // 64, first // 64 * 64
    data = payload(tokens[first:])
    is_whole = len(tokens) == start + 64
    return Record(
        kind="rest",
        provenance="g",
        namespace=NAMESPACE,
        key=keys[i + 1] if is_whole else rest_key("tail", keys[i], pack_tokens(tokens[start:])),
        parent=rest_key("tail", keys[i], pack_tokens(tokens[start:first])),
        first=first,
        tokens=pack_tokens(tokens[first:]),
        created_us=1,
        cost_us=1000,
        payload_bytes=len(data),
        payload_hash=payload_hash([memoryview(data)]),
    )


def put_part(tier: Tier, tokens: list[int], first: int) -> Name:
    record = part(tokens, first)
    tier.put(NAMESPACE.hex(), record.name, [encode(record), payload(tokens[first:])])
    return record.name


def put_parts(tier: Tier, *ends: int) -> list[Name]:
    """What a conversation leaves that stopped at each of ``ends``, all in one block."""
    names = put(tier, TOKENS[: ends[0]], "g")
    return names + [put_part(tier, TOKENS[:end], before) for before, end in pairwise(ends)]


def put_tail(tier: Tier, tokens: list[int]) -> Name:
    """Without the blocks before it."""
    record = records(tokens, "g")[-1]
    tier.put(NAMESPACE.hex(), record.name, [encode(record), payload(tokens[record.first :])])
    return record.name


def look(one: Store, tokens: list[int], **more: object) -> Found:
    return find(one, tokens, limit=lambda at: at, **more)  # type: ignore[arg-type]


def spans(found: Found) -> list[tuple[str, int, int]]:
    return [(piece.name.kind, piece.start, piece.stop) for piece in found.blocks]


# ---- looking up


def test_a_block_in_parts_is_as_good_as_a_whole_one(tmp_path: Path) -> None:
    disk = Tier(spec(tmp_path))
    put_parts(disk, 150, 160, 192)
    found = look(store(disk), TOKENS)
    assert spans(found)[2:] == [("tail", 128, 150), ("rest", 150, 160), ("rest", 160, 192)]
    for piece in found.blocks:
        assert found.expected(piece).parent.hex().startswith(piece.name.parent)


@pytest.mark.parametrize("edited", [128, 140, 149, 150, 155, 159, 160, 170, 191])
def test_an_edit_reuses_the_parts_before_it(tmp_path: Path, edited: int) -> None:
    disk = Tier(spec(tmp_path))
    put_parts(disk, 150, 160, 192)
    found = look(store(disk), [*TOKENS[:edited], 999, *TOKENS[edited + 1 :]])
    assert (found.length, found.first_mismatch) == (edited, edited)
    assert [stop for _, _, stop in spans(found)][-1:] == [edited]


def test_the_longest_branch_lends(tmp_path: Path) -> None:
    disk = Tier(spec(tmp_path))
    put_parts(disk, 150, 180)
    other = [*TOKENS[:150], *[7] * 42]
    put_part(disk, other, 150)
    one = store(disk)
    assert look(one, TOKENS).length == 180
    assert look(one, [*other, 1]).length == 192
    assert look(one, [*TOKENS[:150], 7, 8]).first_mismatch == 151


@pytest.mark.parametrize("lost", [0, 1])
def test_without_a_part_the_rest_is_a_miss_and_not_known(tmp_path: Path, lost: int) -> None:
    disk = Tier(spec(tmp_path))
    _, _, *parts = put_parts(disk, 150, 160, 192)
    whole = parts[-1]._replace(kind="block", parent=parts[0].parent)
    assert store(disk).is_known(whole) and store(disk).is_listed(whole.key)
    disk.remove(NAMESPACE.hex(), parts[lost])
    assert not store(disk).is_known(whole) and not store(disk).is_listed(whole.key)
    assert look(store(disk), TOKENS).length == (128, 150)[lost]


def test_parts_lie_in_any_tier(tmp_path: Path) -> None:
    fast, slow = Tier(spec(tmp_path / "fast", name="fast")), Tier(spec(tmp_path / "slow", name="slow"))
    put(slow, TOKENS[:150], "g")
    put_part(fast, TOKENS[:192], 150)
    assert look(store(fast, slow), TOKENS).by_tier() == {"slow": 150, "fast": 42}
    assert look(store(fast, slow), TOKENS, tiers=[fast]).length == 0


def test_what_another_worker_adds_is_found(tmp_path: Path) -> None:
    disk = Tier(spec(tmp_path))
    put(disk, TOKENS[:150], "g")
    one = store(disk)
    assert look(one, TOKENS).length == 150
    put_part(disk, TOKENS[:192], 150)
    assert look(one, TOKENS).length == 192


def test_all_that_another_worker_adds_is_found_at_once(tmp_path: Path) -> None:
    """Not one block a lookup."""
    disk = Tier(spec(tmp_path))
    one = store(disk)
    for end in (10, 70, 140, 200):
        put_tail(disk, TOKENS[:end])
        put_part(disk, TOKENS[: end // 64 * 64 + 64], end)
    assert look(one, TOKENS).length == 256


def test_parts_serve_no_cold_prompt(tmp_path: Path) -> None:
    disk = Tier(spec(tmp_path))
    put(disk, TOKENS[:128], "p")
    put_parts(disk, 150, 192)
    assert look(store(disk), TOKENS, cold=True).length == 128


def test_a_prefilled_block_replaces_its_rest(tmp_path: Path) -> None:
    disk = Tier(spec(tmp_path))
    rest = put_parts(disk, 150, 192)[-1]
    one = store(disk)
    block = put(disk, TOKENS[:192], "p")[-1]
    record = part(TOKENS[:192], 150)
    one.saved(block, record, was_written=True)
    assert not disk.has(NAMESPACE.hex(), rest)
    assert spans(look(one, TOKENS))[-1] == ("block", 128, 192)


@pytest.mark.parametrize("lost", [0, 1])
def test_one_of_two_rests_of_a_block_may_go(tmp_path: Path, lost: int) -> None:
    """Two workers cut it differently: what one of them wrote is enough."""
    disk = Tier(spec(tmp_path))
    names = [put_parts(disk, 150, 192)[-1], put_parts(disk, 160, 192)[-1]]
    one = store(disk)
    assert look(one, TOKENS).length == 192
    disk.remove(NAMESPACE.hex(), names[lost])
    assert look(one, TOKENS).length == 192 and one.is_known(names[0])
    disk.remove(NAMESPACE.hex(), names[1 - lost])
    assert look(one, TOKENS).length == 160
    assert not one.is_known(names[0]) and not one.is_known(names[1])


@pytest.mark.parametrize("lost", [150, 160])
def test_the_tail_of_one_of_two_rests_may_go(tmp_path: Path, lost: int) -> None:
    disk = Tier(spec(tmp_path))
    names = {end: put_parts(disk, end, 192) for end in (150, 160)}
    behind = put_tail(disk, TOKENS[:200])
    disk.remove(NAMESPACE.hex(), names[lost][-2])
    one = store(disk)
    assert one.parts(names[lost][-1].key) == 2
    assert look(one, TOKENS).length == 200
    assert one.tokens_behind(behind.key) == tuple(TOKENS[:200])


class Counting(Store):
    """How often it was asked for a header."""

    n_asked = 0

    def head(self, tier: Tier, name: Name) -> Record | None:
        self.n_asked += 1
        return super().head(tier, name)


def test_many_ways_through_a_block_are_walked_once(tmp_path: Path) -> None:
    """Every tail completed by a rest to every longer one: 2 ** 14 ways."""
    disk = Tier(spec(tmp_path))
    put(disk, TOKENS[:128], "g")
    ends = range(130, 146)
    for end in ends:
        put_tail(disk, TOKENS[:end])
        for first in range(130, end):
            put_part(disk, TOKENS[:end], first)
    one = Counting([disk], disk, NAMESPACE, Shape(True, 0, False))
    for name in [stored.name for stored in disk.objects()]:
        one.head(disk, name)
    one.n_asked = 0
    assert look(one, TOKENS).length == 145
    assert one.n_asked < 1000


def test_a_made_up_circle_ends(tmp_path: Path) -> None:
    disk = Tier(spec(tmp_path))
    name = put_parts(disk, 150, 192)[-1]
    one = store(disk)
    one.index(disk).by_key[name.key].names = (name._replace(parent=name.key),)
    assert one.parts(name.key) == 0
    assert look(one, TOKENS).length <= 192


def test_made_up_ways_are_walked_once_before_writing(tmp_path: Path) -> None:
    keys = [f"{i:032x}" for i in range(200)]
    one = store(disk := Tier(spec(tmp_path)))
    with one.lock:
        for key in keys:
            for parent in keys:
                one.index(disk).add(Name(parent, key, "rest", "g"))
    assert one.parts(keys[0]) == 0


# ---- a conversation that grows


def conversation(path: Path, kind: str, turns: list[tuple[int, int]], **facts: object) -> tuple[Runner, list[Run]]:
    """Each turn by another worker: what it goes on from is read from the store."""
    said: list[int] = PROMPT[:100]
    runs: list[Run] = []
    for n_asked, n_answered in turns:
        backend = FakeBackend(kind, **facts)
        one = Runner(backend, open_on(backend, options(spec(path))))
        prompt = [*said, *PROMPT[len(said) : len(said) + n_asked]]
        runs.append(one.run(prompt, n_answered))
        said = runs[-1].tokens
        one.checkpoints.close()
    backend = FakeBackend(kind, **facts)
    return Runner(backend, open_on(backend, options(spec(path)))), runs


@pytest.mark.parametrize(("kind", "facts"), LAYOUTS)
def test_every_turn_goes_on_exactly_and_is_written_once(tmp_path: Path, kind: str, facts: dict[str, object]) -> None:
    turns = [(3, 4), (9, 5), (20, 30), (1, 1), (60, 40), (11, 9), (1, 135), (30, 0)]
    one, runs = conversation(tmp_path, kind, turns, **facts)
    for before, run in pairwise(runs):
        assert run.restored == len(before.tokens)
    end = [*runs[-1].tokens, 7, 8]
    backend = FakeBackend(kind, **facts)
    cold = Runner(backend, open_on(backend, options())).run(end, 3)
    warm = one.run(end, 3)
    assert warm.restored == len(runs[-1].tokens) and same(warm, cold)
    rows = Counter[tuple[int, int]]()
    for piece in find(_store(one), [*warm.tokens, 1], limit=lambda at: at).blocks:
        rows[piece.first, piece.last] += 1
    assert sum(last - first for first, last in rows) == len(warm.tokens), "as many rows as tokens"
    assert sum(1 for _ in tmp_path.glob("*/*/*.tail.*")) + sum(1 for _ in tmp_path.glob("*/*/*.rest.*")) == len(
        [first for first, last in rows if last - first < 64]
    ), "and no part is left over"


def test_another_answer_writes_its_own_tokens_alone(tmp_path: Path) -> None:
    backend = FakeBackend("plain")
    one = Runner(backend, open_on(backend, options(spec(tmp_path))))
    one.run(PROMPT[:150], 100, forced=[1] * 100)
    assert one.checkpoints.counters["saved_tokens"] == 250
    one.run(PROMPT[:150], 100, forced=[2] * 100)
    assert one.checkpoints.counters["saved_tokens"] == 350


@pytest.mark.parametrize(("kind", "facts"), LAYOUTS)
def test_another_question_goes_on_from_the_same_tail(tmp_path: Path, kind: str, facts: dict[str, object]) -> None:
    one, runs = conversation(tmp_path, kind, [(3, 4), (9, 50), (20, 30)], **facts)
    for run in runs:
        assert one.run([*run.tokens, 7], cache="read").restored == len(run.tokens)


@pytest.mark.parametrize("n_swa", [16, 64, 100, 128])
def test_without_the_window_of_the_block_that_of_its_tail_serves(tmp_path: Path, n_swa: int) -> None:
    one, runs = conversation(tmp_path, "swa", [(3, 4), (9, 50)], n_swa=n_swa)
    block = block_keys(root(_store(one).namespace), pack_tokens(runs[-1].tokens))[1].hex()[:32]
    next(tmp_path.glob(f"*/*/*-{block}.window.*")).unlink()
    assert one.run([*runs[-1].tokens[:128], 7], cache="read").restored == len(runs[0].tokens)


@pytest.mark.parametrize("n_swa", [16, 64, 100, 128, 200])
def test_a_window_that_begins_before_its_rest_is_copied_whole(
    tmp_path: Path, n_swa: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it at the end, from one long batch: a copied range is no longer than the window."""
    said = list(range(500, 800))
    monkeypatch.setattr(Saver, "after_step", lambda *_: None)  # as where the queue had no room before
    for before, n in ((0, 127), (127, 190), (190, 253)):
        backend = FakeBackend("swa", n_swa=n_swa)
        one = Runner(backend, open_on(backend, options(spec(tmp_path))))
        assert one.run(said[:n]).restored == before
        assert one.checkpoints.counters["incomplete"] == 0
        one.checkpoints.close()
    assert any(tmp_path.glob("*/*/*.rest.*"))


def test_a_block_has_no_more_than_so_many_parts(tmp_path: Path) -> None:
    one, runs = conversation(tmp_path, "plain", [(1, 2)] * 30)
    found = find(_store(one), [*runs[-1].tokens, 1], limit=lambda at: at)
    assert found.length == len(runs[-1].tokens)
    assert 2 < max(Counter(piece.start // 64 for piece in found.blocks).values()) <= MAX_PARTS
    tails = Counter(path.name[:32] for path in tmp_path.glob("*/*/*.tail.*"))
    assert max(tails.values()) == 6, "of some 43 prompts and answers in a block each eighth is whole again"
    assert one.run([*runs[-1].tokens, 1], 1).restored == len(runs[-1].tokens)


def test_a_lost_tail_is_written_again_with_all_of_its_block(tmp_path: Path) -> None:
    one, runs = conversation(tmp_path, "plain", [(10, 10), (3, 50)])
    next(tmp_path.glob("*/*/*.tail.*")).unlink()
    again = one.run([*runs[-1].tokens, 5])
    assert again.restored == 64
    whole = find(_store(one), [*again.tokens, 1], limit=lambda at: at)
    assert whole.length == len(again.tokens) and all(piece.name.kind != "rest" for piece in whole.blocks)


def test_a_corrupt_rest_is_a_miss_behind_its_tail(tmp_path: Path) -> None:
    one, runs = conversation(tmp_path, "plain", [(10, 10), (3, 50)])
    path = next(tmp_path.glob("*/*/*.rest.*"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert one.run([*runs[-1].tokens, 5]).restored == len(runs[0].tokens)
    assert one.checkpoints.counters["corrupt"] == 1


def test_finish_keys_stand_for_their_tokens_in_parts(tmp_path: Path) -> None:
    one, runs = conversation(tmp_path, "plain", [(10, 10), (3, 4), (2, 60)])
    for run in runs:
        assert one.checkpoints.tokens_behind(str(run.finish_key), 1.0) == tuple(run.tokens)


# ---- care


def test_parts_are_shipped_pinned_counted_and_proven(tmp_path: Path) -> None:
    one, runs = conversation(tmp_path / "here", "plain", [(10, 10), (3, 50)])
    moved = export(_store(one), [*runs[-1].tokens, 1], tmp_path / "prefix.kv")
    there = Tier(spec(tmp_path / "there"))
    assert import_file(tmp_path / "prefix.kv", there).tokens == len(runs[-1].tokens) == moved.tokens
    (held,) = stats([there])
    assert held.by_kind == {"block": 1, "tail": 2, "rest": 3} and held.objects == moved.objects
    assert verify([there]).corrupt == 0
    backend = FakeBackend("plain")
    other = Runner(backend, open_on(backend, options(spec(tmp_path / "there"))))
    pin(_store(other), [*runs[-1].tokens, 1])
    clear([there], older_than=1e12)
    assert other.run([*runs[-1].tokens, 1], cache="read").restored == len(runs[-1].tokens)


def test_a_rest_is_evicted_before_its_tail(tmp_path: Path) -> None:
    disk = Tier(spec(tmp_path))
    first, second, tail, rest = put_parts(disk, 150, 192)
    behind = put(disk, TOKENS[:200], "g")
    block = put(disk, TOKENS[:192], "p")[-1]  # and a whole one of the same tokens
    chosen = victims(disk.objects(), 1 << 20, now=1e12, facts=lambda one: Facts(1.0, 0), hits={})
    order = [one.name for one in chosen]
    assert order[0] == behind[-1] and set(order[1:4]) == {rest, block, behind[-2]}
    assert order.index(tail) > order.index(rest) and order.index(second) > order.index(tail)
    assert order.index(first) > order.index(second)


def _store(one: Runner) -> Store:
    assert one.checkpoints.store is not None
    return one.checkpoints.store
