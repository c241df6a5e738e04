"""The application: lazy commands, one-line errors, exit codes."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from barrel_inference.cli import main as cli
from barrel_inference.cli.installed import relative
from barrel_inference.cli.log import OneLine
from barrel_inference.cli.report import (
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_REFUSED,
    EXIT_USAGE,
    counted,
    exit_code,
    human_bytes,
    one_line,
    table,
)
from barrel_inference.errors import (
    BarrelError,
    ConfigError,
    ContextExceededError,
    DirectiveError,
    InvalidModelError,
    InvalidRequestError,
    ModelNotFoundError,
    from_dict,
)


def test_help_lists_the_commands_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "version" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "cache", "config"])
def test_every_line_of_the_help_is_whole(name: str) -> None:
    """On a terminal of 80 columns."""
    group: Any = typer.main.get_group(cli.build(["--help"]))
    group = group.commands[name] if name else group
    lines = {
        name: command.get_short_help_str(limit=65) for name, command in group.commands.items() if not command.hidden
    }
    assert {name for name, line in lines.items() if line.endswith("...")} == set()


@pytest.mark.parametrize("arguments", [[], ["help"], ["-h"]])
def test_nothing_and_help_mean_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    assert "Usage:" in capsys.readouterr().out


def test_help_of_a_command_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "version"]) == 0
    assert "Example: barrel-inference version" in capsys.readouterr().out


def test_wrong_usage_is_one_line_with_the_cure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version", "--jsn"]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert error.startswith("error: No such option: --jsn") and error.count("\n") == 1
    assert "barrel-inference version --help" in error


def test_wrong_usage_names_the_help_of_the_command_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "lookup"]) == cli.main(["run"]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert "(see barrel-inference cache lookup --help)" in error
    assert "(see barrel-inference run --help)" in error


def test_the_package_itself_is_the_command_line() -> None:
    command = [sys.executable, "-m", "barrel_inference", "no-such-command"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == EXIT_USAGE and done.stderr.startswith("error: ")


def test_push_is_refused_with_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["push", "mine"]) == EXIT_REFUSED
    assert "barrel-inference show mine --modelfile" in capsys.readouterr().err


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["frobnicate"]) == EXIT_USAGE
    assert "frobnicate" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--version", "-v"])
def test_version_is_also_an_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([option]) == 0
    assert capsys.readouterr().out.startswith("barrel-inference ")


def test_version_is_json_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() >= {"version", "llama_cpp_python", "python"}


@pytest.mark.parametrize("flag", ["--keep-alive=soon", "--log-level=loud", "--port=-1"])
def test_a_wrong_flag_of_serve_is_refused_before_it_listens(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", flag]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith("error: ")


def test_a_port_in_use_is_a_failure_that_may_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """Not a wrong value, after which a supervisor would not try again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli.main(["serve", f"--port={taken.getsockname()[1]}"]) == EXIT_FAILED
    assert "address already in use  (if another process listens there" in capsys.readouterr().err


def test_every_command_understands_the_variables_that_the_server_does() -> None:
    environ = {**os.environ, "OLLAMA_NUM_PARALLEL": "many"}
    command = [sys.executable, "-m", "barrel_inference.cli.main", "list"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_USAGE
    assert "OLLAMA_NUM_PARALLEL='many' is not allowed" in done.stderr


def test_one_command_is_imported_not_all() -> None:
    code = (
        "import sys; from barrel_inference.cli import main; main.main(['version']);"
        "print([name for name in sys.modules if name.startswith('barrel_inference.cli.')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "barrel_inference.cli.version" in done.stderr
    assert "barrel_inference.cli.doctor" not in done.stderr


def test_exit_codes_tell_kinds_of_failure_apart() -> None:
    assert exit_code(ConfigError("x")) == exit_code(DirectiveError("x")) == EXIT_USAGE
    assert exit_code(ModelNotFoundError("x")) == EXIT_NOT_FOUND
    assert exit_code(ContextExceededError("x")) == exit_code(InvalidRequestError("x")) == EXIT_REFUSED
    assert exit_code(InvalidRequestError("x", option="temperature")) == EXIT_USAGE
    assert exit_code(BarrelError("x")) == 1


def test_a_file_is_named_with_its_directory() -> None:
    error = InvalidModelError("m.gguf: no such file or directory", path="/far/away/m.gguf")
    assert one_line(error) == "/far/away/m.gguf: no such file or directory"


def test_an_error_is_one_line_with_its_cure() -> None:
    assert one_line(ModelNotFoundError("no model\nnamed x")).startswith("no model named x  (barrel-inference pull")
    refused = from_dict({"code": "unauthorized", "message": "no key", "details": {}})
    assert one_line(refused).endswith("(the commands send the key in BARREL_INFERENCE_API_KEY)")
    assert one_line(BarrelError("x")) == "x"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (98 << 20, "98.0 MiB"), (1 << 41, "2.0 TiB")]
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_numbers_stand_on_the_right() -> None:
    assert table([("NAME", "SIZE", "ID"), ("a", "9 B", "x")], numbers=[1]) == "NAME   SIZE   ID\na       9 B   x"


@pytest.mark.parametrize(("count", "text"), [(0, "0 objects"), (1, "1 object"), (1200, "1,200 objects")])
def test_counts_for_people(count: int, text: str) -> None:
    assert counted(count, "object") == text


@pytest.mark.parametrize(
    ("now", "text"),
    [
        ("2026-11-29T20:56:53Z", "now"),
        ("2026-11-29T20:57:52Z", "now"),
        ("2026-11-29T20:58:53Z", "2 minutes ago"),
        ("2026-12-29T20:56:53Z", "1 month ago"),
        ("2026-11-29T19:56:53Z", "in 1 hour"),
    ],
)
def test_times_for_people(now: str, text: str) -> None:
    seconds = datetime.fromisoformat(now).timestamp()
    assert relative("2026-11-29T20:56:53Z", now=seconds) == text


def test_nobody_else_begins_a_line_of_the_log() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "model %s", ("a\n2026 ERROR forged \x1b[2J\x9b",), None)
    assert OneLine("%(name)s %(message)s").format(record) == r"x model a\x0a2026 ERROR forged \x1b[2J\x9b"


@pytest.mark.parametrize(
    "arguments", [("list",), ("config", "show", "--all"), ("config", "show", "--json"), ("--help",), ("version",)]
)
def test_output_that_cannot_be_written_is_one_line(arguments: tuple[str, ...]) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    with full.open("w") as nowhere:
        command = [sys.executable, "-m", "barrel_inference.cli.main", *arguments]
        done = subprocess.run(command, stdout=nowhere, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (EXIT_FAILED, "error: output: no space left on device\n")
