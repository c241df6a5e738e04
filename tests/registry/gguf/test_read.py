"""Reading good GGUF files, and refusing each kind of bad one with the cause named."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.errors import InvalidModelError
from barrel_inference.registry import gguf
from barrel_inference.registry.gguf.info import format_count
from barrel_inference.registry.gguf.tensors import ELEMENT_TYPES
from tests.registry.weights import header, model, shards, text, value
from tests.support.models import smollm2


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refused(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(InvalidModelError) as caught:
        gguf.read(write(tmp_path / "bad.gguf", content))
    return caught.value.message


@pytest.mark.model
def test_smollm2() -> None:
    info = gguf.read(smollm2())
    assert (info.architecture, info.family, info.kind) == ("llama", "llama", "model")
    assert (info.n_params, info.parameter_size) == (134_515_008, "135M")
    assert (info.quantization, info.quant_bits) == ("q4_1", 4)
    assert (info.context_length, info.embedding_length, info.vocab_size) == (8192, 576, 49_152)
    assert info.chat_template and "<|im_start|>" in info.chat_template
    assert info.metadata["tokenizer.ggml.tokens"] == gguf.Skipped("str", 49_152)


@pytest.mark.model
def test_the_table_of_types_is_llama_cpps_own() -> None:
    import llama_cpp

    library = next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.*"))
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_type_name.restype = ctypes.c_char_p
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_size.restype = ctypes.c_size_t
    for number, (name, block, block_bytes) in ELEMENT_TYPES.items():
        assert ggml.ggml_type_name(number).decode() == name
        assert (ggml.ggml_blck_size(number), ggml.ggml_type_size(number)) == (block, block_bytes)


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        *(("qwen2", "qwen"), ("qwen3moe", "qwen"), ("llama", "llama"), ("gemma3", "gemma"), ("gpt-oss", "gpt-oss")),
        *(("command-r", "command-r"), ("phi3", "phi"), ("nomic-bert", "nomic-bert"), ("glm4moe", "glm")),
    ],
)
def test_family(tmp_path: Path, architecture: str, family: str) -> None:
    content = model(**{"general.architecture": architecture})
    assert gguf.read(write(tmp_path / "m.gguf", content)).family == family


@pytest.mark.parametrize(
    ("count", "words"),
    [(134_515_008, "135M"), (7_615_616_512, "7.6B"), (8_000_000_000, "8B"), (671_000_000_000, "671B"), (999, "999")],
)
def test_parameter_counts_in_words(count: int, words: str) -> None:
    assert format_count(count) == words


def test_numbers_come_from_the_tensors_where_labels_are_missing(tmp_path: Path) -> None:
    head = header({"general.architecture": "x"}, [("a", (256, 1000), 12, 0), ("b", (100,), 0, 144_000)])
    info = gguf.read(write(tmp_path / "m.gguf", head + bytes(144_000 + 400)))
    assert (info.n_params, info.parameter_size, info.quantization, info.quant_bits) == (256_100, "256K", "q4_k", 4)


def test_values_of_every_type(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "text": "ä😀",
        "yes": True,
        "no": False,
        "n": 7,
        "x": 0.5,
        "list": [1, 2],
        "words": ["a", "b"],
    }
    numbers = {"u8": (0, "<B", 200), "i8": (1, "<b", -3), "u16": (2, "<H", 60_000), "i16": (3, "<h", -5)}
    numbers |= {"i32": (5, "<i", -7), "u64": (10, "<Q", 1 << 60), "i64": (11, "<q", -9), "f64": (12, "<d", 0.25)}
    keys = b"".join(text(k) + value(v) for k, v in given.items())
    keys += b"".join(text(k) + struct.pack("<I", t) + struct.pack(f, v) for k, (t, f, v) in numbers.items())
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, len(given) + len(numbers)) + keys
    info = gguf.read(write(tmp_path / "m.gguf", content + bytes(64)))
    assert info.metadata == given | {k: v for k, (_, _, v) in numbers.items()}


def test_long_arrays_are_skipped_unless_asked_for(tmp_path: Path) -> None:
    words = [f"token {i}" * (i % 50) for i in range(5000)]
    path = write(tmp_path / "m.gguf", model(words=words, numbers=list(range(5000))))
    metadata = gguf.read(path).metadata
    assert metadata["words"] == gguf.Skipped("str", 5000) and metadata["numbers"] == gguf.Skipped("I", 5000)
    assert metadata["general.name"] == "test 0"
    whole = gguf.read(path, max_array=5000).metadata
    assert whole["words"] == words and whole["numbers"] == list(range(5000))


def test_strings_longer_than_the_window_are_stepped_over(tmp_path: Path) -> None:
    words = ["x" * (3 << 20), "", "y" * (1 << 20), *["z"] * 2000]
    info = gguf.read(write(tmp_path / "m.gguf", model(words=words, after="still right")))
    assert info.metadata["after"] == "still right" and len(info.tensors) == 1


def test_split_models(tmp_path: Path) -> None:
    parts = shards(3)
    for number, content in enumerate(parts, 1):
        write(tmp_path / f"m-{number:05d}-of-00003.gguf", content)
    info = gguf.read(tmp_path / "m-00001-of-00003.gguf")
    assert [t.name for t in info.tensors] == ["t0", "t1", "t2"]
    assert info.size_bytes == sum(map(len, parts)) and len(info.shards) == 3
    with pytest.raises(InvalidModelError, match="name the first file"):
        gguf.read(tmp_path / "m-00002-of-00003.gguf")
    (tmp_path / "m-00002-of-00003.gguf").write_bytes(parts[2])
    with pytest.raises(InvalidModelError, match="not part 2 of 3"):
        gguf.read(tmp_path / "m-00001-of-00003.gguf")
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(InvalidModelError, match="no such file"):
        gguf.read_file(tmp_path / "m-00003-of-00003.gguf")


def test_a_part_alone_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="split into 3 files, 1 are given"):
        gguf.read(write(tmp_path / "alone.gguf", shards(3)[0]))


GOOD = model(64)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "too short"),
        (b"<!DOCTYPE html>" * 10, "not a GGUF file"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(40), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(40), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62), "bytes for a metadata key"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 99), "unsupported type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "unsupported type 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 99, 0), "unsupported type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("") + struct.pack("<II", 4, 0), "key has no name"),
        *(
            (
                b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("general.alignment") + struct.pack("<IQ", kind, 32),
                "32-bit",
            )
            for kind in (0, 5, 10)
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 61), "the file has"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 61), "strings"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IQ", 8, 1 << 40), "bytes for the value"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (text("k") + value(1)), "occurs twice"),
        (header({"general.alignment": 24}, []), "power of two"),
        (header({"general.alignment": 0}, []), "power of two"),
        (header({}, [("t", (8,), 5, 0)]), "unknown type 5"),
        (header({}, [("t", (33,), 2, 0)]) + bytes(64), "multiples of 32"),
        (header({}, [("t", (1 << 40, 1 << 40), 0, 0)]), "claims"),
        (header({}, [("t", (8,), 0, 64)]) + bytes(256), "expected 0"),
        (header({}, [("t", (8,), 0, 0), ("t", (8,), 0, 32)]) + bytes(64), "occurs twice"),
        (header({}, [("t" * 64, (8,), 0, 0)]) + bytes(64), "tensor name"),
        (GOOD[:-1], "truncated"),
    ],
)
def test_bad_files_are_refused_with_the_cause(tmp_path: Path, content: bytes, cause: str) -> None:
    began = time.process_time()
    assert cause in refused(tmp_path, content + bytes(max(0, 24 - len(content)) if content else 0))
    assert time.process_time() - began < 1.0


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    for length in range(0, len(GOOD), 7):
        refused(tmp_path, GOOD[:length])


@pytest.mark.parametrize(("path", "cause"), [("/dev/zero", "regular"), ("/nonexistent", "no such"), ("a\0b", "name")])
def test_what_is_no_file(path: str, cause: str) -> None:
    with pytest.raises(InvalidModelError, match=cause):
        gguf.read(path)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(InvalidModelError, match="not a regular file"):
        gguf.read(tmp_path / "pipe.gguf")


def test_a_vocabulary_of_262144_takes_milliseconds(tmp_path: Path) -> None:
    path = write(tmp_path / "big.gguf", model(**{"tokenizer.ggml.tokens": [f"t{i}" for i in range(262_144)]}))
    times = []
    for _ in range(5):
        began = time.process_time()
        assert gguf.read(path).vocab_size == 262_144
        times.append(time.process_time() - began)
    assert min(times) < 0.5  # 0.03 s on a calm machine, see benchmarks/results/registry.md
