"""Whom a command asks, and with which key; what it says of a server that breaks off."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from barrel_inference.cli.client import Client
from barrel_inference.errors import BarrelError, InvalidRequestError, ModelfileError, PullError, UnreachableError

KEYS = ("first-good-key", "another-good-key")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """With a configuration of this machine's server."""
    file = tmp_path / "config.toml"
    file.write_text(f'[server]\nhost = "::"\nport = 8081\napi_keys = {list(KEYS)}\n')
    return {"BARREL_INFERENCE_CONFIG": str(file)}


def asked(environ: dict[str, str]) -> tuple[str, str | None]:
    client = Client(environ=environ)
    return client.url, client._key


def test_without_any_word_the_usual_address() -> None:
    assert asked({"BARREL_INFERENCE_CONFIG": "/dev/null"}) == ("http://127.0.0.1:8080", None)


def test_the_server_that_the_configuration_makes(environ: dict[str, str]) -> None:
    assert asked(environ) == ("http://[::1]:8081", KEYS[0])
    assert asked({**environ, "BARREL_INFERENCE_API_KEY": "mine"})[1] == "mine"


def test_its_keys_are_for_no_other_server(environ: dict[str, str]) -> None:
    assert asked({**environ, "BARREL_INFERENCE_HOST": "https://far.example"}) == ("https://far.example:443", None)


# ---- a server that breaks off

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE = b'10\r\n{"done": false}\n\r\n'


@contextmanager
def answering(answer: bytes) -> Iterator[Client]:
    """A client of a server that gives these bytes and is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass  # what is not read would be answered with a reset, which overtakes the answer

        server = threading.Thread(target=once)
        server.start()
        yield Client(f"http://127.0.0.1:{listener.getsockname()[1]}", environ={})
        server.join()


@pytest.mark.parametrize("rest", [b"", b"10", b'10\r\n{"done"', b'8\r\n{"done":\r\n'])
def test_a_stream_without_its_end_is_an_error_behind_what_came(rest: bytes) -> None:
    with answering(CHUNKED + PIECE + rest) as client:
        lines = client.lines("/api/chat", {})
        assert next(lines) == {"done": False}
        with pytest.raises(UnreachableError, match="broke off"):
            list(lines)


def test_half_an_answer_is_an_error() -> None:
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}"
    with answering(half) as client, pytest.raises(UnreachableError, match="broke off"):
        client.ask("GET", "/api/ps")


# ---- what a server says


def whole(status: str, body: bytes, more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


def test_a_failure_is_what_the_server_calls_it() -> None:
    wrong = whole("400 Bad Request", b'{"error": "no"}', "x-wrong-option: temperature\r\n")
    with answering(wrong) as client, pytest.raises(InvalidRequestError) as caught:
        client.ask("GET", "/api/ps")
    assert caught.value.details == {"option": "temperature"}
    named = b'{"error": "no", "code": "invalid_modelfile"}\n'
    with answering(whole("400 Bad Request", named)) as client, pytest.raises(ModelfileError, match="no"):
        client.ask("GET", "/api/ps")
    with answering(whole("200 OK", named)) as client, pytest.raises(ModelfileError, match="no"):
        list(client.lines("/api/create", {}))
    in_head = whole("502 Bad Gateway", b'{"error": "no"}', "x-error-code: pull_failed\r\n")
    with answering(in_head) as client, pytest.raises(PullError, match="no"):
        client.ask("GET", "/api/ps")


def test_an_answer_that_is_no_json_is_an_error_of_ours() -> None:
    with answering(whole("200 OK", b"<html>")) as client, pytest.raises(BarrelError):
        client.ask("GET", "/api/ps")


@pytest.mark.parametrize(
    ("answer", "ours"),
    [
        (whole("200 OK", b'{"version": "0.33.0", "barrel_inference": "0.1.0"}'), True),
        (whole("200 OK", b'{"version": "0.33.0"}'), False),
        (whole("200 OK", b"[1]"), False),
        (whole("200 OK", b"<html>"), False),
        (whole("404 Not Found", b""), False),
        (b"SSH-2.0-x\r\n", False),
        (b"", False),
    ],
)
def test_a_server_of_ours_is_told_from_others(answer: bytes, ours: bool) -> None:
    with answering(answer) as client:
        assert client.is_ours() is ours


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        (whole("200 OK", b"{}"), True),
        (whole("404 Not Found", b'{"error": "no", "code": "model_not_found"}'), False),
        (whole("401 Unauthorized", b'{"error": "no"}', "x-error-code: unauthorized\r\n"), False),
        (b"", False),
    ],
)
def test_whether_a_server_knows_a_model(answer: bytes, known: bool) -> None:
    with answering(answer) as client:
        assert client.knows("m") is known


def test_a_failure_is_no_sign_that_a_model_is_unknown() -> None:
    damaged = whole("500 Internal Server Error", b'{"error": "damaged"}', "x-error-code: damaged_model\r\n")
    with answering(damaged) as client, pytest.raises(BarrelError, match="damaged"):
        client.knows("m")


def test_where_nobody_listens_there_is_none_of_ours() -> None:
    assert Client("http://127.0.0.1:9", environ={}).is_ours() is False
