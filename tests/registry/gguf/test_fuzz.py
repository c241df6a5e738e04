"""Hostile files: whatever the bytes, the answer is a GgufInfo or an InvalidModelError, soon and in little memory. The
long run is ``scripts/fuzz_gguf``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from barrel_inference.errors import InvalidModelError
from barrel_inference.registry import gguf
from tests.registry.weights import model

BASE = model(512, words=["a", "bc"] * 600, numbers=list(range(1500)))
POSITIONS = st.integers(0, len(BASE) - 1)
EDITS = st.lists(st.tuples(POSITIONS, st.binary(min_size=1, max_size=9)), min_size=1, max_size=6)


def mutate(edits: list[tuple[int, bytes]], cut: int | None = None) -> bytes:
    content = bytearray(BASE)
    for position, data in edits:
        content[position : position + len(data)] = data
    return bytes(content[:cut])


def survives(content: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(content)
        file.flush()
        try:
            info = gguf.read(Path(file.name))
        except InvalidModelError as error:
            assert error.message
        else:
            assert info.n_params >= 0 and isinstance(info.parameter_size + info.quantization + info.family, str)
            assert info.quant_bits >= 0 and info.context_length is not None and info.vocab_size >= 0


@settings(max_examples=500, deadline=None)
@given(EDITS, st.one_of(st.none(), POSITIONS))
def test_damaged_files(edits: list[tuple[int, bytes]], cut: int | None) -> None:
    survives(mutate(edits, cut))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_garbage(content: bytes) -> None:
    survives(b"GGUF\3\0\0\0" + content)


def test_the_long_run_runs(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "scripts" / "fuzz_gguf"
    done = subprocess.run([sys.executable, script, "300", "1"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("300 inputs (seed 1), ")
