"""A real server on loopback, in a thread of its own, with stub models in real workers. Owns the thread."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.request import Request, urlopen

from barrel_inference.aio import AsyncRuntime
from barrel_inference.config import RuntimeConfig, TierSpec
from barrel_inference.options import build
from barrel_inference.registry import Registry
from barrel_inference.server.app import Server
from barrel_inference.server.serving import Listener, bind, url_of

T = TypeVar("T")

STUB: dict[str, Any] = {"backend": "stub", "context_opts": {"n_ctx": 512}}
SLOW: dict[str, Any] = {**STUB, "stub": {"delay_ms": 20.0, "model": "slow"}}
TIMEOUT_S = 60.0


class RunningServer:
    """``with RunningServer(tmp_path, port…) as server``: serves until the end of the block."""

    def __init__(self, root: Path, *, runtime: dict[str, Any] | None = None, **options: Any) -> None:
        models = {"stub": STUB, "slow": SLOW}
        self.config = build(
            RuntimeConfig(),
            {
                "model_cache_dir": str(root / "models"),
                "cache_dir": str(root / "cache"),
                "tiers": (TierSpec(name="store", kind="disk", path=str(root / "kv"), quota_bytes=64 << 20),),
                **(runtime or {}),
                "server": {"port": 0, "num_parallel": 2, "drain_s": 5.0, "models": models, **options},
            },
        )
        self.url = ""
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="server under test")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S), "the server did not start"
        if self._failed is not None:
            self._thread.join()
            raise self._failed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._failed is not None and error is None:
            raise self._failed

    def stop(self) -> None:
        self.listener.should_exit = True
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the server did not stop"

    def ask(self, function: Callable[[Server], T]) -> T:
        """Look into the server, on its own loop."""

        async def work(server: Server) -> T:
            return function(server)

        return self.run(work)

    def run(self, work: Callable[[Server], Coroutine[Any, Any, T]]) -> T:
        """Do something in the server, on its own loop."""
        return asyncio.run_coroutine_threadsafe(work(self.server), self._loop).result(TIMEOUT_S)

    # ---- the thread

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failed = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with bind(self.config.server) as bound:
            await self._serve_on(bound)

    async def _serve_on(self, bound: socket.socket) -> None:
        async with AsyncRuntime(self.config) as runtime:
            self.server = Server(self.config, runtime, Registry.configured(self.config))
            self.listener = Listener(self.config.server, self.server, runtime, self._listening)
            self.url = url_of(bound)
            await self.listener.serve(sockets=[bound])

    def _listening(self, url: str) -> None:
        self._ready.set()

    # ---- asking

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and JSON (or text) of one POST."""
        return self.request("POST", path, body, **headers)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        status, text, _ = self.exchange(method, path, body, **headers)
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def exchange(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, dict[str, str]]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(self.url + path, data=data, method=method, headers=named)
        request.add_unredirected_header("Connection", "close")
        import urllib.error

        try:
            with urlopen(request, timeout=TIMEOUT_S) as response:
                return response.status, response.read().decode(), {k.lower(): v for k, v in response.headers.items()}
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), {k.lower(): v for k, v in error.headers.items()}
