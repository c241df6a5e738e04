"""What a conversation takes for a file, and what for a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from barrel_inference.cli.private import weights_file


def test_a_file_is_known_by_its_whole_path(tmp_path: Path) -> None:
    (tmp_path / "weights").touch()
    assert weights_file(str(tmp_path / "weights")) == str(tmp_path / "weights")
    assert weights_file("missing.gguf") == str(Path.cwd() / "missing.gguf")
    assert weights_file("~/missing") == str(Path.home() / "missing")


@pytest.mark.parametrize("model", ["smollm2:135m", "hf://Org/Repo/m.gguf", "https://a.example/m.gguf"])
def test_a_name_and_a_spec_are_no_files(model: str) -> None:
    assert weights_file(model) is None
