"""GGUF files that llama.cpp does not write itself: a tiny BERT, LoRA adapters for the tiny llama. Random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.support.gguf_file import I32, U16, Value, write_gguf
from tests.support.tiny_models import N_EMBD, N_LAYER, N_VOCAB

BERT_EMBD = 64
BERT_CTX = 512
Tensor = NDArray[np.float32]


def tiny_bert(path: Path) -> Path:
    """An encoder without a KV cache, mean pooling; the vocabulary is the tiny models'."""
    return write_gguf(path, _bert_metadata(), _bert_tensors())


def split_bert(folder: Path) -> list[Path]:
    """The same model in three files."""
    tensors = _bert_tensors()
    names = list(tensors)
    parts = [names[:5], names[5:20], names[20:]]
    split: dict[str, Value] = {"split.count": U16(3), "split.tensors.count": I32(len(names))}
    paths = []
    for number, part in enumerate(parts):
        metadata = {**(_bert_metadata() if number == 0 else {}), "split.no": U16(number), **split}
        path = folder / f"bert-{number + 1:05}-of-00003.gguf"
        paths.append(write_gguf(path, metadata, {name: tensors[name] for name in part}))
    return paths


def _bert_tensors() -> dict[str, Tensor]:
    n_ff = 2 * BERT_EMBD
    random = np.random.default_rng(1)

    def pair(name: str, n_out: int, n_in: int) -> dict[str, Tensor]:
        return {f"{name}.weight": _normal(random, n_out, n_in), f"{name}.bias": _normal(random, n_out)}

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": 1 + _normal(random, BERT_EMBD), f"{name}.bias": _normal(random, BERT_EMBD)}

    tensors = {
        "token_embd.weight": _normal(random, N_VOCAB, BERT_EMBD),
        "token_types.weight": _normal(random, 2, BERT_EMBD),
        "position_embd.weight": _normal(random, BERT_CTX, BERT_EMBD),
        **norm("token_embd_norm"),
    }
    for layer in range(2):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors |= pair(f"blk.{layer}.{part}", BERT_EMBD, BERT_EMBD)
        tensors |= pair(f"blk.{layer}.ffn_up", n_ff, BERT_EMBD) | pair(f"blk.{layer}.ffn_down", BERT_EMBD, n_ff)
        tensors |= norm(f"blk.{layer}.attn_output_norm") | norm(f"blk.{layer}.layer_output_norm")
    return tensors


def _bert_metadata() -> dict[str, Value]:
    return {
        "general.architecture": "bert",
        "bert.vocab_size": N_VOCAB,
        "bert.context_length": BERT_CTX,
        "bert.embedding_length": BERT_EMBD,
        "bert.block_count": 2,
        "bert.feed_forward_length": 2 * BERT_EMBD,
        "bert.attention.head_count": 2,
        "bert.attention.layer_norm_epsilon": 1e-5,
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.model": "test",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": [f"tok_{token}" for token in range(N_VOCAB)],
        "tokenizer.ggml.scores": [0.0] * N_VOCAB,
    }


def tiny_lora(path: Path, *, n_embd: int = N_EMBD, rank: int = 4) -> Path:
    """An adapter of the query projections; with another ``n_embd`` it fits no tiny model."""
    random = np.random.default_rng(2)
    tensors = {}
    for layer in range(N_LAYER):
        tensors[f"blk.{layer}.attn_q.weight.lora_a"] = _normal(random, rank, n_embd)
        tensors[f"blk.{layer}.attn_q.weight.lora_b"] = _normal(random, n_embd, rank)
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(rank),
    }
    return write_gguf(path, metadata, tensors)


def _normal(random: np.random.Generator, *shape: int) -> Tensor:
    return random.normal(0, 0.2, shape).astype(np.float32)
