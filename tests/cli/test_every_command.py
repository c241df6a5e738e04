"""What holds for every command: an example in its help, --json, one line with the cure for wrong usage."""

from __future__ import annotations

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
    assert f"(see barrel-inference {name.split()[0]} --help)" in error
