"""The demo's own parts: the same long prompt each time, and a table that tells the truth."""

from __future__ import annotations

from barrel_inference.cli.demo import Step, compared, prompt


def _step(name: str, seconds: float, text: str = "salt") -> Step:
    return Step(name=name, source="disk", restored=2400, prefilled=12, first_token_s=seconds, text=text)


def test_the_prompt_is_long_and_always_the_same() -> None:
    assert prompt() == prompt()
    assert len(prompt()) > 4 * 1500  # more than 2,000 tokens at fewer than four characters each


def test_the_table_compares_with_the_cold_answer() -> None:
    lines = compared([_step("cold", 8.0), _step("again", 0.04)]).splitlines()
    assert lines[1].split("  ")[0] == "cold" and "1 ×" in lines[1]
    assert "0.040 s" in lines[2] and "200 ×" in lines[2] and "yes" in lines[2]


def test_the_table_does_not_hide_another_text() -> None:
    assert "NO" in compared([_step("cold", 8.0), _step("again", 0.04, text="tea")]).splitlines()[2]
