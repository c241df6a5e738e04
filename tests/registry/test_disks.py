"""Real file systems that are full or read-only: a small tmpfs, where the tests may mount one."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from barrel_inference.errors import DiskFullError, ReadOnlyError, RegistryError
from barrel_inference.registry import Registry
from barrel_inference.registry.blobs import _link_or_point
from barrel_inference.registry.create import CreateRequest
from barrel_inference.registry.download.part import SPARE_BYTES, Part
from barrel_inference.registry.locks import Lease
from tests.registry.conftest import open_registry, pull
from tests.registry.weights import model
from tests.support.hub import Hub


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, a little larger than what downloads leave free."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SPARE_BYTES + (4 << 20)}", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


async def test_a_model_that_does_not_fit_is_refused_before_the_first_byte(hub: Hub, disk: Path) -> None:
    hub.repository("Org/Repo", {"m.gguf": model(6 << 20)})
    with pytest.raises(DiskFullError, match="bytes are missing"):
        await pull(open_registry(disk, hub), "hf://Org/Repo")
    assert hub.sent_bytes < 1 << 20


async def test_a_disk_that_fills_up_halfway_leaves_a_part_that_can_go_on(hub: Hub, disk: Path) -> None:
    content = model(3 << 20)
    hub.repository("Org/Repo", {"m.gguf": content})
    registry = open_registry(disk, hub)
    hub.bytes_per_s = 2e6
    filler = disk / "filler"
    with pytest.raises(DiskFullError, match="no space left"):
        async for event in registry.pull("hf://Org/Repo"):
            if event.get("completed") and not filler.exists():
                fill(filler)
    filler.unlink()
    hub.bytes_per_s, sent = None, hub.sent_bytes
    await pull(registry, "hf://Org/Repo")
    assert Path(registry.resolve("Org/Repo").blob_path).read_bytes() == content
    assert hub.sent_bytes - sent < len(content)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return  # full


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, RegistryError)])
def test_whatever_fails_under_the_lock_is_the_registrys_own_error(
    registry: Registry, number: int, kind: type[RegistryError]
) -> None:
    root = registry._ground.root
    root.prepare()
    with pytest.raises(kind, match=r"x\.lease"), root.lock():
        raise OSError(number, os.strerror(number), str(root.tmp / "x.lease"))
    with root.lock():  # and it is free again
        pass


def test_a_lease_that_cannot_be_written_or_removed(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    lease = Lease(tmp_path)
    (lease_path,) = tmp_path.iterdir()
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, lease._fd)
    os.close(full)
    with pytest.raises(OSError, match="No space left"):
        lease.add(["ab"])
    lease_path.unlink()
    lease_path.mkdir()
    lease.close()  # the model is there: no error at its end


def test_a_full_disk_in_the_middle_of_a_write() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    with full.open("wb") as device:
        part = Part(full, device.fileno())
        part._plan(100, 100)
        with pytest.raises(DiskFullError, match="barrel-inference gc"):
            part.write(part.pieces[0], b"x")


def test_a_file_system_without_links(tmp_path: Path) -> None:
    target = Path("/sys/barrel-inference.gguf")
    if os.geteuid() or not os.access(target.parent, os.W_OK):
        pytest.skip("there is no sysfs that can be tried")
    with pytest.raises(RegistryError, match="a split model needs links"):
        _link_or_point(tmp_path, target)


def test_a_read_only_root_can_be_read_and_says_why_it_cannot_be_changed(disk: Path) -> None:
    registry = Registry(disk)
    registry._ground.root.prepare()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert registry.list().manifests == []
    for change in (lambda: registry.copy("a", "b"), lambda: registry.remove("a"), registry.gc):
        with pytest.raises(ReadOnlyError, match="models directory"):
            change()


async def test_what_fails_on_a_full_disk_leaves_nothing_open(hub: Hub, disk: Path) -> None:
    """Of twenty pulls, creates, uploads and loads, no descriptor and no lease."""
    hub.repository("Org/Repo", {"m.gguf": model(4096)})
    registry = open_registry(disk, hub)
    root, digest = registry._ground.root, "sha256:" + "ab" * 32
    root.prepare()
    with root.lock():
        pass
    fill(disk / "filler")
    opened: list[int] = []
    for _ in range(20):
        for attempt in (
            pull(registry, "hf://Org/Repo"),
            made(registry, f"FROM @{digest}"),
            registry.receive_blob(digest, nothing()),
            registry.hold(registry._ground.blobs.path(digest)),
        ):
            with pytest.raises(DiskFullError):
                await attempt
        opened.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
    assert max(opened) <= opened[0] and list(root.tmp.glob("*.lease")) == []


async def made(registry: Registry, modelfile: str) -> None:
    async for _ in registry.create("mine", CreateRequest(modelfile=modelfile)):
        pass


async def nothing() -> AsyncIterator[bytes]:
    for block in ():
        yield block
