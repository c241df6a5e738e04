"""The flags of ``run`` for the answer's form, thoughts, and the model's stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from barrel_inference.cli.main import main
from barrel_inference.cli.report import EXIT_USAGE
from barrel_inference.cli.wishes import Wishes, wishes, with_levels
from barrel_inference.errors import ConfigError


def test_what_is_not_wished_is_not_said() -> None:
    assert wishes(None, None, False, None).body() == {}
    assert wishes(None, None, False, None).params() == {}


def test_a_wish_as_a_server_takes_it_and_as_a_model_does(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "string"}')
    assert wishes("json", "high", False, "10m") == Wishes("json", "high", 600.0)
    assert wishes("json", None, True, "-1").body() == {"format": "json", "think": False, "keep_alive": -1.0}
    assert wishes("json", "true", False, None).params() == {"json_schema": {"type": "object"}, "think": True}
    for form in (str(file), file.read_text()):
        assert wishes(form, None, False, None).params() == {"json_schema": {"type": "string"}}


@pytest.mark.parametrize(
    ("form", "think", "keep_alive", "said"),
    [
        ("nowhere.json", None, None, "nor a file of one: no such file"),
        ("{oops", None, None, "not a JSON schema: "),
        (__file__, None, None, "not a JSON schema: "),
        (None, "deep", None, "expected low, medium, high, max"),
        (None, None, "soon", "--keepalive soon: write 10m"),
    ],
)
def test_a_wish_that_nobody_understands(form: str | None, think: str | None, keep_alive: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        wishes(form, think, False, keep_alive)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ([], []),
        (["m", "--think"], ["m", "--think=true"]),
        (["m", "--think", "Why?"], ["m", "--think=true", "Why?"]),
        (["m", "--think", "high", "Why?"], ["m", "--think", "high", "Why?"]),
        (["--think=low", "m"], ["--think=low", "m"]),
    ],
)
def test_think_may_stand_without_a_level(words: list[str], read: list[str]) -> None:
    assert with_levels(words) == read


@pytest.mark.parametrize("more", [("--think", "--no-think"), ("--raw", "--no-think")])
def test_what_contradicts_itself_is_refused(more: tuple[str, ...]) -> None:
    assert main(["run", "m", "Hi", *more]) == EXIT_USAGE
