"""What clients may write on one connection: offers of other protocols, and requests ahead of the answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.server.harness import RunningServer
from tests.support.waiting import until

BODY = json.dumps({"model": "stub", "content": "hello"}).encode()
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
SIZED = b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])
BUSY = "server busy: too many connections are open"
LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def post(framed: bytes, *, offer: bytes = OFFER) -> bytes:
    return b"POST /api/tokenize HTTP/1.1\r\nHost: localhost\r\n" + offer + framed


def statuses(server: RunningServer, pieces: Iterable[bytes]) -> list[bytes]:
    """Of all answers to what is sent piece by piece."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            client.sendall(piece)
        answers = b"".join(iter(lambda: client.recv(65536), b""))
    return [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("framed", [SIZED, CHUNKED])
def test_an_offer_to_upgrade_is_passed_over_and_its_body_is_read(
    server: RunningServer, framed: bytes, step: int
) -> None:
    said = post(framed) + b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + OFFER + b"\r\n" + post(framed) + LAST
    pieces = [said[start : start + step] for start in range(0, len(said), step)]
    assert statuses(server, pieces) == [b"200"] * 4


def test_a_body_that_is_too_large_is_none_of_another_protocol(server: RunningServer) -> None:
    assert statuses(server, [post(b"Content-Length: 99999999999\r\n\r\n")]) == [b"413"]


def test_many_offers_and_many_requests_ahead(server: RunningServer) -> None:
    assert statuses(server, [post(SIZED) * 100 + post(SIZED, offer=b"") * 100 + LAST]) == [b"200"] * 201


def test_who_asks_first_sends_no_body_that_is_too_large(server: RunningServer) -> None:
    assert statuses(server, [post(b"Content-Length: 99999999999\r\n\r\n", offer=b"Expect: 100-continue\r\n")]) == [
        b"413"
    ]


def test_who_comes_when_too_many_are_connected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Is told to come again as each dialect says it, in the log too; whether the server lives can still be asked."""
    with RunningServer(tmp_path, max_connections=2) as server, ExitStack() as idle:
        where = urlsplit(server.url)
        for _ in range(2):
            idle.enter_context(socket.create_connection((where.hostname, where.port), timeout=60))
        until(lambda: len(server.listener.server_state.connections) == 2)
        assert server.request("GET", "/health")[0] == 200
        with caplog.at_level("INFO", "barrel_inference.requests"):
            status, answer, headers = server.exchange("POST", "/api/chat", {})
            assert (status, json.loads(answer), headers["retry-after"]) == (503, {"error": BUSY}, "5")
            assert server.post("/v1/chat/completions", {})[1]["error"]["message"] == BUSY
            until(lambda: len(refused(caplog)) == 2)
        idle.close()
        until(lambda: not server.listener.server_state.connections)
        assert server.request("GET", "/api/tags")[0] == 200
    assert refused(caplog) == [("/api/chat", "queue_full"), ("/v1/chat/completions", "queue_full")]


def refused(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Paths and errors of the log's lines, which come after the answers; /health's is none of them."""
    told = [json.loads(each.message) for each in caplog.records]
    return [(each["path"], each["error"]) for each in told if each["path"] != "/health"]


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
def test_garbage_behind_a_request_spoils_no_answer(server: RunningServer, at_once: bool) -> None:
    asked = json.dumps({"model": "slow", "prompt": "hi", "options": {"num_predict": 30}}).encode()
    head = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(asked)
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as client:
        client.sendall(head + asked + (b"\x00garbage\r\n\r\n" if at_once else b""))
        answer = client.recv(65536)
        if not at_once:
            client.sendall(b"\x00garbage\r\n\r\n")
        answer += b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 200")
    assert b'"done":true' in answer and answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(("path", "kind"), [("/api/show", str), ("/v1/chat/completions", dict)])
@pytest.mark.parametrize("before", [b"", b"3\r\nabc\r\n"], ids=["at once", "later"])
def test_a_body_in_broken_chunks_is_refused_at_once(
    server: RunningServer, path: str, kind: type, before: bytes
) -> None:
    """In the dialect's shape; the client is not left to the time-out of a body that does not come."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as client:
        client.settimeout(server.config.server.read_timeout_s / 2)
        client.sendall(head + before + b"ZZ\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    said, _, body = answer.partition(b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 400") and b"connection: close" in said
    assert isinstance(json.loads(body)["error"], kind) and b"not valid HTTP" in body


def test_two_hosts_are_refused(server: RunningServer) -> None:
    twice = b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert statuses(server, [twice]) == [b"400"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_wrong_method_is_the_request_s_fault(server: RunningServer, path: str) -> None:
    status, answer = server.request("GET", path)
    assert (status, answer["error"]["type"]) == (405, "invalid_request_error")


@pytest.mark.parametrize("size", [b"zz", b"-1", b"ffffffffffffffffff"])
def test_a_body_that_breaks_off_into_garbage_is_refused_at_once(server: RunningServer, size: bytes) -> None:
    """Not only when nothing more of it has come for a while, which would be another status."""
    broken = post(b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", offer=b"")
    assert statuses(server, [broken, size + b"\r\nx"]) == [b"400"]
    assert statuses(server, [broken + size + b"\r\nx"]) == [b"400"]


def test_fields_behind_a_body_are_none_of_the_head(server: RunningServer) -> None:
    framed = CHUNKED.removesuffix(b"\r\n") + b"Host: evil.example\r\nX-Request-ID: late\r\n\r\n"
    assert statuses(server, [post(framed, offer=b"") + LAST]) == [b"200", b"200"]


@pytest.mark.parametrize("stream", [True, False])
def test_http_1_0_knows_no_chunks(server: RunningServer, stream: bool) -> None:
    asked = json.dumps({"model": "stub", "prompt": "hi", "options": {"num_predict": 5}, "stream": stream}).encode()
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as client:
        client.sendall(
            b"POST /api/generate HTTP/1.0\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(asked), asked)
        )
        head, _, body = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
    assert b"200 OK" in head and b"transfer-encoding" not in head
    lines = [json.loads(line) for line in body.splitlines()]
    assert lines[-1]["done"] and (len(lines) > 1) == stream
