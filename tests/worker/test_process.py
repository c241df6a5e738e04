"""Real children: what they inherit, what is kept of their output, how their end is told."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from barrel_inference.worker.process import LINE_BYTES, OPENMP_SPINS, TAIL_LINES, WorkerProcess, worker_environment

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
