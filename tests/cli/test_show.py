"""What ``show`` makes of a file's metadata."""

from __future__ import annotations

from barrel_inference.cli.show import metadata_lines
from barrel_inference.registry.gguf import Skipped


def test_metadata_is_a_line_each_and_steers_no_terminal() -> None:
    values = {"list": Skipped("str", 49152), "there": None, "flag": False, "text": "ä\n\x1b[2J", "long": "x" * 99}
    shown = {line.split()[0]: line[44:].strip() for line in metadata_lines(values)}
    assert shown == {
        "list": "(49,152 values)",
        "there": "(a long list)",
        "flag": "false",
        "text": r"ä\n\x1b[2J",
        "long": "x" * 69 + "…",
    }
