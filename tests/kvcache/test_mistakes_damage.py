"""Mistakes others made with bad files, full disks, slow disks and several processes."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from barrel_inference.kvcache.admin.content import verify
from barrel_inference.kvcache.chain import pack_tokens
from barrel_inference.kvcache.record import FIXED, decode, encode, header_bytes
from barrel_inference.kvcache.tier import Medium, Tier
from tests.kvcache.fake_backend import FakeBackend
from tests.kvcache.harness import Runner, open_on, open_with_medium, options, same, spec

PROMPT = list(range(10, 510))


def runner(path: Path, **tier: object) -> Runner:
    backend = FakeBackend()
    return Runner(backend, open_on(backend, options(spec(path, **tier))))


def objects(path: Path, kind: str = "block") -> list[Path]:
    return sorted(path.glob(f"*/*/*.{kind}.*"))


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


HEADER = header_bytes(64)
DAMAGES = {
    "magic": flip(0),
    "version": flip(4),
    "kind": flip(6),
    "flags": flip(7),
    "namespace": flip(10),
    "key": flip(45),
    "parent": flip(80),
    "first position": flip(104),
    "token count": flip(108),
    "created": flip(113),
    "payload length": flip(129),
    "payload checksum": flip(137),
    "header length": flip(145),
    "tokens": flip(FIXED.size + 9),
    "header checksum": flip(HEADER - 3),
    "payload": flip(HEADER + 100),
    "last byte": lambda data: flip(len(data) - 1)(data),
    "cut short": lambda data: data[:-1],
    "only a header": lambda data: data[:HEADER],
    "half a header": lambda data: data[:100],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"x",
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_mistake_05_crash_loop_on_a_bad_file(tmp_path: Path, damage: str) -> None:
    first = runner(tmp_path)
    whole = first.run(PROMPT)
    first.checkpoints.close()
    files = [path for path in objects(tmp_path) if path.name.endswith(".p")]
    victim = files[3]
    victim.write_bytes(DAMAGES[damage](victim.read_bytes()))

    again = runner(tmp_path)
    answer = again.run(PROMPT, cache="read")
    assert same(answer, whole)
    assert answer.restored < len(PROMPT) - 1
    assert again.checkpoints.counters["corrupt"] == 1
    assert len(list((tmp_path / "quarantine").iterdir())) == 1
    assert not victim.exists()
    assert same(again.run(PROMPT, cache="read"), whole)
    assert again.checkpoints.counters["corrupt"] == 1
    assert again.run(PROMPT).restored == answer.restored
    assert again.run(PROMPT).restored == len(PROMPT) - 1
    again.checkpoints.close()


def test_mistake_05_an_object_under_another_name(tmp_path: Path) -> None:
    one = runner(tmp_path)
    one.run(PROMPT)
    other = [*PROMPT[:64], *range(700, 900)]
    one.run(other)
    by_parent: dict[str, list[Path]] = {}
    for path in objects(tmp_path):
        by_parent.setdefault(path.name[:32], []).append(path)
    twins = next(paths for paths in by_parent.values() if len(paths) == 2)
    twins[0].write_bytes(twins[1].read_bytes())
    again = runner(tmp_path)
    for prompt in (PROMPT, other):
        backend = FakeBackend()
        cold = Runner(backend, open_on(backend, options())).run(prompt)
        assert same(again.run(prompt, cache="read"), cold)
    assert again.checkpoints.counters["corrupt"] == 1


@pytest.mark.parametrize("what", ["folder", "link", "fifo"])
def test_mistake_05_no_file_in_the_place_of_an_object(tmp_path: Path, what: str) -> None:
    """It is moved away like a damaged one, and its place is free again."""
    whole = runner(tmp_path).run(PROMPT)
    victim = objects(tmp_path)[3]
    data = victim.read_bytes()
    victim.unlink()
    if what == "folder":
        victim.mkdir()
    elif what == "fifo":
        os.mkfifo(victim)
    else:
        (tmp_path / "elsewhere").write_bytes(data)
        victim.symlink_to(tmp_path / "elsewhere")
    again = runner(tmp_path)
    answer = again.run(PROMPT)
    assert same(answer, whole)
    assert answer.restored < len(PROMPT) - 1
    assert again.checkpoints.counters["corrupt"] == 1
    assert again.run(PROMPT).restored == len(PROMPT) - 1
    assert again.checkpoints.counters["corrupt"] == 1
    Tier(spec(tmp_path)).quota.add(0, removed=1)  # as after an eviction: everything is listed again
    assert again.run(PROMPT).restored == len(PROMPT) - 1


def test_mistake_05_another_s_tokens_under_the_same_key(tmp_path: Path) -> None:
    """As if two prompts had one hash: name, key and checksums are right, only the tokens are not."""
    whole = runner(tmp_path).run(PROMPT)
    victim = next(path for path in objects(tmp_path) if decode(path.read_bytes()).first == 192)
    data = victim.read_bytes()
    record = decode(data)
    other = dataclasses.replace(record, tokens=pack_tokens(range(300, 364)))
    victim.write_bytes(encode(other) + data[record.header_bytes :])
    again = runner(tmp_path)
    answer = again.run(PROMPT, cache="read")
    assert same(answer, whole)
    assert answer.restored == 192
    assert again.checkpoints.counters["corrupt"] == 1


@pytest.mark.parametrize("kind", ["block", "tail"])
def test_mistake_05_generated_rows_under_the_name_of_prefilled_ones(tmp_path: Path, kind: str) -> None:
    """Cold runs take only what was prefilled, and go by the name."""
    said = runner(tmp_path).run(PROMPT[:100], 120).tokens
    for path in [path for path in objects(tmp_path, kind) if path.name.endswith(".g")]:
        path.rename(path.with_suffix(".p"))
    again = runner(tmp_path)
    cold_backend = FakeBackend()
    cold = Runner(cold_backend, open_on(cold_backend, options())).run([*said, 5])
    assert same(again.run([*said, 5], cache="read"), cold)
    assert again.checkpoints.counters["corrupt"] == 1


def test_a_file_that_is_gone_is_a_miss(tmp_path: Path) -> None:
    one = runner(tmp_path)
    whole = one.run(PROMPT)
    for path in objects(tmp_path)[::2]:
        path.unlink()
    answer = one.run(PROMPT, cache="read")
    assert same(answer, whole)
    assert one.checkpoints.counters["corrupt"] == 0


def test_a_tier_that_is_deleted_while_it_is_used(tmp_path: Path) -> None:
    """Never a wrong answer, and the next conversation is kept again."""
    one = runner(tmp_path / "tier")
    whole = one.run(PROMPT)
    shutil.rmtree(tmp_path / "tier")
    assert same(one.run(PROMPT), whole)
    other = list(range(600, 900))
    first = one.run(other)
    again = one.run(other)
    assert again.restored == len(other) - 1 and same(again, first)
    assert one.checkpoints.counters["corrupt"] == 0
    assert verify([Tier(spec(tmp_path / "tier"))]).corrupt == 0


def test_a_quota_that_was_lowered_since_is_kept(tmp_path: Path) -> None:
    runner(tmp_path).run(PROMPT)
    held = Tier(spec(tmp_path)).allocated()
    small = runner(tmp_path, quota_bytes=held // 2)
    assert small.run(PROMPT, cache="read").restored == len(PROMPT) - 1
    other = small.run(list(range(600, 900)))
    assert small.checkpoints.counters["drops"] > 0
    assert Tier(spec(tmp_path)).allocated() <= held
    backend = FakeBackend()
    assert same(other, Runner(backend, open_on(backend, options())).run(list(range(600, 900))))


@pytest.mark.parametrize("kind", ["plain", "swa", "hybrid", "recurrent", "whole"])
def test_the_seconds_saved_are_those_that_computing_took(tmp_path: Path, kind: str) -> None:
    backend = FakeBackend(kind, n_swa=64 if kind == "swa" else 0)
    one = Runner(backend, open_on(backend, options(spec(tmp_path))), cost_us_per_token=1000.0)
    one.run(PROMPT)
    assert one.checkpoints.counters["prefill_s_saved"] == 0
    restored = one.run(PROMPT).restored
    assert one.checkpoints.counters["prefill_s_saved"] == pytest.approx(restored * 0.001, rel=0.01)
    restored += one.run(PROMPT[:100]).restored
    assert one.checkpoints.counters["prefill_s_saved"] == pytest.approx(restored * 0.001, rel=0.01)


class FailingWrites(Medium):
    def __init__(self, code: int) -> None:
        self.code = code
        self.failing = True

    def write(self, path: Path, parts: Sequence[memoryview | bytes]) -> int:
        if self.failing:
            path.write_bytes(b"half")
            raise OSError(self.code, os.strerror(self.code))
        return super().write(path, parts)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_mistake_06_a_failed_store_is_a_miss(tmp_path: Path, code: int) -> None:
    medium = FailingWrites(code)
    backend = FakeBackend()
    one = Runner(backend, open_with_medium(backend, options(spec(tmp_path)), medium))
    first = one.run(PROMPT)
    assert objects(tmp_path) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert one.checkpoints.lookup(PROMPT).cached_tokens == 0
    assert one.checkpoints.counters["drops" if code == errno.ENOSPC else "save_errors"] == 8
    medium.failing = False
    one.checkpoints.room("disk")
    assert same(one.run(PROMPT), first)
    assert one.run(PROMPT).restored == len(PROMPT) - 1


class Halfway(Medium):
    """Stops in the middle of each object until it may go on."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def write(self, path: Path, parts: Sequence[memoryview | bytes]) -> int:
        data = b"".join(parts)
        super().write(path, [data[: len(data) // 2]])
        self.reached.set()
        assert self.go_on.wait(60.0)
        with path.open("ab") as file:
            file.write(data[len(data) // 2 :])
        return path.stat().st_blocks * 512


def test_mistake_07_saving_in_the_reply_path(tmp_path: Path) -> None:
    """A disk that takes nothing does not hold up the engine thread."""
    medium, backend = Halfway(), FakeBackend()
    one = Runner(backend, open_with_medium(backend, options(spec(tmp_path)), medium))
    one.run(PROMPT, flush=False)
    assert objects(tmp_path) == []
    medium.go_on.set()
    assert one.checkpoints.flush(60.0)
    assert len(objects(tmp_path)) == 7
    assert one.checkpoints.counters["save_copy_s"] > 0 < one.checkpoints.counters["save_s"]


class HangingReads(Medium):
    """From when ``n_left`` more have been answered, until it may go on."""

    def __init__(self) -> None:
        self.n_left = 1_000_000
        self.go_on = threading.Event()

    def read(self, path: str, places: Sequence[memoryview]) -> int:
        self.n_left -= 1
        if self.n_left < 0:
            assert self.go_on.wait(60.0)
        return super().read(path, places)


def test_a_disk_that_hangs_in_the_middle_of_a_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is computed, what was loaded of it is gone, and once the disk answers it serves again."""
    monkeypatch.setattr("barrel_inference.kvcache.transfer.reading.PART_TOKENS", 64)
    monkeypatch.setattr("barrel_inference.kvcache.transfer.reading.HANG_S", 0.1)
    medium, backend = HangingReads(), FakeBackend()
    one = Runner(backend, open_with_medium(backend, options(spec(tmp_path)), medium))
    first = one.run(PROMPT, 2)
    medium.n_left = 3
    second = one.run(PROMPT, 2, cache="read")
    assert second.restored == 0 and same(second, first)
    assert one.checkpoints.counters["restore_failed"] == 1
    medium.n_left = 1_000_000
    medium.go_on.set()
    third = one.run(PROMPT, 2)
    assert third.restored == len(PROMPT) - 1 and same(third, first)
    one.checkpoints.close()


class SlowReads(Medium):
    bytes_s = 1e6

    def read(self, path: str, places: Sequence[memoryview]) -> int:
        time.sleep(sum(map(len, places)) / self.bytes_s)
        return super().read(path, places)


def test_mistake_16_a_hit_slower_than_computing(tmp_path: Path) -> None:
    """1 MB/s against a prefill of 1 µs a token: the first restore measures it, the second is refused."""
    medium = SlowReads()
    backend = FakeBackend()
    one = Runner(backend, open_with_medium(backend, options(spec(tmp_path)), medium), cost_us_per_token=1.0)
    one.run(PROMPT)
    assert one.run(PROMPT).restored == len(PROMPT) - 1
    assert one.run(PROMPT).restored == 0
    assert one.checkpoints.counters["gated"] == 1
    dear = Runner(backend, one.checkpoints, cost_us_per_token=1e6)
    dear.run(list(range(500, 600)))
    assert dear.run(PROMPT).restored == len(PROMPT) - 1


def test_the_gate_leaves_out_only_the_slow_tier(tmp_path: Path) -> None:
    fast, slow = spec(tmp_path / "fast", name="fast"), spec(tmp_path / "slow", name="slow")
    backend = FakeBackend()
    Runner(backend, open_on(backend, options(fast))).run(PROMPT[:256])
    Runner(backend, open_on(backend, options(slow))).run(PROMPT)

    load = options(fast, slow)
    checkpoints = open_with_medium(backend, load, SlowReads())
    one = Runner(backend, checkpoints, cost_us_per_token=1.0)
    assert one.run(PROMPT, cache="read").restored == len(PROMPT) - 1
    one.run(list(range(900, 999)))
    checkpoints.store.tiers[0].medium = Medium()
    assert one.run(PROMPT[:200], cache="read").restored == 0


WRITER = """
import sys
from pathlib import Path
from tests.kvcache.test_mistakes_damage import fuzz
fuzz(Path(sys.argv[1]), int(sys.argv[2]))
"""

QUOTA = 120 * 4096


def fuzz(path: Path, seed: int) -> None:
    """Random conversations over one small directory; every answer is checked against a run without a cache."""
    rng = random.Random(seed)
    heads = [list(range(n, n + 130)) for n in (10, 200, 400)]
    one = runner(path, quota_bytes=QUOTA)
    cold_backend = FakeBackend()
    cold = Runner(cold_backend, open_on(cold_backend, options()))
    for _ in range(12):
        prompt = [*rng.choice(heads), *(rng.randrange(5) + 600 for _ in range(rng.randrange(1, 90)))]
        warm = one.run(prompt, 2)
        if not same(warm, cold.run(prompt, 2)):
            raise SystemExit("a wrong byte")
        for stored in list(one.checkpoints.store.tiers[0].objects()):
            if rng.random() < 0.15:
                one.checkpoints.store.tiers[0].remove(stored.namespace, stored.name)
    if one.checkpoints.counters["corrupt"]:
        raise SystemExit("a torn object was seen")


def test_mistake_18_two_processes_on_one_directory(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path, quota_bytes=QUOTA))
    children = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(seed)]) for seed in (1, 2)]
    while any(child.poll() is None for child in children):
        assert tier.allocated() <= QUOTA
        time.sleep(0.01)
    assert [child.returncode for child in children] == [0, 0]
    assert verify([tier]).corrupt == 0
    used = tier.quota.used()
    assert tier.quota.recount(tier.allocated) is not None
    assert used >= tier.quota.used()  # two writers of one object count it twice at most until the recount


def test_mistake_18_what_is_half_written_is_not_there(tmp_path: Path) -> None:
    medium, backend = Halfway(), FakeBackend()
    one = Runner(backend, open_with_medium(backend, options(spec(tmp_path)), medium))
    one.run(PROMPT[:100], flush=False)
    assert medium.reached.wait(60.0)
    other = runner(tmp_path)
    assert other.run(PROMPT[:100], cache="read").restored == 0
    assert other.checkpoints.counters["corrupt"] == 0
    medium.go_on.set()
    assert one.checkpoints.flush(60.0)
    assert other.run(PROMPT[:100], cache="read").restored == 99


def test_another_workers_objects_are_found(tmp_path: Path) -> None:
    one, two = runner(tmp_path), runner(tmp_path)
    one.run(PROMPT, 80)
    assert two.run(PROMPT).restored == len(PROMPT) - 1
    recurrent = [Runner(b, open_on(b, options(spec(tmp_path)))) for b in (FakeBackend("hybrid"), FakeBackend("hybrid"))]
    recurrent[0].run(PROMPT)
    assert recurrent[1].run(PROMPT).restored == 448


def hurt(rng: random.Random, path: Path) -> None:
    """Something that happens to files."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    match rng.randrange(5):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at:]
        case 2:
            data[at : at + 64] = bytes(64)
        case 3:
            other = rng.choice(objects(path.parent.parent.parent))
            data = bytearray(other.read_bytes())
    path.unlink()
    if rng.randrange(5):
        path.write_bytes(data)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["plain", "swa"])
def test_whatever_happens_to_the_files_no_answer_is_wrong(tmp_path: Path, seed: int, kind: str) -> None:
    """Two stores share the directory; some of its files are hurt between any two requests."""
    rng = random.Random(seed)
    backends = [FakeBackend(kind, n_swa=100) for _ in range(3)]
    loads = [options(spec(tmp_path)), options(spec(tmp_path)), options()]
    *warm, cold = [Runner(backend, open_on(backend, load)) for backend, load in zip(backends, loads, strict=True)]
    restored = 0
    for _ in range(16):
        prompt = [
            *range(10, rng.choice((70, 150, 330))),
            *(600 + rng.randrange(3) for _ in range(rng.randrange(1, 90))),
        ]
        answer = rng.choice(warm).run(prompt, 3)
        restored += answer.restored
        assert same(answer, cold.run(prompt, 3))
        stored = sorted(path for path in tmp_path.glob("*/??/*") if path.stat().st_size)
        for path in rng.sample(stored, len(stored) // 5):
            hurt(rng, path)
    assert restored > 0
    assert sum(one.checkpoints.counters["corrupt"] for one in warm) > 0
