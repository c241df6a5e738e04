"""Embeddings: pooled by llama.cpp where the context pools, otherwise the mean of the token vectors. Engine thread."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from barrel_inference.engine.backend import BackendInfo, Slice
from barrel_inference.engine.llama.batch import Batch
from barrel_inference.engine.llama.binding import float_view, lib, log_tail
from barrel_inference.errors import ContextExceededError, DecodeError, KVFullError, UnsupportedError

Vector = NDArray[np.float32]
_POOLING_NONE, _POOLING_RANK = 0, 4
_NO_ROOM = 1


def embed(
    context: Any, memory: Any, batch: Batch, info: BackendInfo, inputs: list[list[int]], *, scratch: int
) -> list[Vector]:
    """One L2-normalised [n_embd] vector per input. ContextExceededError for one that does not fit, KVFullError for one
    that does not fit beside the sequences."""
    pooling = lib.llama_pooling_type(context)
    if pooling == _POOLING_RANK:  # llama.cpp answers with fewer than n_embd floats
        raise UnsupportedError("a context that pools for ranking scores, it does not embed")
    pools = pooling != _POOLING_NONE
    limit = _limit(info, pools)
    for tokens in inputs:
        if not 0 < len(tokens) <= limit:
            raise ContextExceededError(
                f"an input of {len(tokens)} tokens; 1 to {limit} are possible", n_prompt_tokens=len(tokens), n_ctx=limit
            )
    if pools:
        vectors = _pooled(context, memory, batch, info, inputs)
    else:
        vectors = [_mean(context, memory, batch, info, tokens, scratch) for tokens in inputs]
    return [_normalised(vector) for vector in vectors]


def _limit(info: BackendInfo, pools: bool) -> int:
    if (
        not info.has_memory
    ):  # without causality all tokens go at once, and each needs its trained position: or it aborts
        return min(info.n_ubatch, info.n_ctx, info.n_ctx_train)
    return min(info.n_ubatch, info.n_ctx) if pools else info.n_ctx


def _pooled(context: Any, memory: Any, batch: Batch, info: BackendInfo, inputs: list[list[int]]) -> list[Vector]:
    vectors = []
    for group in _groups(inputs, info.n_ubatch, info.n_seq_max):
        slices = [Slice(seq, 0, tuple(tokens), want_logits=True) for seq, tokens in enumerate(group)]
        if memory:
            lib.llama_memory_clear(memory, True)
        batch.fill(slices, all_outputs=True)
        _run(context, memory, batch)
        vectors += [_vector(lib.llama_get_embeddings_seq(context, piece.seq), info.n_embd) for piece in slices]
    if memory:
        lib.llama_memory_clear(memory, True)
    return vectors


def _groups(inputs: list[list[int]], max_tokens: int, max_inputs: int) -> Iterator[list[list[int]]]:
    group: list[list[int]] = []
    for tokens in inputs:
        if group and (len(group) == max_inputs or sum(map(len, group)) + len(tokens) > max_tokens):
            yield group
            group = []
        group.append(tokens)
    if group:
        yield group


def _mean(context: Any, memory: Any, batch: Batch, info: BackendInfo, tokens: list[int], scratch: int) -> Vector:
    """A generating context computes token vectors only while asked to."""
    lib.llama_set_embeddings(context, True)
    total = np.zeros(info.n_embd, np.float32)
    try:
        for start in range(0, len(tokens), info.n_batch):
            piece = Slice(scratch, start, tuple(tokens[start : start + info.n_batch]), want_logits=True)
            batch.fill([piece], all_outputs=True)
            _run(context, memory, batch)
            for row in range(len(piece.tokens)):
                total += _vector(lib.llama_get_embeddings_ith(context, row), info.n_embd)
    finally:
        lib.llama_memory_seq_rm(memory, scratch, -1, -1)
        lib.llama_set_embeddings(context, False)
    return total


def _run(context: Any, memory: Any, batch: Batch) -> None:
    run = lib.llama_decode if memory else lib.llama_encode
    log_tail.clear()
    status = run(context, batch.struct)
    if status == _NO_ROOM:
        raise KVFullError("the KV cache has no room for this input beside what it holds")
    if status != 0:
        raise DecodeError(f"llama.cpp could not embed: {log_tail.reason('no reason given')}")


def _vector(pointer: Any, n_embd: int) -> Vector:
    address = ctypes.cast(pointer, ctypes.c_void_p).value
    if address is None:
        raise DecodeError("llama.cpp gave no embedding: this model or pooling has none")
    return float_view(address, n_embd).copy()


def _normalised(vector: Vector) -> Vector:
    norm = float(np.linalg.norm(vector))
    return vector / np.float32(norm) if norm > 0 else vector
