"""A client that leaves stops the work, whatever it was waiting for. The slow stub takes 20 ms a step."""

from __future__ import annotations

import http.client
import json
import logging
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from barrel_inference.config import ServerOptions
from tests.server.harness import SLOW, STUB, RunningServer
from tests.support.waiting import until

LONG = {"num_predict": 5000}  # a hundred seconds of the slow model: whoever waits for its end waits too long
IDLE = 2000
MAX_QUEUE = ServerOptions().max_queue


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    reading = {**STUB, "context_opts": {"n_ctx": 2048}}
    models = {
        "slow": SLOW,
        "reading": {**reading, "stub": {"token_delay_ms": 10.0, "model": "reading"}},  # of one test, which counts
        "ahead": {**reading, "stub": {"token_delay_ms": 10.0, "model": "ahead"}},
        "loading": {**STUB, "stub": {"load_s": 2.0, "model": "loading"}},
        "narrow": {**SLOW, "context_opts": {"n_ctx": 512, "n_seq_max": 1}, "stub": {**SLOW["stub"], "model": "n"}},
    }
    with RunningServer(tmp_path_factory.mktemp("server"), models=models) as running:
        for name in ("slow", "reading", "ahead", "narrow"):
            assert running.post("/api/generate", {"model": name, "prompt": ""})[0] == 200
        yield running


def connect(server: RunningServer, path: str, body: Any) -> socket.socket:
    """Send a request; its answer is not read."""
    where = urlsplit(server.url)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {len(data)}\r\n\r\n"
    client = socket.create_connection((where.hostname, where.port), timeout=30)
    client.sendall(head.encode() + data)
    return client


def engine_running(server: RunningServer, name: str) -> int:
    """Requests in the worker, as it reported last."""

    def look(inside: Any) -> int:
        (slot,) = [slot for slot in inside.pool.slots() if slot.entry.name == f"{name}:latest"]
        info = slot.model.info()
        return int(info.running + info.queued)

    return server.ask(look)


def gate_running(server: RunningServer, name: str) -> int:
    return server.ask(
        lambda inside: sum(s.gate.running for s in inside.pool.slots() if s.entry.name == f"{name}:latest")
    )


def gate_waiting(server: RunningServer, name: str) -> int:
    return server.ask(
        lambda inside: sum(s.gate.waiting for s in inside.pool.slots() if s.entry.name == f"{name}:latest")
    )


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
def test_while_it_is_generated(server: RunningServer, path: str, stream: bool) -> None:
    body = {"model": "slow", "stream": stream, "options": LONG}
    body |= {"prompt": "hi"} if path == "/api/generate" else {"messages": [{"role": "user", "content": "hi"}]}
    with connect(server, path, body) as client:
        until(lambda: engine_running(server, "slow") == 1)
        if stream:
            client.recv(100)
    until(lambda: gate_running(server, "slow") == 0)
    until(lambda: engine_running(server, "slow") == 0)


def test_it_is_told_as_499_where_nothing_was_answered(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    def statuses() -> list[int]:
        lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "barrel_inference.requests"]
        return [line["status"] for line in lines if line.get("disconnected")]

    counted = 'barrel_requests_total{method="POST",route="/api/generate",status="499"}'
    with caplog.at_level(logging.INFO, "barrel_inference.requests"):
        body = {"model": "slow", "prompt": "hi", "options": LONG}
        with connect(server, "/api/generate", {**body, "stream": False}):
            until(lambda: engine_running(server, "slow") == 1)
        until(lambda: statuses() == [499])
        with connect(server, "/api/generate", body) as client:
            client.recv(100)
        until(lambda: statuses() == [499, 200])
    text = server.request("GET", "/metrics")[1]
    assert counted in text
    assert 'status="0"' not in text


@pytest.mark.parametrize("path", ["/api/show", "/api/blobs/sha256:" + "a" * 64, "/api/cache/import"])
def test_and_where_the_request_was_not_there_yet(
    server: RunningServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An upload that is broken off is no error of the server's."""

    def told() -> list[tuple[int, bool]]:
        lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "barrel_inference.requests"]
        return [(line["status"], line.get("disconnected", False)) for line in lines if line["path"] == path]

    where = urlsplit(server.url)
    with caplog.at_level(logging.INFO, "barrel_inference.requests"):
        with socket.create_connection((where.hostname, where.port), timeout=30) as client:
            head = f"POST {path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: 1000\r\n\r\n"
            client.sendall(head.encode() + b"{")
            until(lambda: server.request("GET", "/health")[1]["requests_active"] == 1)
        until(lambda: told() == [(499, True)])


@pytest.mark.parametrize("model", ["slow", "narrow", "ahead"])
def test_with_another_request_behind_the_one_in_hand(server: RunningServer, model: str) -> None:
    """In the queue and while a prompt is read nothing is written, so only reading on shows that the client has left."""
    body = {"model": model, "raw": True, "prompt": "x" * 400, "options": LONG}
    with connect(server, "/api/generate", body):
        until(lambda: gate_running(server, model) == 1)
        with connect(server, "/api/generate", body) as client:
            until(lambda: gate_running(server, model) + gate_waiting(server, model) == 2)
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: gate_running(server, model) + gate_waiting(server, model) == 1)
    until(lambda: gate_running(server, model) == 0)


def test_while_the_prompt_is_read(server: RunningServer) -> None:
    """1,500 tokens at 10 ms, in chunks of 256: the one that is being read when the client leaves is the last."""
    with connect(server, "/api/generate", {"model": "reading", "raw": True, "prompt": "x" * 1500}):
        until(lambda: counter(server, "prefilled_tokens") >= 256)
    until(lambda: gate_running(server, "reading") == 0)
    until(lambda: counter(server, "finished_cancelled") == 1)
    assert counter(server, "prefilled_tokens") < 1500


def counter(server: RunningServer, name: str) -> float:
    """Of the model that reads slowly."""
    return float(server.request("GET", "/api/cache")[1]["by_model"]["reading:latest"].get(name, 0))


def test_while_it_waits_in_the_queue(server: RunningServer) -> None:
    body = {"model": "narrow", "prompt": "hi", "options": LONG}
    with connect(server, "/api/generate", body):
        until(lambda: gate_running(server, "narrow") == 1)
        with connect(server, "/api/generate", body):
            until(lambda: gate_waiting(server, "narrow") == 1)
        until(lambda: gate_waiting(server, "narrow") == 0)
    until(lambda: gate_running(server, "narrow") == 0)


def test_while_the_model_is_loaded_the_load_goes_on(server: RunningServer) -> None:
    with connect(server, "/api/generate", {"model": "loading", "prompt": "hi"}):
        until(lambda: server.ask(lambda inside: any(s.entry.name == "loading:latest" for s in inside.pool.slots())))
    until(lambda: "loading:latest" in {each["name"] for each in server.request("GET", "/api/ps")[1]["models"]})


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/api/generate", {"prompt": "hi", "raw": True}),
        ("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_what_was_read_and_said_until_then_is_counted(server: RunningServer, path: str, asked: dict[str, Any]) -> None:
    before = {kind: tokens(server, kind) for kind in ("prompt", "completion")}
    with connect(server, path, {"model": "slow", "options": LONG, **asked}) as client:
        client.recv(100)
    until(lambda: all(tokens(server, kind) > count for kind, count in before.items()))


def tokens(server: RunningServer, kind: str) -> float:
    """Of the slow model, as the metrics count them."""
    _, metrics = server.request("GET", "/metrics")
    found = re.search(rf'barrel_tokens_total{{kind="{kind}",model="slow:latest"}} ([0-9.]+)', metrics)
    return float(found[1]) if found else 0.0


def test_it_is_counted(server: RunningServer) -> None:
    _, metrics = server.request("GET", "/metrics")
    assert 'barrel_disconnects_total{route="/api/generate"}' in metrics


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of each connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3 * IDLE:
        pytest.skip(f"a process may have only {hard} open files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * IDLE), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_thousands_of_idle_connections_cost_nothing_and_the_others_go_on(server: RunningServer) -> None:
    where = urlsplit(server.url)
    idle = [socket.create_connection((where.hostname, where.port)) for _ in range(IDLE)]
    try:
        status, body = server.post(
            "/api/generate",
            {"model": "reading", "prompt": "hi", "raw": True, "stream": False, "options": {"num_predict": 2}},
        )
        assert (status, body["done"]) == (200, True)
    finally:
        for each in idle:
            each.close()


@pytest.mark.usefixtures("many_files")
def test_thousands_of_streams_that_nobody_reads(server: RunningServer) -> None:
    """As many as may wait do, the others are told to come again; when their clients leave nothing is left of them."""
    body = {"model": "narrow", "prompt": "hi", "options": LONG}
    clients = [connect(server, "/api/generate", body) for _ in range(1500)]
    try:
        until(lambda: gate_running(server, "narrow") + gate_waiting(server, "narrow") == 1 + MAX_QUEUE)
        refused = clients[-1].recv(4096)
        assert refused.startswith(b"HTTP/1.1 503") and b"retry-after: " in refused
        assert server.request("GET", "/health")[0] == 200
    finally:
        for each in clients:
            each.close()
    until(lambda: gate_running(server, "narrow") + gate_waiting(server, "narrow") == 0)
    until(lambda: engine_running(server, "narrow") == 0)


def test_the_end_lets_what_runs_finish(tmp_path: Path) -> None:
    with RunningServer(tmp_path, drain_s=50) as running:
        client = connect(running, "/api/generate", {"model": "slow", "prompt": "hi", "options": {"num_predict": 20}})
        with client:
            client.recv(10)
            running.stop()
            text = read_all(client)
    assert b'"done":true,"done_reason":"length"' in text


def test_until_the_end_who_asks_for_more_is_told_to_come_again(tmp_path: Path) -> None:
    """On a connection of before and on a new one."""
    body = {"model": "slow", "prompt": "hi", "options": {"num_predict": 150}}
    with RunningServer(tmp_path, drain_s=50) as running, connect(running, "/api/generate", body) as client:
        client.recv(10)
        where = urlsplit(running.url)
        kept = http.client.HTTPConnection(where.hostname or "", where.port)
        kept.request("GET", "/api/version")
        kept.getresponse().read()
        running.listener.should_exit = True
        until(lambda: running.request("GET", "/health")[1]["status"] == "stopping")
        kept.request("POST", "/api/generate", json.dumps(body))
        refused = kept.getresponse()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        refused.close()
        for path in ("/api/generate", "/v1/chat/completions", "/v1/messages", "/api/pull"):
            status, text, headers = running.exchange("POST", path, body)
            assert (status, headers["retry-after"]) == (503, "1")
            assert "shutting down" in text
        assert running.request("GET", "/health/ready")[0] == 503
        assert running.request("GET", "/metrics")[0] == 200
        text = read_all(client)
        kept.close()
        running.stop()
    assert b'"done":true,"done_reason":"length"' in text


def test_the_end_tells_what_does_not_finish(tmp_path: Path) -> None:
    with RunningServer(tmp_path, drain_s=0.2) as running:
        client = connect(running, "/api/generate", {"model": "slow", "prompt": "hi", "options": LONG})
        with client:
            client.recv(10)
            running.stop()
            text = read_all(client)
    assert b'{"error":"' in text
    assert text.endswith(b"0\r\n\r\n"), "a whole answer"


def test_the_end_tells_who_still_waits_to_come_again(tmp_path: Path) -> None:
    """For a turn, and for memory."""
    body = {"model": "slow", "prompt": "hi", "options": LONG}
    options = {"drain_s": 0.2, "num_parallel": 1, "max_loaded_models": 1}
    with RunningServer(tmp_path, **options) as running, connect(running, "/api/generate", body):
        until(lambda: gate_running(running, "slow") == 1)
        with (
            connect(running, "/api/generate", body) as queued,
            connect(running, "/api/generate", {**body, "model": "stub"}) as loading,
        ):
            until(lambda: gate_waiting(running, "slow") == gate_running(running, "stub") == 1)
            running.stop()
            for answer in (read_all(queued), read_all(loading)):
                assert answer.startswith(b"HTTP/1.1 503")
                assert b"retry-after: 1" in answer


@pytest.mark.parametrize("stream", [True, False])
def test_the_end_tells_who_waits_for_what_may_take_long(tmp_path: Path, stream: bool) -> None:
    """For a model that is being loaded, and for a download from a host that says nothing."""
    models = {"loading": {**STUB, "stub": {"load_s": 3600.0}}}
    runtime = {"registry": {"allow_private": True}}
    with (
        RunningServer(tmp_path, runtime=runtime, drain_s=0.2, models=models) as running,
        socket.create_server(("127.0.0.1", 0)) as host,
    ):
        host.settimeout(60)
        spec = f"http://127.0.0.1:{host.getsockname()[1]}/m.gguf"
        with (
            connect(running, "/api/generate", {"model": "loading", "prompt": "hi", "stream": stream}) as loading,
            connect(running, "/api/pull", {"model": spec, "stream": stream, "insecure": True}) as pulling,
        ):
            until(lambda: gate_running(running, "loading") == 1)
            asked, _ = host.accept()
            with asked:
                running.stop()
            answers = [read_all(loading), read_all(pulling)]
    assert answers[0].startswith(b"HTTP/1.1 503")
    assert all(b'{"error":"the server is shutting down"' in each for each in answers)


def read_all(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)
