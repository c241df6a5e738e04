"""What holds for every command: an example in its help, --json, one line with the cure for wrong usage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from barrel_inference.cli import main as cli
from barrel_inference.cli.report import EXIT_USAGE

REFUSED = {"push"}  # says what to do instead; not in the help


def leaves() -> Iterator[tuple[str, Any]]:
    """Every command that can be run, by its full name."""
    group: Any = typer.main.get_group(cli.build(["--help"]))
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from ((f"{name} {inner}", each) for inner, each in command.commands.items())
        else:
            yield name, command


EVERY = dict(leaves())


def test_all_of_them_are_seen_here() -> None:
    assert {name.split()[0] for name in EVERY} == set(cli.COMMANDS) - REFUSED


@pytest.mark.parametrize("name", EVERY)
def test_the_help_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*name.split(), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Example: barrel-inference {name}" in shown
    assert "--json" in shown


@pytest.mark.parametrize("name", EVERY)
def test_every_option_and_argument_is_explained(name: str) -> None:
    shown = [each for each in EVERY[name].params if not getattr(each, "hidden", False)]
    assert [each.name for each in shown if not each.help] == []


@pytest.mark.parametrize("name", EVERY)
def test_wrong_usage_is_one_line_with_the_cure(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*name.split(), "--frobnicate"]) == EXIT_USAGE
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    assert error.startswith("error: No such option: --frobnicate")
    assert f"(see barrel-inference {name} --help)" in error


def test_the_help_as_data_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == "barrel-inference" and told["help"]
    commands = {each["name"]: each for each in told["commands"]}
    names = {name for name, each in commands.items() if "commands" not in each}
    names |= {f"{name} {inner['name']}" for name, each in commands.items() for inner in each.get("commands", ())}
    assert names == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_the_help_of_one_as_data(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", *name.split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["name"] == f"barrel-inference {name}"
    assert "Example: " in told["help"]
    assert any(option["flags"] == ["--json"] and option["help"] for option in told["options"])
    assert all(each["help"] for each in [*told["arguments"], *told["options"]])


def test_what_is_said_of_a_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "--json", "serve"]) == 0
    options = {each["name"]: each for each in json.loads(capsys.readouterr().out)["options"]}
    assert (options["preload"]["repeatable"], options["port"]["repeatable"]) == (True, False)
    assert options["log_level"]["default"] == "info"
    assert (options["port"]["takes_value"], options["json"]["takes_value"]) == (True, False)
    assert cli.main(["help", "stop", "--json"]) == 0
    assert [each["required"] for each in json.loads(capsys.readouterr().out)["arguments"]] == [True]


@pytest.mark.parametrize("words", [("frobnicate",), ("cache", "frobnicate"), ("version", "frobnicate")])
def test_no_help_as_data_of_what_is_no_command(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", *words, "--json"]) == EXIT_USAGE
    assert "No such command 'frobnicate'" in capsys.readouterr().err
