"""Attacks on a server that listens to this machine, and on one with keys."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from barrel_inference.config import ServerOptions
from barrel_inference.errors import ConfigError
from barrel_inference.server import failures
from barrel_inference.server.serving import check_exposure
from tests.server.harness import STUB, RunningServer
from tests.support.waiting import until

KEY = "correct-horse-battery"
CHAT = {"model": "stub", "messages": [{"role": "user", "content": "hi"}], "stream": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Small limits, so that reaching them is quick."""
    limits = {"max_body_bytes": 1 << 20, "max_header_bytes": 8192, "read_timeout_s": 1.0, "max_messages": 100}
    with RunningServer(tmp_path_factory.mktemp("server"), models={"stub": STUB}, **limits) as running:
        yield running


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server"), api_keys=[KEY, "another-good-key"]) as running:
        yield running


def raw(server: RunningServer, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """What comes back until the server closes or falls silent."""
    with connected(server) as client:
        try:
            for part in parts:
                client.sendall(part)
                time.sleep(pause_s)
        except OSError:
            pass  # it has closed already
        received = b""
        try:
            while part := client.recv(65536):
                received += part
        except ConnectionError:
            pass
        return received


# ---- who asks


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "localhost.evil"])
def test_dns_rebinding(server: RunningServer, host: str) -> None:
    head = f"GET /api/tags HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    answer = raw(server, head.encode())
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"models" not in answer


def test_dns_rebinding_where_nobody_needs_a_key(tmp_path: Path) -> None:
    """Open to the network is not open to pages whose own name has come to mean this machine: Origin and Host agree."""
    with RunningServer(tmp_path, host="0.0.0.0", insecure_no_auth=True, hosts=["llm.example.com"]) as running:
        running.url = running.url.replace("0.0.0.0", "127.0.0.1")
        for host, status in {"evil.example:80": 403, "barrel-inference:8080": 200, "llm.example.com": 200}.items():
            assert running.request("GET", "/api/tags", host=host, origin=f"http://{host}")[0] == status


def test_who_is_sent_away_is_told_why_in_the_words_of_the_dialect(server: RunningServer) -> None:
    assert "server.hosts" in server.request("GET", "/api/tags", host="evil.example")[1]["error"]
    _, answer, headers = server.exchange("GET", "/v1/models", origin="https://evil.example")
    assert "server.origins" in json.loads(answer)["error"]["message"]
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8080", "my.localhost", "192.168.0.7"])
def test_this_machine(server: RunningServer, host: str) -> None:
    head = f"GET /api/version HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    assert raw(server, head.encode()).startswith(b"HTTP/1.1 200")


def test_who_names_no_host_is_no_browser(server: RunningServer) -> None:
    assert raw(server, b"GET /api/version HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    head = b"GET /api/version HTTP/1.0\r\nOrigin: https://evil.example\r\n\r\n"
    assert raw(server, head).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1@x"]
)
def test_strange_pages(server: RunningServer, origin: str) -> None:
    """Refused before anything is done: a page can send what it may not read the answer of."""
    assert server.post("/api/generate", {"model": "stub", "prompt": ""}, origin=origin)[0] == 403
    assert server.request("OPTIONS", "/api/chat", origin=origin)[0] == 403


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "app://x", "vscode-webview://y"])
def test_pages_of_this_machine(server: RunningServer, origin: str) -> None:
    status, _, headers = server.exchange("GET", "/api/version", origin=origin)
    assert (status, headers["access-control-allow-origin"]) == (200, origin)
    status, _, headers = server.exchange("OPTIONS", "/v1/messages", origin=origin)
    allowed = headers["access-control-allow-headers"].lower()
    assert status == 204
    assert all(name in allowed for name in ("authorization", "x-api-key", "anthropic-version", "x-stainless-os"))


def test_without_a_key(locked: RunningServer) -> None:
    for method, path in (("GET", "/api/tags"), ("POST", "/api/chat"), ("GET", "/metrics"), ("GET", "/v1/models")):
        assert locked.request(method, path, None if method == "GET" else CHAT)[0] == 401
    assert locked.request("GET", "/health")[0] == 200
    assert locked.request("GET", "/")[0] == 200


def test_each_dialect_refuses_in_its_own_shape(locked: RunningServer) -> None:
    assert set(locked.request("GET", "/api/tags")[1]) == {"error"}
    assert locked.request("GET", "/v1/models")[1]["error"]["code"] == "invalid_api_key"
    assert locked.post("/v1/messages", {})[1]["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer {KEY}"}, 200),
        ({"x_api_key": "another-good-key"}, 200),
        ({"authorization": f"Bearer {KEY}x"}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": KEY}, 401),
        ({"x_api_key": ""}, 401),
        ({"x_api_key": "ü" * 20}, 401),
        ({"authorization": "Bearer " + "x" * 5000}, 401),
    ],
)
def test_keys(locked: RunningServer, headers: dict[str, str], status: int) -> None:
    encoded = {name: value.encode().decode("latin-1") for name, value in headers.items()}
    assert locked.request("GET", "/api/tags", **encoded)[0] == status


def test_a_wrong_key_is_not_taken_for_none(locked: RunningServer) -> None:
    assert locked.request("GET", "/api/tags")[1]["error"].startswith("unauthorized: an API key is required")
    wrong = locked.request("GET", "/api/tags", x_api_key="not-a-good-key")[1]["error"]
    assert wrong == "unauthorized: the server does not know this API key"


def test_the_network_needs_keys() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.com"):
        with pytest.raises(ConfigError, match="insecure-no-auth"):
            check_exposure(ServerOptions(host=host))
    check_exposure(ServerOptions(host="0.0.0.0", api_keys=(KEY,)))
    check_exposure(ServerOptions(host="0.0.0.0", insecure_no_auth=True))
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        check_exposure(ServerOptions(host=host))


# ---- how much, how deep, how slow


def test_a_large_body(server: RunningServer) -> None:
    for size in ((1 << 20) + 1, 16 << 20):  # the larger one is still being sent when it is refused
        status, answer = server.post("/api/chat", b" " * size)
        assert (status, "larger than" in answer["error"]) == (413, True)
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    head = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert raw(server, head, *[chunk] * 20).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "body", [b"[" * 500_000, b'{"a":' * 100_000, b'{"model":"stub","options":' + b'{"a":' * 50_000]
)
def test_deep_bodies(server: RunningServer, body: bytes) -> None:
    started = time.process_time()  # of the server, too
    assert server.post("/api/chat", body)[0] == 400
    assert time.process_time() - started < 2


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_deep_and_large_schemas(server: RunningServer) -> None:
    wide = {"type": "object", "properties": {f"p{number}": {"enum": ["x" * 100]} for number in range(5000)}}
    for schema in (nested(150), wide):
        status, answer = server.post("/api/chat", {**CHAT, "format": schema})
        assert (status, answer["error"][:10]) == (400, "the schema")
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        assert server.post("/api/chat", {**CHAT, "tools": [tool]})[0] == 400


LARGE: list[dict[str, Any]] = [
    {"json_schema": json.dumps(nested(150))},
    {"json_schema": json.dumps({"enum": [str(number) for number in range(40_000)]})},
    {"regex": "a" * 300_000},
    {"grammar": "start: " + '"a" ' * 100_000},
]


@pytest.mark.parametrize("form", LARGE, ids=["deep", "wide", "regex", "grammar"])
def test_large_forms_on_every_way_in(server: RunningServer, form: dict[str, Any]) -> None:
    asked = {"model": "stub", "prompt": "hi", "stream": False}
    name, text = next(iter(form.items()))
    openai = {"guided_regex": text} if name == "regex" else {name: json.loads(text) if name == "json_schema" else text}
    bodies = [
        ("/api/generate", asked | {"options": form}),
        ("/api/generate", asked | {"options": form, "raw": True}),
        ("/api/chat", {**CHAT, "options": form}),
        ("/v1/completions", asked | openai),
        ("/v1/chat/completions", CHAT | openai),
    ]
    for path, body in bodies:
        status, answer = server.post(path, body)
        assert status == 400 and re.search("at most|deeper than", str(answer["error"])), (path, answer)


def chain(n: int) -> dict[str, Any]:
    links = {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}]} for i in range(n)}
    return {"$ref": "#/$defs/0", "$defs": links | {str(n): {"type": "null"}}}


def test_a_long_chain_of_references_ends_no_worker(server: RunningServer) -> None:
    for path, body in (
        ("/api/chat", {**CHAT, "format": chain(4000)}),
        ("/api/generate", {"model": "stub", "prompt": "hi", "stream": False, "format": chain(4001), "raw": True}),
        ("/v1/chat/completions", {**CHAT, "json_schema": chain(4002)}),
    ):
        status, answer = server.post(path, body)
        assert status == 200 and "null" in json.dumps(answer), answer


def test_many_messages(server: RunningServer) -> None:
    status, answer = server.post("/api/chat", {**CHAT, "messages": CHAT["messages"] * 101})
    assert (status, answer) == (400, {"error": "a conversation has at most 100 messages, not 101"})


def test_large_heads(server: RunningServer) -> None:
    flood = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(5000))
    assert raw(server, flood, b"\r\n").startswith(b"HTTP/1.1 431")
    assert raw(server, b"GET /" + b"a" * 20_000, b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_large_heads_that_come_at_once(server: RunningServer, body: bytes) -> None:
    head = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nX: %s\r\n\r\n"
    assert raw(server, head % (len(body), b"a" * 9000) + body).startswith(b"HTTP/1.1 431")
    assert raw(server, b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * 9000)).startswith(b"HTTP/1.1 431")


def test_slow_loris(server: RunningServer) -> None:
    """A head that never ends, a byte at a time, and one that never begins."""
    dripped = []
    with connected(server) as client:

        def is_closed() -> bool:
            try:
                dripped.append(client.send(b"y"))
            except ConnectionError:
                return True
            return False

        client.sendall(b"GET / HTTP/1.1\r\nX: ")
        until(is_closed)
    assert len(dripped) < 8000, "it ended before it was too large"
    assert raw(server) == b""


@pytest.mark.parametrize(
    ("request_", "then"),
    [
        (b"POST /nope HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n", b"x"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n"),
    ],
)
def test_what_drips_in_after_the_answer_does_not_hold_the_connection(
    server: RunningServer, request_: bytes, then: bytes
) -> None:
    with connected(server) as client:
        client.sendall(request_)
        assert client.recv(65536).startswith(b"HTTP/1.1 ")
        client.sendall(then)
        until(lambda: not is_open(server, client))


def connected(server: RunningServer) -> socket.socket:
    where = urlsplit(server.url)
    return socket.create_connection((where.hostname, where.port), timeout=60)


def is_open(server: RunningServer, client: socket.socket) -> bool:
    """As the server sees it."""
    return client.getsockname() in {each.client for each in list(server.listener.server_state.connections)}


def test_fields_behind_a_chunked_body(server: RunningServer) -> None:
    head = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    assert raw(server, head + b"X-Y: z\r\n" * 5000).startswith(b"HTTP/1.1 431")


def test_slow_bodies(server: RunningServer) -> None:
    head = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n{"
    assert raw(server, head).startswith(b"HTTP/1.1 504")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nx",
    ],
)
def test_what_is_no_http(server: RunningServer, head: bytes) -> None:
    assert not raw(server, head).startswith(b"HTTP/1.1 200")
    assert server.request("GET", "/health")[0] == 200


# ---- names and paths

TRICKS = [
    "../../etc/passwd",
    "..",
    "/etc/passwd",
    "a/../../b",
    "a\x00b",
    "file:///etc/passwd",
    "~/x",
    "C:\\x",
    "%2e%2e/x",
]
PATHS = re.compile(r"(/root|/home|/tmp|/usr|/etc/|site-packages|Traceback)")


@pytest.mark.parametrize("name", TRICKS)
@pytest.mark.parametrize(
    "path", ["/api/show", "/api/generate", "/api/chat", "/api/embed", "/api/edit", "/api/tokenize"]
)
def test_path_tricks_in_names(server: RunningServer, path: str, name: str) -> None:
    body = {"model": name, "prompt": "x", "messages": CHAT["messages"], "input": "x", "content": "x", "stream": False}
    status, answer = server.post(path, body)
    assert status in (400, 404)
    assert not PATHS.search(str(answer).replace(name, "").replace(repr(name)[1:-1], ""))


@pytest.mark.parametrize("name", TRICKS)
def test_path_tricks_in_names_that_would_be_written(server: RunningServer, name: str) -> None:
    assert server.post("/api/copy", {"source": "stub", "destination": name})[0] == 400
    assert server.post("/api/copy", {"source": name, "destination": "x"})[0] == 400
    assert server.request("DELETE", "/api/delete", {"model": name})[0] in (400, 404)
    assert server.post("/api/create", {"model": name, "from": "stub", "stream": False})[0] == 400


@pytest.mark.parametrize("digest", ["sha256:..", "..%2f..%2fetc", "sha256:" + "z" * 64, "sha256-" + "a" * 63, "x"])
def test_path_tricks_in_digests(server: RunningServer, digest: str) -> None:
    assert server.request("HEAD", f"/api/blobs/{digest}")[0] in (400, 404)
    assert server.post(f"/api/blobs/{digest}", b"data")[0] in (400, 404)


def test_a_blob_must_be_what_it_says(server: RunningServer) -> None:
    status, answer = server.post("/api/blobs/sha256:" + "a" * 64, b"data")
    assert status == 400
    assert "digest mismatch" in answer["error"]


@pytest.mark.parametrize(
    "spec",
    ["http://169.254.169.254/latest", "https://127.0.0.1:9/x.gguf", "https://localhost/x.gguf", "https://[::1]/x"],
)
def test_pulls_from_inside(server: RunningServer, spec: str) -> None:
    status, answer = server.post("/api/pull", {"model": spec, "stream": False})
    assert status >= 400
    assert "error" in answer


def test_pulled_files_must_be_models_and_paths_stay_secret(server: RunningServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret.gguf"
    secret.write_text("password")
    status, answer = server.post("/api/pull", {"model": str(secret), "stream": False})
    assert status >= 400
    assert "password" not in str(answer)
    assert str(tmp_path) not in str(answer)


def test_files_are_for_this_machine_only(tmp_path: Path) -> None:
    with RunningServer(tmp_path, host="0.0.0.0", api_keys=[KEY]) as running:
        running.url = running.url.replace("0.0.0.0", "127.0.0.1")
        for path in ("file:///etc/hostname", "/etc/hostname"):
            status, answer = running.post("/api/pull", {"model": path, "stream": False}, x_api_key=KEY)
            assert (status, "machine" in answer["error"]) == (400, True)


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat", "/api/embed", "/api/tokenize"])
def test_nor_are_they_fetched_for_who_names_them_as_a_model(tmp_path: Path, path: str) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with RunningServer(tmp_path, host="0.0.0.0", api_keys=[KEY], auto_pull=True) as running:
        running.url = running.url.replace("0.0.0.0", "127.0.0.1")
        for name in (str(tmp_path / "m.gguf"), f"file://{tmp_path}/m.gguf"):
            body = {"model": name, "prompt": "x", "messages": CHAT["messages"], "input": "x", "content": "x"}
            status, answer = running.post(path, body, x_api_key=KEY)
            assert (status, "machine" in answer["error"]) == (400, True)


def test_template_bombs(server: RunningServer) -> None:
    """Endless, enormous, and reaching for the interpreter. What is endless here is soon ended by how much it makes;
    that time ends what makes nothing is in tests/chat/templates, with a clock of its own."""
    for bomb in (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = 'x' * 99999 %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10**10 }}",
        "{{ 'x'.center(10**10) }}",
        "{{ '%10000000000d' % 1 }}",
        "{% set a = namespace(b='x') %}{% for _ in range(60) %}{% set a.b = a.b ~ a.b %}{% endfor %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    ):
        status, answer = server.post(
            "/api/generate", {"model": "stub", "prompt": "x", "template": bomb, "stream": False}
        )
        assert status == 400, answer
        assert "uid=" not in str(answer)


def test_messages_of_errors_name_no_directories() -> None:
    error = ConfigError("cannot read /home/someone/models/a.gguf: it is no GGUF")
    assert failures.public(error) == "cannot read a.gguf: it is no GGUF"
    assert (
        failures.public(ConfigError("use /api/chat, not https://x.y/tmp/z")) == "use /api/chat, not https://x.y/tmp/z"
    )


def test_bugs_are_not_shown() -> None:
    assert failures.status(failures.of(OSError(24, "Too many open files"))) == 503
    shown = failures.of(ZeroDivisionError("/home/x/secret"))
    assert (failures.status(shown), "secret" in shown.message) == (500, False)


def test_request_ids_come_back_when_they_are_harmless(server: RunningServer) -> None:
    assert server.exchange("GET", "/health", x_request_id="abc-1")[2]["x-request-id"] == "abc-1"
    assert server.exchange("GET", "/health", x_request_id="a b\tc")[2]["x-request-id"].startswith("req_")
