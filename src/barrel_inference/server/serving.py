"""Listening: uvicorn with our limits below it, and an end in which what runs is let finish and then told why not.

Owns the runtime, the registry and the application for the time of ``serve``.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn

from barrel_inference.aio import AsyncRuntime
from barrel_inference.config import RuntimeConfig, ServerOptions
from barrel_inference.errors import ConfigError, ListenError
from barrel_inference.registry import Registry
from barrel_inference.server.app import Server
from barrel_inference.server.http import auth
from barrel_inference.server.http.protocol import guarded
from barrel_inference.server.http.streaming import ended

BACKLOG = 2048
IDLE_CONNECTION_S = 75
LAST_WORDS_S = 10.0  # for the answers of requests that the end of the runtime has cut short

_log = logging.getLogger(__name__)


async def serve(config: RuntimeConfig, *, listening: Callable[[str], None] = lambda url: None) -> None:
    """Until a signal. ``listening`` hears the URL once connections are accepted. Raises ConfigError and ListenError."""
    check_exposure(config.server)
    _raise_open_files()
    with bind(config.server) as bound:
        async with AsyncRuntime(config) as runtime:
            server = Server(config, runtime, Registry.configured(config))
            await Listener(config.server, server, runtime, listening).serve(sockets=[bound])


def check_exposure(options: ServerOptions) -> None:
    """Nobody listens to the network without keys by accident."""
    if auth.is_loopback(options.host) or options.api_keys or options.insecure_no_auth:
        return
    raise ConfigError(
        f"host={options.host!r} lets other machines connect: set server.api_keys, or allow it with --insecure-no-auth",
        option="server.host",
        value=options.host,
    )


def bind(options: ServerOptions) -> socket.socket:
    """Before anything is started, so that a port in use is one line and not a traceback."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # Named TCP, or asyncio will not send small pieces at once
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host.strip("[]"), options.port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ListenError(f"cannot listen on {options.host}:{options.port}: {reason.lower()}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Listener(uvicorn.Server):
    def __init__(
        self,
        options: ServerOptions,
        server: Server,
        runtime: AsyncRuntime,
        listening: Callable[[str], None] = lambda url: None,
    ) -> None:
        protocol = guarded(
            max_header_bytes=options.max_header_bytes,
            head_timeout_s=options.read_timeout_s,
            write_timeout_s=options.write_timeout_s,
            max_connections=options.max_connections,
        )
        super().__init__(
            uvicorn.Config(
                server.asgi,
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=IDLE_CONNECTION_S,
            )
        )
        self._drain_s = options.drain_s
        self._server = server
        self._runtime = runtime
        self._listening = listening
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._hurry = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            self._listening(url_of(listener))
        self._tasks.append(asyncio.create_task(self._server.start()))

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """SIGHUP, of a terminal that closes, is one of them unless it is to be ignored (nohup). SIGTERM and SIGHUP are
        not raised again in the end: they were obeyed, and the exit code is that of a good end."""
        with super().capture_signals():
            hears_more = threading.current_thread() is threading.main_thread()
            if hears_more and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
                signal.signal(signal.SIGHUP, self.handle_exit)
            yield
            self._captured_signals = [each for each in self._captured_signals if each == signal.SIGINT]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second Ctrl-C also ends the waiting for what runs."""
        super().handle_exit(sig, frame)
        if self.force_exit:
            self._loop.call_soon_threadsafe(self._hurry.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, while whoever asks for more is told to come later; then the runtime ends, and with it what still runs,
        each with a typed error; then the connections."""
        began = self._loop.time()
        self._announce()
        await self._drain()
        self._tasks.append(asyncio.create_task(self._end()))
        left_s = self._drain_s - (self._loop.time() - began)
        self.config.timeout_graceful_shutdown = int(max(0.0, left_s) + LAST_WORDS_S)
        await super().shutdown(sockets)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _announce(self) -> None:
        """Not where the signal is heard: there the log may be locked by the line that it has interrupted."""
        if n := self._server.pool.active:
            requests = "1 request" if n == 1 else f"{n} requests"
            _log.info("waiting up to %g s for %s to end; Ctrl-C again ends it now", self._drain_s, requests)
        else:
            _log.info("shutting down")

    async def _drain(self) -> None:
        self._tasks[0].cancel()  # a preload
        draining, hurry = asyncio.create_task(self._server.close()), asyncio.create_task(self._hurry.wait())
        await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
        await ended(draining, hurry)

    async def _end(self) -> None:
        await self._runtime.close()
        self._server.end()


def _raise_open_files() -> None:
    """Each client is a file, and the usual limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
