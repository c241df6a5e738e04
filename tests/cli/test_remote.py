"""With BARREL_INFERENCE_HOST the model commands ask that server, and touch nothing of this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.cli.report import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
)
from tests.registry.weights import model as weights
from tests.server.harness import RunningServer
from tests.support.waiting import until

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
_STUB = {"backend": "stub", "context_opts": {"n_ctx": 512}}
STUB = {"stub": _STUB, "told": _STUB | {"system": "Be brief. " * 20}}
DOCUMENT = "The barrel stood by the mill. " * 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server"), models=STUB) as running:
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.gguf"
    path.write_bytes(weights())
    return path


@pytest.fixture(scope="module")
def run(server: RunningServer, home: Path, file: Path) -> Run:
    environ = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home), "BARREL_INFERENCE_HOST": server.url}

    def command(*arguments: str, host: str = server.url) -> Done:
        return subprocess.run(
            [sys.executable, "-m", "barrel_inference.cli.main", *arguments],
            env=environ | {"BARREL_INFERENCE_HOST": host},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert command("pull", str(file), "--name", "tiny").returncode == 0
    return command


def told(done: Done) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_list(run: Run) -> None:
    names = {model["name"] for model in told(run("list", "--json"))["models"]}
    assert {"tiny:latest", "stub:latest"} <= names
    lines = run("list", "tin").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "tiny:latest"]


def test_show(run: Run) -> None:
    assert told(run("show", "tiny", "--json"))["details"]["format"] == "gguf"
    assert "architecture" in run("show", "tiny").stdout
    assert "FROM" in run("show", "tiny", "--modelfile").stdout


def test_copy_edit_create_and_remove(run: Run, tmp_path: Path) -> None:
    assert told(run("cp", "tiny", "second", "--json"))["destination"] == "second"
    assert "temperature" in run("edit", "second", "temperature=0.5").stdout
    assert told(run("edit", "second", "--unset", "temperature", "--json"))["parameters"] == {}
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text("FROM tiny\nSYSTEM Arr.\n")
    assert run("create", "pirate", "-f", str(modelfile)).returncode == 0
    assert run("show", "pirate", "--system").stdout == "Arr.\n"
    assert run("rm", "second", "pirate").stdout == "deleted 'second'\ndeleted 'pirate'\n"
    assert told(run("gc", "--dry-run", "--json"))["dry_run"] is True
    assert told(run("ps", "--json")) == {"models": []}


def test_create_uploads_the_files_that_it_names(run: Run, home: Path, file: Path, tmp_path: Path) -> None:
    modelfile = tmp_path / "Modelfile"
    own = tmp_path / "own.gguf"
    own.write_bytes(weights(**{"general.name": "of my own"}))
    modelfile.write_text("FROM ./own.gguf\nSYSTEM Arr.\nPARAMETER temperature 0.25\n")
    done = run("create", "mine", "-f", str(modelfile))
    assert done.returncode == 0, done.stderr
    assert "uploading own.gguf" in done.stderr
    assert run("show", "mine", "--system").stdout == "Arr.\n"
    assert "0.25" in run("show", "mine", "--parameters").stdout
    again = run("create", "twice", "--from", str(own))
    assert again.returncode == 0 and "uploading" not in again.stderr, "the server has it already"
    assert not list(home.rglob("*.gguf")), "nothing is installed here"
    assert run("rm", "mine", "twice").returncode == 0


def test_a_file_that_is_not_there_is_not_asked_for(run: Run, tmp_path: Path) -> None:
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text("FROM ./nowhere.gguf\n")
    done = run("create", "mine", "-f", str(modelfile))
    assert done.returncode in (EXIT_NOT_FOUND, EXIT_USAGE) and "nowhere.gguf" in done.stderr


def test_what_is_only_here_says_so(run: Run) -> None:
    done = run("verify")
    assert done.returncode == EXIT_REFUSED
    assert "unset BARREL_INFERENCE_HOST" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("show", "nobody"), ("rm", "nobody"), ("cp", "nobody", "x"), ("edit", "nobody")])
def test_an_unknown_model(run: Run, command: tuple[str, ...]) -> None:
    done = run(*command)
    assert done.returncode == EXIT_NOT_FOUND
    assert "not found" in done.stderr and "barrel-inference pull" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("list",), ("show", "x"), ("pull", "x"), ("rm", "x"), ("gc",), ("ps",)])
def test_a_server_that_is_not_there(run: Run, command: tuple[str, ...]) -> None:
    done = run(*command, host="127.0.0.1:9")
    assert done.returncode == EXIT_UNREACHABLE
    assert "no server at http://127.0.0.1:9" in done.stderr and done.stderr.count("\n") == 1


def test_run(run: Run) -> None:
    few = ("--max-tokens", "5", "--temperature", "0")
    whole = told(run("run", "stub", "Hello", *few, "--json"))
    assert whole["usage"]["completion_tokens"] == 5
    streamed = run("run", "stub", "Hello", *few, "-v")
    assert streamed.stdout.strip() == whole["text"].strip()
    assert "tokens" in streamed.stderr
    plain = told(run("run", "stub", "Hello", "--raw", *few, "--json"))
    assert plain["usage"]["prompt_tokens"] < whole["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "arguments",
    [("run", "stub", "Hi", "--temperature", "-1"), ("run", "stub", "Hi", "--raw", "--temperature", "-1", "--json")],
)
def test_a_wrong_value_is_wrong_usage_as_it_is_without_a_server(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == EXIT_USAGE
    assert "temperature" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("pull", "https://127.0.0.1:9/x.gguf"), EXIT_UNREACHABLE),
        (("pull", "/nowhere/x.gguf"), EXIT_NOT_FOUND),
        (("create", "mine", "--from", "https://127.0.0.1:9/x.gguf"), EXIT_UNREACHABLE),
        (("cp", "tiny", "/"), EXIT_USAGE),
        (("cache", "pin", "stub", "Nobody has read this.", "--raw"), EXIT_NOT_FOUND),
    ],
)
def test_what_a_command_ends_with_is_what_it_ends_with_without_a_server(
    run: Run, arguments: tuple[str, ...], code: int
) -> None:
    """Also where the answer has begun, and had a good status."""
    done = run(*arguments)
    assert (done.returncode, done.stderr.splitlines()[-1][:7]) == (code, "error: ")


@pytest.mark.parametrize("model", ["stub", "told"])
def test_what_the_server_keeps_of_a_prompt(run: Run, server: RunningServer, model: str) -> None:
    before = saved_tokens(server)
    assert run("run", model, DOCUMENT, "--max-tokens", "5").returncode == 0
    until(lambda: saved_tokens(server) > before)
    looked = told(run("cache", "lookup", model, DOCUMENT, "--json"))
    assert looked["by_tier"]["store"] >= looked["prompt_tokens"] - 64  # also of what the model's own message says
    assert f"of {looked['prompt_tokens']} tokens: " in run("cache", "lookup", model, DOCUMENT).stdout
    assert told(run("cache", "pin", model, DOCUMENT, "--json"))["pinned_tokens"] >= 128
    assert run("cache", "unpin", model, DOCUMENT).stdout == "unpinned\n"
    assert run("cache", "unpin", model, DOCUMENT).returncode == EXIT_FAILED


def test_a_prompt_is_brought_from_the_server_and_sent_to_it(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "warm.tar"
    assert run("run", "stub", DOCUMENT, "--max-tokens", "5").returncode == 0
    brought = told(run("cache", "export", "stub", str(file), DOCUMENT, "--json"))
    assert brought["objects"] >= 3 and brought["tokens"] >= 128 and file.stat().st_size > brought["bytes"]
    assert told(run("cache", "import", str(file), "--json"))["present"] == brought["objects"]
    assert told(run("cache", "clear", "--json"))["objects"] >= 3
    sent = told(run("cache", "import", str(file), "--tier", "store", "--json"))
    assert (sent["objects"], sent["bytes"]) == (brought["objects"], brought["bytes"])
    again = f"0 objects imported, 0 B, {brought['objects']} already there\n"
    assert run("cache", "import", str(file)).stdout == again


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("export", "nobody", "missing/warm.tar", DOCUMENT), "'nobody' not found"),
        (("export", "stub", "missing/warm.tar", DOCUMENT), "cannot write missing/warm.tar: no such file"),
        (("import", "missing.tar"), "cannot read missing.tar: no such file"),
        (("import", "pyproject.toml"), "cannot import"),
        (("import", "pyproject.toml", "--tier", "nosuch"), "nosuch"),
    ],
)
def test_what_cannot_be_moved_says_why(run: Run, command: tuple[str, ...], reason: str) -> None:
    assert run("run", "stub", DOCUMENT, "--max-tokens", "5").returncode == 0
    done = run("cache", *command)
    assert done.returncode != 0 and reason in done.stderr and done.stderr.count("\n") == 1


def saved_tokens(server: RunningServer) -> float:
    counters: dict[str, float] = server.request("GET", "/api/cache")[1]["counters"]
    return counters.get("saved_tokens", 0)


def test_the_store_of_the_server(run: Run) -> None:
    lines = run("cache", "stats").stdout.splitlines()
    assert lines[0].startswith("store (disk)  ") and "COUNTER" in "".join(lines)
    assert any(line.split() and line.split()[0] == "lookups" for line in lines)
    found = told(run("cache", "stats", "--json"))
    assert found["counters"]["lookups"] >= 1 and found["by_model"]
    assert told(run("cache", "verify", "--json"))["corrupt"] == 0
    assert told(run("cache", "clear", "--older-than", "30d", "--json"))["objects"] == 0
    assert told(run("cache", "clear", "--json"))["objects"] >= 1
    assert run("cache", "clear", "--tier", "nosuch").returncode == EXIT_USAGE
    assert told(run("cache", "stats", "--json"))["tiers"][0]["objects"] == 0


def test_nothing_was_done_on_this_machine(run: Run, home: Path) -> None:
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("command", ["pull", "create"])
def test_ctrl_c_ends_a_command_that_waits_for_the_server(command: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        arguments = [command, "mine", *(["--from", "tiny"] if command == "create" else [])]
        started = subprocess.Popen(
            [sys.executable, "-m", "barrel_inference.cli.main", *arguments],
            env={**os.environ, "HOME": str(tmp_path), "BARREL_INFERENCE_HOST": address},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b'{"status": "pulling manifest"}\n')
                assert started.stderr is not None and started.stderr.readline() == "pulling manifest\n"
                started.send_signal(signal.SIGINT)
                assert started.wait(20) == EXIT_INTERRUPTED
        finally:
            started.kill()
            started.communicate()
