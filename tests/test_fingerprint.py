"""A fingerprint follows the bytes, is remembered, and is compared with a given one."""

from __future__ import annotations

import hashlib
import os
import struct
import time
from pathlib import Path

import pytest

from barrel_inference.errors import ConfigError, InvalidModelError
from barrel_inference.fingerprint import RACY_NS, Fingerprints, check_identity, identity


@pytest.fixture
def prints(tmp_path: Path) -> Fingerprints:
    return Fingerprints(tmp_path / "cache" / "fingerprints.json")


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def tiny_gguf(weights: bytes) -> bytes:
    """Two f32 tensors, ``a`` of 8 and ``b`` of 8 elements."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0)
    for index, name in enumerate((b"a", b"b")):
        head += struct.pack("<Q", 1) + name + struct.pack("<IQIQ", 1, 8, 0, 32 * index)
    return head + b"\0" * (-len(head) % 32) + weights


def test_safe_is_the_sha256_of_all_files_in_order(prints: Fingerprints, tmp_path: Path) -> None:
    first, second = write(tmp_path / "1", b"ab"), write(tmp_path / "2", b"c")
    assert prints.of_model([first, second], "safe", None) == hashlib.sha256(b"abc").hexdigest()
    assert prints.of_file(first) == hashlib.sha256(b"ab").hexdigest()


def test_a_copy_elsewhere_has_the_same_fingerprint_and_a_change_another(prints: Fingerprints, tmp_path: Path) -> None:
    path = write(tmp_path / "m", b"one")
    before = prints.of_model([path], "safe", None)
    assert prints.of_model([write(tmp_path / "copy", b"one")], "safe", None) == before
    write(path, b"two")
    assert prints.of_model([path], "safe", None) != before


def later() -> int:
    return time.time_ns() + 2 * RACY_NS


def test_it_is_remembered_by_identity_and_not_recomputed(tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    path = write(tmp_path / "m", b"one")
    true = hashlib.sha256(b"one").hexdigest()
    assert Fingerprints(memory, later).of_model([path], "safe", None) == true
    memory.write_text(memory.read_text().replace(true, "0" * 64))
    assert Fingerprints(memory, later).of_model([path], "safe", None) == "0" * 64
    memory.write_bytes(b"{ damaged")
    assert Fingerprints(memory, later).of_model([path], "safe", None) == true


def test_a_file_that_may_still_change_unseen_is_not_remembered(tmp_path: Path) -> None:
    prints = Fingerprints(tmp_path / "memory.json")
    prints.of_model([write(tmp_path / "m", b"one")], "safe", None)
    assert not (tmp_path / "memory.json").exists()


@pytest.mark.parametrize("is_new", [False, True], ids=["written over", "put in its place"])
def test_another_file_with_the_times_and_size_of_the_old_one(tmp_path: Path, is_new: bool) -> None:
    """As ``cp -p`` and archives make them; the inode may even be the old one's."""
    prints, path = Fingerprints(tmp_path / "memory.json", later), write(tmp_path / "m", b"one")
    prints.of_model([path], "safe", None)
    status = path.stat()
    if is_new:
        path.unlink()
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert prints.of_model([path], "safe", None) == hashlib.sha256(b"two").hexdigest()


def test_files_are_those_that_were_looked_at(tmp_path: Path) -> None:
    path, link = write(tmp_path / "m", b"one"), tmp_path / "link"
    files = [(str(path), identity(path))]
    os.link(path, link)  # changes nothing of its content
    check_identity(files)
    write(tmp_path / "other", b"two").replace(path)
    with pytest.raises(InvalidModelError, match="m has been replaced"):
        check_identity(files)
    path.unlink()
    with pytest.raises(InvalidModelError, match="m has been replaced"):
        check_identity(files)


def test_nothing_remembered_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path / "m", b"one")
    blocked = Fingerprints(write(tmp_path / "file", b"") / "below" / "memory.json")
    assert blocked.of_model([path], "safe", None) == hashlib.sha256(b"one").hexdigest()


def test_chunked_reads_metadata_and_the_first_tensor_only(prints: Fingerprints, tmp_path: Path) -> None:
    def chunked(name: str, weights: bytes) -> str:
        return prints.of_model([write(tmp_path / name, tiny_gguf(weights))], "gguf_chunked", None)

    same = chunked("1", b"\1" * 32 + b"\2" * 32)
    assert chunked("2", b"\1" * 32 + b"\3" * 32) == same
    assert chunked("3", b"\4" * 32 + b"\2" * 32) != same


def test_a_given_fingerprint_is_compared_or_believed(prints: Fingerprints, tmp_path: Path) -> None:
    path = write(tmp_path / "m", b"one")
    right, wrong = hashlib.sha256(b"one").hexdigest(), "0" * 64
    assert prints.of_model([path], "safe", right) == right
    assert prints.of_model([path], "fast_unsafe", wrong) == wrong
    with pytest.raises(ConfigError, match="does not match") as caught:
        prints.of_model([path], "safe", wrong)
    assert caught.value.details["allowed"] == right
    with pytest.raises(ConfigError, match="needs a fingerprint"):
        prints.of_model([path], "fast_unsafe", None)


def test_what_never_ends_is_not_read(prints: Fingerprints, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        with pytest.raises(InvalidModelError, match="not a regular file"):
            prints.of_file(path)


def test_a_missing_file_and_a_closed_runtime_are_errors(prints: Fingerprints, tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="no such file"):
        prints.of_model([tmp_path / "absent"], "safe", None)
    path = write(tmp_path / "m", b"one")
    prints.close()
    with pytest.raises(InvalidModelError, match="closed"):
        prints.of_model([path], "safe", None)
