"""A hub on loopback that can be told to misbehave: it imitates the Hugging Face API and its CDN, an OCI registry, and
plain files, and does to each request what the test ordered. A Hub owns its thread and what it has seen."""

from __future__ import annotations

import hashlib
import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

BLOCK = 16 << 10


@dataclass
class Fault:
    """What happens to one request instead of a good answer.

    status    answer this, with ``body`` and ``headers``
    drop_at   close the connection after so many bytes of the body
    stall_at  send so many bytes of the body, then nothing until the hub closes
    length    claim this Content-Length
    shift     answer a range that begins so many bytes later than asked
    corrupt   flip the first byte of the body
    endless   a body that never ends
    ignore_range  200 with the whole file
    redirect  302 to this URL
    """

    status: int | None = None
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    drop_at: int | None = None
    stall_at: int | None = None
    length: int | None = None
    shift: int = 0
    corrupt: bool = False
    endless: bool = False
    ignore_range: bool = False
    redirect: str | None = None


@dataclass
class Resource:
    """One path. ``faults`` are used up one a request; ``skip`` requests pass first."""

    content: bytes = b""
    etag: str | None = None
    last_modified: str | None = None
    ranges: bool = True
    chunked: bool = False
    redirect: Callable[[], str] | None = None
    authorization: str | None = None
    challenge: str = "Basic"
    content_type: str = "application/octet-stream"
    faults: list[Fault] = field(default_factory=list)
    skip: int = 0


@dataclass(frozen=True)
class Seen:
    path: str
    headers: dict[str, str]


class Hub:
    def __init__(self, bytes_per_s: float | None = None) -> None:
        self.resources: dict[str, Resource] = {}
        self.seen: list[Seen] = []
        self.sent_bytes = 0
        self.bytes_per_s = bytes_per_s
        self.allowance: Callable[[], int] | None = None  # of bytes sent; asked again before each block
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def serve(self, path: str, content: bytes, **options: object) -> Resource:
        """A file; its ETag follows its content unless given."""
        resource = Resource(content, **{"etag": f'"{hashlib.md5(content).hexdigest()}"', **options})  # type: ignore[arg-type]
        self.resources[path] = resource
        return resource

    def repository(
        self, name: str, files: dict[str, bytes], *, token: str | None = None, commit: str = "c0ffee"
    ) -> None:
        """A repository of the Hub: its listing, and resolve URLs that redirect to signed ones of a CDN path."""
        authorization = f"Bearer {token}" if token else None
        siblings = [
            {
                "rfilename": file,
                "size": len(data),
                "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)},
            }
            for file, data in files.items()
        ]
        listing = json.dumps({"sha": commit, "siblings": siblings}).encode()
        self.serve(f"/api/models/{name}/revision/main", listing, authorization=authorization)
        for file, data in files.items():
            cdn = f"/cdn/{name}/{file}"
            self.serve(cdn, data)
            self.resources[f"/{name}/resolve/{commit}/{file}"] = Resource(
                redirect=lambda cdn=cdn: f"{self.url}{cdn}?signature={time.monotonic_ns()}",  # type: ignore[misc]
                authorization=authorization,
            )

    def ollama(self, name: str, layers: list[tuple[str, bytes]], *, tag: str = "latest") -> None:
        """A model of an Ollama registry; ``layers`` are (kind, content)."""
        described = []
        for kind, content in layers:
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            media = f"application/vnd.ollama.image.{kind}"
            described.append({"mediaType": media, "digest": digest, "size": len(content)})
            self.serve(f"/v2/{name}/blobs/{digest}", content)
        self.serve(f"/v2/{name}/manifests/{tag}", json.dumps({"schemaVersion": 2, "layers": described}).encode())

    def requests_for(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path.partition("?")[0] == path]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], hub: Hub) -> None:
        super().__init__(address, _Handler)
        self.hub = hub

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        hub, path = self.server.hub, self.path.partition("?")[0]
        with hub.lock:
            hub.seen.append(Seen(self.path, {key.lower(): value for key, value in self.headers.items()}))
            resource = hub.resources.get(path)
            fault = _next_fault(resource) if resource else Fault(status=404, body=b"no such file")
        if resource and resource.authorization and self.headers.get("Authorization") != resource.authorization:
            fault = Fault(status=401, headers={"WWW-Authenticate": resource.challenge})
        if fault.redirect or (resource and resource.redirect and fault.status is None):
            location = fault.redirect or resource.redirect()  # type: ignore[union-attr,misc]
            fault = Fault(status=302, headers={"Location": location})
        if fault.status is not None:
            self._head(fault.status, {**fault.headers, "Content-Length": str(len(fault.body))})
            self._send(fault.body)
        elif resource:
            self._answer(resource, fault)

    def _answer(self, resource: Resource, fault: Fault) -> None:
        body, status, headers = resource.content, 200, {"Content-Type": resource.content_type}
        for name, value in (("ETag", resource.etag), ("Last-Modified", resource.last_modified)):
            headers |= {name: value} if value else {}
        wanted = self._range(resource) if resource.ranges and not fault.ignore_range else None
        if wanted and wanted[0] >= len(body):
            self._head(416, {"Content-Range": f"bytes */{len(body)}", "Content-Length": "0"})
            return
        if wanted:
            first, last = wanted[0] + fault.shift, min(wanted[1], len(body) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            body, status = body[first : last + 1], 206
        if fault.corrupt:
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault.endless or resource.chunked:
            self._head(status, {**headers, "Transfer-Encoding": "chunked"})
            self._send_chunked(body, endless=fault.endless)
            return
        self._head(status, {**headers, "Content-Length": str(len(body) if fault.length is None else fault.length)})
        self._send(body, fault.drop_at, fault.stall_at)

    def _range(self, resource: Resource) -> tuple[int, int] | None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        if match is None or (condition and condition not in (resource.etag, resource.last_modified)):
            return None
        return int(match[1]), int(match[2] or len(resource.content))

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, body: bytes, drop_at: int | None = None, stall_at: int | None = None) -> None:
        limit = next((at for at in (drop_at, stall_at) if at is not None), len(body))
        for start in range(0, min(limit, len(body)), BLOCK):
            self._send_block(body[start : min(start + BLOCK, limit)])
        if stall_at is not None:
            self.server.hub.closing.wait()
        if drop_at is not None or stall_at is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()

    def _send_block(self, block: bytes) -> None:
        hub = self.server.hub
        while hub.allowance is not None:
            with hub.lock:  # so that nothing is under way when a test looks
                if self._client_left() or hub.closing.is_set():
                    raise ConnectionResetError
                if hub.sent_bytes + len(block) <= hub.allowance():
                    self.wfile.write(block)
                    hub.sent_bytes += len(block)
                    break
            time.sleep(0.001)
        else:
            self.wfile.write(block)
            self._count(len(block))
        self._pace(len(block))

    def _client_left(self) -> bool:
        readable = select.select([self.connection], [], [], 0)[0]
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _send_chunked(self, body: bytes, *, endless: bool) -> None:
        while body:
            for start in range(0, len(body), BLOCK):
                block = body[start : start + BLOCK]
                self.wfile.write(f"{len(block):x}\r\n".encode() + block + b"\r\n")
                self._count(len(block))
                self._pace(len(block))
            if not endless or self.server.hub.closing.is_set():
                break
        self.wfile.write(b"0\r\n\r\n")

    def _count(self, n_bytes: int) -> None:
        hub = self.server.hub
        with hub.lock:
            hub.sent_bytes += n_bytes

    def _pace(self, n_bytes: int) -> None:
        if bytes_per_s := self.server.hub.bytes_per_s:
            time.sleep(n_bytes / bytes_per_s)


def _next_fault(resource: Resource) -> Fault:
    if resource.skip:
        resource.skip -= 1
        return Fault()
    return resource.faults.pop(0) if resource.faults else Fault()
