"""Real children: what they inherit, what is kept of their output, how their end is told."""

from __future__ import annotations

import logging
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from barrel_inference.config import LoadOptions
from barrel_inference.errors import BarrelError, ExhaustedError, LoadError, OutOfMemoryError
from barrel_inference.worker.process import (
    LINE_BYTES,
    OPENMP_SPINS,
    TAIL_LINES,
    Life,
    WorkerProcess,
    worker_environment,
)

PYTHON = [sys.executable, "-c"]


async def test_it_inherits_its_socket_and_nothing_else() -> None:
    program = (
        "import os, socket, sys; fd = int(sys.argv[1]); s = socket.socket(fileno=fd);"
        "s.sendall(repr((sorted(set(map(int, os.listdir('/proc/self/fd'))) - {fd}), os.getsid(0) == os.getpid(),"
        "sys.stdin.read())).encode())"
    )
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    process, sock = WorkerProcess.spawn("m", [*PYTHON, program])
    assert await process.wait() == 0
    # 3 is the directory that the child lists
    assert eval(sock.recv(10_000)) in [([0, 1, 2, n], True, "") for n in range(3, 20)]
    sock.close()
    os.close(inherited)


async def test_the_tail_keeps_the_last_lines_of_both_streams_bounded() -> None:
    program = (
        "import sys\nfor i in range(200): print(f'line {i}', flush=True)\n"
        "print('x' * 10_000, file=sys.stderr); sys.stderr.buffer.write(b'\\xff\\xfe no text\\n')"
    )
    process, sock = WorkerProcess.spawn("m", [*PYTHON, program])
    await process.wait()
    lines = process.tail().splitlines()
    assert len(lines) == TAIL_LINES
    assert "line 199" in lines
    assert max(map(len, lines)) <= LINE_BYTES
    assert "no text" in lines[-1]
    sock.close()


@pytest.mark.parametrize(
    ("program", "code", "epitaph"),
    [
        ("raise SystemExit(3)", 3, "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", -9, "killed by signal 9 (Killed)"),
        ("import os; os.abort()", -6, "killed by signal 6 (Aborted)"),
    ],
)
async def test_its_end_is_told(program: str, code: int, epitaph: str) -> None:
    process, sock = WorkerProcess.spawn("m", [*PYTHON, program])
    assert process.epitaph() == "still running"
    assert await process.wait() == code
    assert process.epitaph() == epitaph
    assert await process.wait() == code
    assert not psutil.pid_exists(process.pid)
    sock.close()


async def test_a_program_that_does_not_exist_leaves_no_descriptor() -> None:
    before = psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError):
        WorkerProcess.spawn("m", ["/nonexistent"])
    assert psutil.Process().num_fds() == before


def test_openmp_spins_briefly_unless_the_user_says_otherwise() -> None:
    assert worker_environment({"A": "b"}) == {"A": "b", "GOMP_SPINCOUNT": OPENMP_SPINS}
    assert worker_environment({"GOMP_SPINCOUNT": "5"}) == {"GOMP_SPINCOUNT": "5"}
    assert worker_environment({"OMP_WAIT_POLICY": "active"}) == {"OMP_WAIT_POLICY": "active"}


async def begun(program: str, model_path: str | None = None) -> BarrelError:
    """Why a worker that runs ``program`` does not become ready."""
    options = LoadOptions(id="m", model_path=model_path)
    with pytest.raises(BarrelError) as caught:
        await Life.begin(options, [*PYTHON, program], ready_timeout_s=60, on_progress=lambda progress: None)
    return caught.value


@contextmanager
def no_more_threads() -> Iterator[None]:
    """No stack can be as large as all of a process's addresses."""
    before = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(before)


@contextmanager
def few_more_descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_a_thread_for_it_there_is_no_child_and_another_try_is_worth_it() -> None:
    me = psutil.Process()
    before = (me.num_fds(), me.children())
    with no_more_threads():
        error = await begun("import time; time.sleep(100)")
    assert isinstance(error, ExhaustedError)
    assert "can't start new thread" in error.message
    assert (me.num_fds(), me.children()) == before


@pytest.mark.parametrize("count", [1, 3])
async def test_so_it_is_without_descriptors(count: int) -> None:
    me = psutil.Process()
    before = (me.num_fds(), me.children())
    with few_more_descriptors(count):
        error = await begun("import time; time.sleep(100)")
    assert isinstance(error, ExhaustedError)
    assert (me.num_fds(), me.children()) == before


async def test_who_dies_of_a_failed_allocation_is_told_as_out_of_memory(tmp_path: Path) -> None:
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"0" * 60_000_000)
    program = "import os, sys; print('terminate called: std::bad_alloc', file=sys.stderr, flush=True); os.abort()"
    error = await begun(program, str(weights))
    assert isinstance(error, OutOfMemoryError)
    assert "its file has 0.1 GB" in error.message
    assert "GB are free" in error.message
    assert error.details["died"]
    assert "bad_alloc" in error.details["output"]


async def test_who_is_killed_by_hand_is_not() -> None:
    error = await begun("import os; os.kill(os.getpid(), 9)")
    assert (type(error), error.details["died"]) == (LoadError, True)


@pytest.mark.skipif(not os.access("/sys/fs/cgroup/memory", os.W_OK), reason="no groups of version one to be made here")
async def test_who_is_killed_by_the_kernel_is(tmp_path: Path) -> None:
    group = Path("/sys/fs/cgroup/memory") / f"barrel-test-{tmp_path.name}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        error = await begun(f"open('{group}/tasks', 'w').write('0'); held = b'x' * (512 << 20)")
        assert isinstance(error, OutOfMemoryError)
        assert "killed by signal 9" in error.message
    finally:
        group.rmdir()


async def test_a_traceback_has_the_level_of_its_error(caplog: pytest.LogCaptureFixture) -> None:
    """Lines that begin with no level belong to the record before them only when that is an error."""
    program = (
        "import logging; logging.basicConfig(level='DEBUG', format='%(levelname)s %(name)s: %(message)s')\n"
        "print('of a library', flush=True)\n"
        "try: 1 / 0\n"
        "except Exception: logging.getLogger('x').exception('failed')\n"
        "logging.getLogger('x').info('later')\n"
        "print('of a library again', flush=True)\n"
        "raise RuntimeError('not caught')"
    )
    with caplog.at_level(logging.DEBUG, "barrel_inference.worker.process"):
        process, sock = WorkerProcess.spawn("m", [*PYTHON, program])
        await process.wait()
    sock.close()
    levels = {each.getMessage().removeprefix("worker m: "): each.levelname for each in caplog.records}
    errors = {line for line, level in levels.items() if level == "ERROR"}
    assert {"x: failed", "ZeroDivisionError: division by zero", "RuntimeError: not caught"} < errors
    assert [levels[line] for line in ("of a library", "x: later", "of a library again")] == ["DEBUG", "INFO", "DEBUG"]
