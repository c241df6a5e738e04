"""A warmed prompt from one server to another, and what comes in the place of an archive."""

from __future__ import annotations

import http.client
import io
import json
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from barrel_inference.config import TierSpec
from tests.server.harness import RunningServer
from tests.support.disks import small_disk

PROMPT = {"model": "stub", "prompt": "A long text that will be asked about. " * 10}


def export(server: RunningServer, body: dict[str, Any] = PROMPT) -> tuple[int, bytes, Any]:
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    connection.request("POST", "/api/cache/export", json.dumps(body))
    response = connection.getresponse()
    found = response.status, response.read(), response.headers
    connection.close()
    return found


def import_(server: RunningServer, archive: bytes, query: str = "") -> tuple[int, Any]:
    return server.post(f"/api/cache/import{query}", archive)


@pytest.fixture
def archive(server: RunningServer) -> bytes:
    assert server.post("/api/cache/prefill", PROMPT)[0] == 200
    status, content, headers = export(server)
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    assert int(headers["content-length"]) == len(content)
    return content


def test_what_one_server_has_read_another_has_not_to(archive: bytes, tmp_path: Path) -> None:
    with RunningServer(tmp_path) as other:
        status, body, _ = export(other)
        assert (status, json.loads(body)) == (404, {"error": "nothing of this prompt is stored: run it first"})
        status, moved = import_(other, archive)
        assert (status, moved["refused"], moved["present"]) == (200, 0, 0)
        assert moved["objects"] > 2
        found = other.post("/api/cache/lookup", PROMPT)[1]
        assert 0 <= moved["tokens"] - found["cached_tokens"] <= 1
        assert found["by_tier"] == {"store": found["cached_tokens"]}, "where this server keeps what it reads"
        assert import_(other, archive)[1] == {**moved, "objects": 0, "bytes": 0, "present": moved["objects"]}
        assert import_(other, archive, "?tier=ram")[1]["objects"] == moved["objects"]


def test_a_conversation_can_be_exported_as_well(server: RunningServer) -> None:
    said = {"model": "stub", "messages": [{"role": "user", "content": "Another long question. " * 10}]}
    assert server.post("/api/cache/prefill", said)[0] == 200
    assert export(server, said)[0] == 200


def test_what_is_not_there_is_named(server: RunningServer) -> None:
    assert export(server, {"model": "nobody", "prompt": "x"})[0] == 404
    assert export(server, {"model": "stub"})[0] == 400
    assert import_(server, b"", "?tier=nowhere")[0] == 400


def test_hostile_archives(server: RunningServer, archive: bytes, tmp_path: Path) -> None:
    before = objects(server)
    for bad in (b"", b"hello" * 1000, archive[: len(archive) // 2 + 100], b"\x1f\x8b" + bytes(4096)):
        status, answer = import_(server, bad)
        assert (status, answer["error"].startswith("cannot import archive: ")) == (400, True)
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as good, tarfile.open(fileobj=out, mode="w") as bad:
        for member in good.getmembers():
            held = good.extractfile(member)
            assert held is not None
            data = bytearray(held.read())
            data[-1] ^= 1
            for name in (member.name, f"../../{member.name}", f"/{tmp_path}/evil"):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                bad.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        bad.addfile(link)
    status, moved = import_(server, out.getvalue())
    assert (status, moved["objects"], moved["tokens"]) == (200, 0, 0)
    assert moved["refused"] > 4
    assert objects(server) == before
    assert not (tmp_path / "evil").exists()


def objects(server: RunningServer) -> list[int]:
    return [tier["objects"] for tier in server.request("GET", "/api/cache")[1]["tiers"]]


@pytest.mark.parametrize("chunked", [False, True])
def test_an_archive_that_the_tier_could_not_hold_is_not_taken(tmp_path: Path, chunked: bool) -> None:
    small = TierSpec(name="small", kind="disk", path=str(tmp_path / "small"), quota_bytes=1 << 20)
    with RunningServer(tmp_path, runtime={"tiers": (small,)}) as server:
        where = urlsplit(server.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        content = bytes(3 << 20)
        pieces = iter([content[: 1 << 20]] * 3) if chunked else content
        connection.request("POST", "/api/cache/import", pieces, encode_chunked=chunked)
        response = connection.getresponse()
        assert (response.status, "larger than" in json.loads(response.read())["error"]) == (413, True)
        connection.close()


def test_an_archive_for_which_the_disk_has_no_space(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is not the disk of the tier that it is for."""
    with small_disk(tmp_path / "tmp", 1 << 20) as full:
        monkeypatch.setattr(tempfile, "tempdir", str(full))
        status, body = import_(server, bytes(3 << 20))
        assert (status, body) == (507, {"error": "no space is left on the server's disk"})
        assert not list(full.iterdir())


def test_an_export_for_which_the_disk_has_no_space(
    server: RunningServer, archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert archive
    with small_disk(tmp_path / "tmp", 1 << 20) as full:
        with (full / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))
        monkeypatch.setattr(tempfile, "tempdir", str(full))
        status, body, _ = export(server)
        assert (status, "no space left" in json.loads(body)["error"]) == (507, True)


def test_nothing_is_left_behind(server: RunningServer, archive: bytes) -> None:
    import_(server, archive)
    import_(server, b"no archive")
    assert not list(Path(tempfile.gettempdir()).glob("barrel-*port-*"))
