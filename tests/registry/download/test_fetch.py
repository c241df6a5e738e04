"""The downloader against a server that does everything wrong once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.config import RegistryOpts
from barrel_inference.errors import DigestMismatchError, DiskFullError, PullError
from barrel_inference.registry.download.fetch import fetch
from barrel_inference.registry.download.network import Network, NetworkPolicy
from barrel_inference.registry.download.part import MAX_PIECES, Part, Version, boot_id, piece_size
from barrel_inference.registry.download.server import Remote
from tests.registry.weights import model
from tests.support.hub import Fault, Hub
from tests.support.waiting import eventually

CONTENT = model(20 << 20)  # three pieces
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Download:
    """One part and the ways to fetch into it; sleeps are recorded, not slept."""

    def __init__(self, hub: Hub, path: Path) -> None:
        self.hub, self.path = hub, path
        self.slept: list[float] = []
        self.progress: list[int] = []

    async def run(
        self, *, digest: str | None = DIGEST, size: int | None = None, n_copies: int = 1, **options: Any
    ) -> str:
        part = Part.acquire(self.path)
        assert part is not None
        remote = Remote(f"{self.hub.url}/model.gguf", "model.gguf", digest, size, n_copies=n_copies)
        opts = RegistryOpts(**{"stall_s": 0.5, "max_attempts": 3, **options})
        policy = NetworkPolicy(insecure=True, allow_private=True, stall_s=opts.stall_s)
        try:
            async with Network(policy) as network:
                found, _ = await fetch(network, remote, part, opts, lambda n, _: self.progress.append(n), self._sleep)
        finally:
            part.close()
        return found

    async def stop_after(self, n_bytes: int, **options: Any) -> None:
        """Cancel once so many bytes have arrived."""
        running = asyncio.ensure_future(self.run(**options))
        await eventually(lambda: running.done() or max(self.progress, default=0) >= n_bytes)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    def requested_bytes(self) -> int:
        """What all ranged requests so far asked for together, probes aside."""
        total = 0
        for seen in self.hub.requests_for("/model.gguf"):
            first, _, last = seen.headers.get("range", "bytes=0-0").removeprefix("bytes=").partition("-")
            total += int(last) - int(first) + 1 if last != "0" else 0
        return total

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def download(hub: Hub, tmp_path: Path) -> Iterator[Download]:
    hub.serve("/model.gguf", CONTENT)
    yield Download(hub, tmp_path / "x.part")


async def test_parallel_ranges_make_the_file(download: Download) -> None:
    assert await download.run() == DIGEST
    assert download.path.read_bytes() == CONTENT
    assert download.progress == sorted(download.progress)
    assert len({seen.headers["range"] for seen in download.hub.seen}) == 4  # the probe and three pieces


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_server_without_ranges(download: Download, chunked: bool) -> None:
    resource = download.hub.resources["/model.gguf"]
    resource.ranges, resource.chunked = False, chunked
    assert await download.run() == DIGEST
    assert download.path.read_bytes() == CONTENT


@pytest.mark.parametrize("size", [0, 1, (8 << 20) - 1, 8 << 20, (8 << 20) + 1])
async def test_sizes_around_a_piece(download: Download, size: int) -> None:
    content = CONTENT[:size]
    download.hub.serve("/model.gguf", content)
    await download.run(digest=f"sha256:{hashlib.sha256(content).hexdigest()}")
    assert download.path.read_bytes() == content


FAULTS = {
    "drops": Fault(drop_at=3_000_000),
    "drops at once": Fault(drop_at=0),
    "stalls": Fault(stall_at=100_000),
    "500 with a body": Fault(status=500, body=b"oops" * 1000),
    "503": Fault(status=503, headers={"Retry-After": "7"}),
    "another range": Fault(shift=5),
    "too short": Fault(length=9_000_000),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("times", [1, 3])
async def test_what_passes_is_tried_again(download: Download, fault: Fault, times: int) -> None:
    resource = download.hub.resources["/model.gguf"]
    resource.skip, resource.faults = 1, [fault] * times  # the probe is answered well
    assert await download.run() == DIGEST
    assert download.path.read_bytes() == CONTENT
    assert download.progress == sorted(download.progress)


async def test_retry_after_is_honoured_and_pauses_grow(download: Download) -> None:
    resource = download.hub.resources["/model.gguf"]
    resource.faults = [Fault(status=503, headers={"Retry-After": "7"}), Fault(status=500), Fault(status=500)]
    await download.run(connections=1, max_attempts=9)
    assert download.slept[0] == 7.0 and download.slept[1] < download.slept[2]


async def test_a_limit_on_the_speed(download: Download) -> None:
    assert await download.run(max_bytes_per_s=50_000) == DIGEST  # 419 s, if the waits were real
    assert max(download.slept) > 100


async def test_gives_up_with_the_servers_words(download: Download) -> None:
    download.hub.resources["/model.gguf"].faults = [Fault(status=502, body=b"upstream is gone")] * 99
    with pytest.raises(PullError, match="502: upstream is gone; gave up after 3 attempts"):
        await download.run()


@pytest.mark.parametrize("status", [401, 403, 404, 410])
async def test_a_refusal_is_final_and_writes_nothing(download: Download, status: int) -> None:
    resource = download.hub.resources["/model.gguf"]
    resource.skip, resource.faults = 1, [Fault(status=status, body=b"go away")] * 99
    with pytest.raises(PullError, match=f"{status}: go away") as caught:
        await download.run()
    assert caught.value.details["status"] == status
    assert download.path.stat().st_size == 0 and not download.slept


async def test_wrong_bytes_are_found_and_thrown_away(download: Download) -> None:
    resource = download.hub.resources["/model.gguf"]
    resource.skip, resource.faults = 1, [Fault(corrupt=True)]
    with pytest.raises(DigestMismatchError) as caught:
        await download.run()
    assert caught.value.details["expected"] == DIGEST and caught.value.details["actual"] in caught.value.message
    assert not download.path.exists() and not download.path.with_name("x.part.state").exists()


async def test_another_size_than_promised(download: Download) -> None:
    with pytest.raises(PullError, match="not 5"):
        await download.run(size=5)


@pytest.mark.parametrize("digest", [DIGEST, None])
async def test_resuming_fetches_only_the_rest(download: Download, digest: str | None) -> None:
    download.hub.bytes_per_s = 20e6
    await download.stop_after(8_000_000, digest=digest)
    kept, before = max(download.progress), download.requested_bytes()
    download.hub.bytes_per_s = None
    assert await download.run(digest=digest) == DIGEST
    assert download.path.read_bytes() == CONTENT
    assert download.requested_bytes() - before <= len(CONTENT) - kept


async def test_a_file_that_changed_meanwhile_starts_again(download: Download) -> None:
    download.hub.bytes_per_s = 20e6
    await download.stop_after(8_000_000, digest=None)
    download.hub.bytes_per_s = None
    other = model(18 << 20, seed=1)
    download.hub.serve("/model.gguf", other)
    assert await download.run(digest=None) == f"sha256:{hashlib.sha256(other).hexdigest()}"
    assert download.path.read_bytes() == other


async def test_a_file_that_changes_during_the_download_starts_again(download: Download) -> None:
    other = model(20 << 20, seed=1)
    download.hub.bytes_per_s = 20e6
    running = asyncio.ensure_future(download.run(digest=None, connections=1))
    await eventually(lambda: max(download.progress, default=0) >= 1_000_000)
    download.hub.bytes_per_s = None
    download.hub.serve("/model.gguf", other)
    assert await running == f"sha256:{hashlib.sha256(other).hexdigest()}"


async def test_ranges_ignored_halfway_start_from_zero(download: Download) -> None:
    resource = download.hub.resources["/model.gguf"]
    resource.skip, resource.faults = 1, [Fault(ignore_range=True)]
    assert await download.run() == DIGEST
    assert download.path.read_bytes() == CONTENT


async def test_a_file_without_validators_is_not_resumed_on_trust(download: Download) -> None:
    download.hub.resources["/model.gguf"].etag = None
    download.hub.bytes_per_s = 20e6
    await download.stop_after(8_000_000, digest=None)
    download.hub.bytes_per_s = None
    before = download.requested_bytes()
    assert await download.run(digest=None) == DIGEST
    assert download.requested_bytes() - before == len(CONTENT)


async def test_an_expired_redirect_is_asked_for_again(download: Download) -> None:
    hub = download.hub
    hub.serve("/signed", CONTENT, skip=2, faults=[Fault(status=403, body=b"expired")])
    hub.resources["/model.gguf"].redirect = lambda: f"{hub.url}/signed?{len(hub.seen)}"
    assert await download.run(connections=1) == DIGEST
    assert len(hub.requests_for("/model.gguf")) == 2  # the probe, and after the 403


async def test_there_is_not_room_for_everything(download: Download) -> None:
    part = Part.acquire(download.path)
    assert part is not None
    with pytest.raises(DiskFullError) as caught:
        part.require_room(1 << 60)
    assert caught.value.details["needed"] == 1 << 60 and caught.value.details["free"] > 0
    part.close()


async def test_room_for_what_is_unpacked_beside_it(download: Download) -> None:
    with pytest.raises(DiskFullError):
        await download.run(n_copies=1 << 40)
    assert download.hub.sent_bytes < 1000  # the probe


async def test_a_complete_part_costs_nothing_again(download: Download) -> None:
    await download.run()
    before = download.requested_bytes()
    assert await download.run() == DIGEST  # it was killed before the file got its name
    assert download.requested_bytes() == before


async def test_after_a_reboot_only_synced_bytes_count(download: Download) -> None:
    part = Part.acquire(download.path)
    assert part is not None
    version = Version(100, '"e"')
    part.begin(version)
    part.write(part.pieces[0], b"x" * 40)
    part.sync()
    part.write(part.pieces[0], b"y" * 20)
    part.close()
    again = Part.acquire(download.path)
    assert again is not None and again.begin(version) and again.completed == 60
    again.close()
    state = download.path.with_name("x.part.state")
    state.write_bytes(state.read_bytes().replace(boot_id().encode(), b"another boot".ljust(len(boot_id()), b"!")))
    rebooted = Part.acquire(download.path)
    assert rebooted is not None and rebooted.begin(version) and rebooted.completed == 40
    rebooted.close()


@pytest.mark.parametrize("damage", [b"", b"\0" * 5000, b"{}", b"{" * 4096 + b"\xff" * 99, b'{"a":' * 800])
async def test_a_damaged_sidecar_only_costs_the_download(download: Download, damage: bytes) -> None:
    download.hub.bytes_per_s = 20e6
    await download.stop_after(4_000_000)
    download.hub.bytes_per_s = None
    download.path.with_name("x.part.state").write_bytes(damage)
    assert await download.run() == DIGEST
    assert download.path.read_bytes() == CONTENT


async def test_a_part_has_one_owner(download: Download) -> None:
    first = Part.acquire(download.path)
    assert first is not None and Part.acquire(download.path) is None
    first.close()
    second = Part.acquire(download.path)
    assert second is not None
    second.close()


@pytest.mark.parametrize("header", ["etag", "last_modified"])
async def test_a_validator_that_is_no_text_is_none(download: Download, header: str) -> None:
    resource = download.hub.resources["/model.gguf"]
    resource.etag = resource.last_modified = None
    setattr(resource, header, '"\xe9\xff"')
    assert await download.run(digest=None) == DIGEST
    assert not any("if-range" in seen.headers for seen in download.hub.seen)


@pytest.mark.parametrize("size", [1, 1 << 40, 1 << 50, (1 << 64) - 1])
def test_no_size_that_is_claimed_makes_too_many_pieces(size: int) -> None:
    assert -(-size // piece_size(size)) <= MAX_PIECES


async def test_a_size_that_no_disk_holds_is_refused_at_once(download: Download) -> None:
    ranges = {"Content-Range": f"bytes 0-0/{1 << 60}"}
    download.hub.resources["/model.gguf"].faults = [Fault(status=206, body=b"G", headers=ranges)]
    with pytest.raises(DiskFullError, match="1,152,921,504,606,846,976 bytes are missing"):
        await download.run(digest=None)
