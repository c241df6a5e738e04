"""What of the machine's memory is ours: control groups of both versions, in files as the kernel shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from barrel_inference.memory import SystemMemory, oom_kills, system_memory, tells_of_shortage, within_groups

GB = 10**9
HOST = SystemMemory(16 * GB, 9 * GB)
UNLIMITED_V1 = 9223372036854771712


def tree(root: Path, own: str, **groups: dict[str, object]) -> Path:
    """``groups``: by their path below /sys/fs/cgroup, ``/`` written as ``__``."""
    files = {"proc/self/cgroup": own}
    for name, numbers in groups.items():
        for file, value in numbers.items():
            files[f"sys/fs/cgroup/{name.replace('__', '/')}/{file.replace('__', '.')}"] = f"{value}\n"
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_without_groups_it_is_the_hosts(tmp_path: Path) -> None:
    assert within_groups(HOST, tmp_path) == HOST


def test_a_limit_of_version_two(tmp_path: Path) -> None:
    """What the kernel can give back is not in the way."""
    stat = f"anon {GB}\nfile {GB}\ninactive_file {GB // 2}\nactive_file {GB // 4}\nshmem {GB // 4}"
    group = {"memory__max": 2 * GB, "memory__current": 2 * GB, "memory__stat": stat}
    root = tree(
        tmp_path, "0::/system.slice/barrel.service\n", system__slice={}, **{"system.slice__barrel.service": group}
    )
    assert within_groups(HOST, root) == (2 * GB, GB * 3 // 4)


def test_the_lowest_limit_of_all_groups_above_counts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        "0::/a/b/c\n",
        a={"memory__max": 4 * GB, "memory__current": 3 * GB},
        a__b={"memory__max": "max", "memory__current": 3 * GB},
        a__b__c={"memory__max": 3 * GB, "memory__current": GB},
    )
    assert within_groups(HOST, root) == (3 * GB, GB)


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """With a namespace of its own, and without one, where the path is the host's."""
    group = {"memory.max": GB, "memory.current": GB // 4}
    for own in ("0::/\n", "0::/docker/0123abcd\n", "0::/../../other\n"):
        assert within_groups(HOST, tree(tmp_path, own, **{".": group})) == (GB, GB * 3 // 4)


def test_a_limit_of_version_one(tmp_path: Path) -> None:
    stat = f"cache 5\ntotal_cache {GB}\ninactive_file 1\ntotal_inactive_file {GB // 2}\ntotal_active_file 0"
    root = tree(
        tmp_path,
        "9:name=systemd:/x\n4:memory:/docker/1\n1:cpu,cpuacct:/y\n0::/x\n",
        memory={"memory__limit_in_bytes": UNLIMITED_V1, "memory__usage_in_bytes": 8 * GB},
        memory__docker__1={"memory__limit_in_bytes": 2 * GB, "memory__usage_in_bytes": GB, "memory__stat": stat},
    )
    assert within_groups(HOST, root) == (2 * GB, GB * 3 // 2)


def test_a_limit_above_what_there_is_changes_nothing(tmp_path: Path) -> None:
    root = tree(tmp_path, "4:memory:/\n", memory={"memory__limit_in_bytes": UNLIMITED_V1, "memory__usage_in_bytes": 1})
    assert within_groups(HOST, root) == HOST


@pytest.mark.parametrize("limit", ["", "max", "garbage", "-1"])
def test_what_cannot_be_read_is_no_limit(tmp_path: Path, limit: str) -> None:
    root = tree(tmp_path, "0::/a\nnonsense\n", a={"memory__max": limit, "memory__stat": "garbage\ninactive_file x"})
    assert within_groups(HOST, root) == HOST


def test_more_than_the_limit_leaves_nothing(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/a\n", a={"memory__max": GB, "memory__current": 2 * GB})
    assert within_groups(HOST, root).available == 0


def test_kills_of_the_kernel(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 1\noom_kill 12\nx 1\n")
    assert oom_kills(tmp_path) == 12


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("ggml_aligned_malloc: insufficient memory (attempted to allocate 720.00 MB)", True),
        ("x\nterminate called after throwing an instance of 'std::bad_alloc'", True),
        ("warning: failed to mlock 1000-byte buffer: Cannot allocate memory", False),
        ("GGML_ASSERT(n > 0) failed", False),
    ],
)
def test_words_of_a_shortage(words: str, told: bool) -> None:
    assert tells_of_shortage(words) is told


@pytest.mark.skipif(not Path("/sys/fs/cgroup/memory").is_dir(), reason="no groups of version one here")
def test_a_real_limit_is_seen(tmp_path: Path) -> None:
    """In a group of its own, where making one is allowed."""
    group = Path("/sys/fs/cgroup/memory") / f"barrel-test-{tmp_path.name}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("control groups may not be made here")
    try:
        (group / "memory.limit_in_bytes").write_text(str(512 << 20))
        code = (
            "from barrel_inference.cli.doctor import machine; from barrel_inference.worker.memory import PsutilMemory\n"
            "from barrel_inference.kvcache.admin import pressure\n"
            "total, available = PsutilMemory().system(); own = machine()\n"
            "assert own.memory_bytes == total and own.available_bytes < total and 0 < pressure.system() < 1\n"
            "print(total, available)"
        )
        inside = ["sh", "-c", f'echo 0 > {group}/tasks; exec "$@"', "sh", sys.executable, "-c", code]
        total, available = map(int, subprocess.check_output(inside, text=True).split())
        assert total == 512 << 20
        assert 0 < available < total
        assert system_memory().total > total
    finally:
        group.rmdir()
