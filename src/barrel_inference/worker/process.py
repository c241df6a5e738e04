"""One worker child: spawned with one end of a socket pair, its output kept in a bounded ring, its exit awaited; and one
life of a worker, which is such a child from its Load to its end.

A daemon thread per child reads its output to the end and reaps it; it owns the ring. Everything else belongs to the
event loop. ``spawn`` must be called on the loop's own thread: the child asks Linux to be killed with the *thread* that
made it, as a second string to the closing of the socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from barrel_inference.config import LoadOptions
from barrel_inference.errors import LoadError, from_dict
from barrel_inference.types import ModelInfo
from barrel_inference.worker.channel import AsyncChannel, ChannelError
from barrel_inference.worker.messages import PROTOCOL, Failed, Load, Progress, Ready, Up

TAIL_LINES = 60
LINE_BYTES = 2_000
OPENMP_SPINS = "2000"

_log = logging.getLogger(__name__)
_levels = logging.getLevelNamesMapping()


def worker_command() -> list[str]:
    """``-P``: a file named like a module in the caller's working directory must not be imported instead of it."""
    return [sys.executable, "-P", "-m", "barrel_inference.worker"]


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Ours, and how long OpenMP's threads spin before they sleep, unless the user has an opinion.

    As they are, they spin for milliseconds: as fast as any value while the cores are free, but when another process has
    one of them, each operation of the model waits for a whole time slice, and a token takes seconds.
    """
    if "OMP_WAIT_POLICY" in environ:
        return dict(environ)
    return {"GOMP_SPINCOUNT": OPENMP_SPINS, **environ}


class WorkerProcess:
    """A running or ended child. ``name`` is the model's id, for logs."""

    def __init__(self, popen: subprocess.Popen[bytes], name: str) -> None:
        self._popen = popen
        self._name = name
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        assert popen.stdout is not None
        threading.Thread(target=self._watch, args=(popen.stdout,), name=f"watch {name}", daemon=True).start()

    @classmethod
    def spawn(cls, name: str, command: Sequence[str]) -> tuple[WorkerProcess, socket.socket]:
        """Start ``command <fd>``; the socket is our end. The child gets no terminal signals (its own session) and no
        other descriptor of ours."""
        ours, theirs = socket.socketpair()
        try:
            popen = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env=worker_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(popen, name), ours

    @property
    def pid(self) -> int:
        return self._popen.pid

    def tail(self) -> str:
        """The last lines that the child printed."""
        return "\n".join(self._tail)

    def epitaph(self) -> str:
        """How it ended, in a few words; call after ``wait``."""
        code = self._popen.returncode
        if code is None:
            return "still running"
        if code < 0:
            return f"killed by signal {-code} ({signal.strsignal(-code)})"
        return f"exit code {code}"

    def kill(self) -> None:
        self._popen.kill()

    async def wait(self) -> int:
        """Its exit code (negative: the signal), after the last of its output was read."""
        return await asyncio.shield(self._exited)

    def _watch(self, output: IO[bytes]) -> None:
        with output:
            while line := output.readline(LINE_BYTES):
                self._note(line.decode(errors="replace").rstrip())
        code = self._popen.wait()
        try:
            self._loop.call_soon_threadsafe(self._resolve, code)
        except RuntimeError:  # the loop was closed first; nobody waits any more
            _log.debug("worker %s ended after its event loop", self._name)

    def _resolve(self, code: int) -> None:
        if not self._exited.done():
            self._exited.set_result(code)

    def _note(self, line: str) -> None:
        if line:
            self._tail.append(line)
            word, _, rest = line.partition(" ")  # as the worker's own log begins its lines; others print what they like
            level, text = (_levels[word], rest) if word in _levels else (logging.DEBUG, line)
            _log.log(level, "worker %s: %s", self._name, text)


class Life:
    """A worker that said Ready. ``begin`` makes one or raises; ``end`` must be awaited once."""

    def __init__(self, process: WorkerProcess, channel: AsyncChannel) -> None:
        self.process = process
        self.channel = channel

    @classmethod
    async def begin(
        cls,
        options: LoadOptions,
        command: Sequence[str],
        *,
        ready_timeout_s: float,
        on_progress: Callable[[Progress], None],
    ) -> tuple[Life, ModelInfo]:
        """Raises what the worker answered, or LoadError when it stalled (``stalled=True``), broke the protocol or died
        (``died=True``)."""
        try:
            process, sock = WorkerProcess.spawn(options.id, command)
        except OSError as error:
            raise LoadError(f"the worker cannot be started: {error}") from error
        channel: AsyncChannel | None = None
        try:
            channel = await AsyncChannel.open(sock)
            channel.send([Load(PROTOCOL, options)])
            return cls(process, channel), await _until_ready(process, channel, ready_timeout_s, on_progress)
        except BaseException:
            sock.close() if channel is None else channel.close()
            process.kill()
            await process.wait()
            raise

    async def end(self) -> str:
        """Wait for a worker whose channel has ended (or kill it first); returns how it ended."""
        self.channel.close()
        await self.process.wait()
        return self.process.epitaph()


async def _until_ready(
    process: WorkerProcess, channel: AsyncChannel, timeout_s: float, on_progress: Callable[[Progress], None]
) -> ModelInfo:
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                batch = await channel.receive()
        except TimeoutError:
            raise _load_error(process, f"the worker showed no progress for {timeout_s:g} s", stalled=True) from None
        except ChannelError as error:
            raise _load_error(process, f"the worker broke the protocol: {error}") from error
        if batch is None:
            process.kill()  # it closed its socket; make sure that it ends
            await process.wait()
            raise _load_error(process, f"the worker died while loading ({process.epitaph()})", died=True)
        for message in batch:
            if (info := _answer(message, on_progress)) is not None:
                return info


def _answer(message: Up, on_progress: Callable[[Progress], None]) -> ModelInfo | None:
    """None while the loading goes on."""
    match message:
        case Ready(info):
            return info
        case Failed(reason):
            raise from_dict(reason)
        case Progress():
            on_progress(message)
        case _:
            _log.warning("unexpected %s before ready", type(message).__name__)
    return None


def _load_error(process: WorkerProcess, message: str, **details: Any) -> LoadError:
    return LoadError(message, output=process.tail(), **details)
