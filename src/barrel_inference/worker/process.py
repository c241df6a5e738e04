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
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from barrel_inference.config import LoadOptions
from barrel_inference.errors import BarrelError, ExhaustedError, LoadError, OutOfMemoryError, from_dict
from barrel_inference.memory import oom_kills, system_memory, tells_of_shortage
from barrel_inference.types import ModelInfo
from barrel_inference.worker.channel import AsyncChannel, ChannelError
from barrel_inference.worker.messages import PROTOCOL, Failed, Load, Progress, Ready, Up

TAIL_LINES = 60
LINE_BYTES = 2_000
EXIT_S = 2.0  # between the end of a worker's socket and its own
KILLED_S = 10.0  # one that the kernel does not let go in this time (a disk that hangs) is left to it
OPENMP_SPINS = "2000"

_log = logging.getLogger(__name__)
_levels = logging.getLevelNamesMapping()
_TRACE = ("Traceback (most recent call last)", "Fatal Python error")


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
        self._level = logging.DEBUG  # of the last record that it logged
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
        try:
            return cls(popen, name), ours
        except BaseException:  # no thread to watch it
            ours.close()
            popen.kill()
            popen.communicate()
            raise

    @property
    def pid(self) -> int:
        return self._popen.pid

    def tail(self) -> str:
        """The last lines that the child printed."""
        return "\n".join(self._tail)

    @property
    def exit_code(self) -> int | None:
        return self._popen.returncode

    def epitaph(self) -> str:
        """How it ended, in a few words; call after ``wait`` or ``end``."""
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

    async def end(self, patience_s: float = 0.0) -> None:
        """Make sure that it ends, by itself for ``patience_s``. What hangs in the kernel is not waited for."""
        for limit_s in (patience_s, KILLED_S):
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self.wait()
                    return
            self.kill()

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
            if word in _levels:
                self._level, line = _levels[word], rest
            elif line.startswith(_TRACE):
                self._level = logging.ERROR
            elif self._level < logging.ERROR:  # otherwise it is the traceback of that error
                self._level = logging.DEBUG
            _log.log(self._level, "worker %s: %s", self._name, line)


class Life:
    """A worker that said Ready. ``begin`` makes one or raises; ``process.end`` must be awaited once."""

    def __init__(self, process: WorkerProcess, channel: AsyncChannel) -> None:
        self.process = process
        self.channel = channel
        self._sentence = ""

    def kill(self, sentence: str = "") -> None:
        """Also when the kernel does not let the process go, nothing more is heard of it. ``sentence``: why, if that
        tells more than how it ended."""
        self._sentence = sentence
        self.process.kill()
        self.channel.close()

    def epitaph(self) -> str:
        return self._sentence or self.process.epitaph()

    @classmethod
    async def begin(
        cls,
        options: LoadOptions,
        command: Sequence[str],
        *,
        ready_timeout_s: float,
        on_progress: Callable[[Progress], None],
    ) -> tuple[Life, ModelInfo]:
        """Raises what the worker answered, LoadError when it stalled (``stalled=True``), broke the protocol or died
        (``died=True``), OutOfMemoryError when it died of that, ExhaustedError when the system had no process for it."""
        n_kills = oom_kills()
        try:
            process, sock = WorkerProcess.spawn(options.id, command)
        except (OSError, RuntimeError) as error:
            raise _not_started(error) from error
        channel: AsyncChannel | None = None
        try:
            channel = await _open(sock)
            channel.send([Load(PROTOCOL, options)])
            return cls(process, channel), await _until_ready(process, channel, ready_timeout_s, on_progress)
        except BaseException as error:
            sock.close() if channel is None else channel.close()
            died = isinstance(error, _ClosedError)
            await process.end(EXIT_S if died else 0.0)
            if died:
                raise _death(process, options, n_kills) from None
            raise


async def _open(sock: socket.socket) -> AsyncChannel:
    try:
        return await AsyncChannel.open(sock)
    except (OSError, RuntimeError) as error:
        raise _not_started(error) from error


class _ClosedError(Exception):
    """The worker has closed its socket before it was ready."""


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
            raise _ClosedError
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


def _not_started(error: OSError | RuntimeError) -> Exception:
    """A RuntimeError that is no want of threads is a bug."""
    if (want := ExhaustedError.of(error)) is not None:
        return want
    if isinstance(error, OSError):
        return LoadError(f"the worker cannot be started: {error}")
    return RuntimeError(f"the worker cannot be started: {error}")


def _death(process: WorkerProcess, options: LoadOptions, n_kills: int | None) -> BarrelError:
    """Why it died while it loaded. ``n_kills``: the kernel's for want of memory, before it was started."""
    is_killed = process.exit_code == -signal.SIGKILL and (n_kills is None or n_kills != oom_kills())
    if not is_killed and not tells_of_shortage(process.tail()):
        return _load_error(process, f"the worker died while loading ({process.epitaph()})", died=True)
    memory, size = system_memory(), 0
    with suppress(OSError):
        size = Path(options.model_path).stat().st_size if options.model_path else 0
    words = f"not enough memory to load the model (worker: {process.epitaph()}): "
    words += f"its file has {size / 1e9:.1f} GB, " if size else ""
    words += f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB are free"
    return OutOfMemoryError(words, size=size, free=memory.available, died=True, output=process.tail())


def _load_error(process: WorkerProcess, message: str, **details: Any) -> LoadError:
    return LoadError(message, output=process.tail(), **details)
