"""Results: what a reader sees and what a program reads are the same numbers."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.report import Table, number, save, spread


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.0312, "0.0312"), (1.5, "1.50"), (131.25, "131.25"), (12345.6, "12,346")]
)
def test_numbers_have_the_digits_that_mean_something(value: float, text: str) -> None:
    assert number(value) == text


def test_a_spread_shows_median_smallest_and_largest() -> None:
    assert str(spread([3.0, 1.0, 2.0])) == "2.00 (1.00 … 3.00)"
    assert str(spread([3.0])) == "3.00"


def test_both_files_are_written(tmp_path: Path) -> None:
    table = Table("x", "How fast?", [{"what": "decode", "tokens/s": spread([1.0, 2.0])}], ["It runs."])
    text = save(table, tmp_path)
    assert (tmp_path / "x.md").read_text() == text
    assert "# How fast?" in text and "| decode | 1.50 (1.00 … 2.00) |" in text and "It runs." in text
    with (tmp_path / "x.csv").open() as file:
        assert list(csv.reader(file)) == [["what", "tokens/s"], ["decode", "1 2"]]
