"""The yardstick: the shortest loop over the same llama.cpp binding, with no server, no cache and no Python between
steps. A program of its own, so that its threads and memory disturb nobody: prints one JSON object.

    python -m benchmarks.bare --model FILE --sequences 4 --tokens 128
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import time

import llama_cpp.llama_cpp as llama
import numpy as np


class Loop:
    """One model, one context, ``n_sequences`` greedy sequences decoded together. Owns both; the process frees them."""

    def __init__(self, path: str, n_sequences: int, n_ctx: int, n_batch: int, n_threads: int) -> None:
        llama.llama_backend_init()
        self._quiet = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self.model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        params = llama.llama_context_default_params()
        params.n_ctx = n_ctx * n_sequences
        params.n_batch = params.n_ubatch = n_batch
        params.n_seq_max = n_sequences
        params.n_threads = params.n_threads_batch = n_threads
        params.kv_unified = True
        self.context = llama.llama_init_from_model(self.model, params)
        self.n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.n_batch = n_batch
        self.batch = llama.llama_batch_init(n_batch, 0, 1)

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """One step over (token, position, sequence, wants logits)."""
        self.batch.n_tokens = len(rows)
        for index, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[index] = token
            self.batch.pos[index] = position
            self.batch.n_seq_id[index] = 1
            self.batch.seq_id[index][0] = sequence
            self.batch.logits[index] = wanted
        if llama.llama_decode(self.context, self.batch):
            raise RuntimeError("llama_decode failed")

    def best(self, index: int) -> int:
        logits = llama.llama_get_logits_ith(self.context, index)
        return int(np.ctypeslib.as_array(logits, (self.n_vocab,)).argmax())

    def prefill(self, tokens: list[int], sequence: int) -> int:
        """Read a prompt; its first answer token."""
        for start in range(0, len(tokens), self.n_batch):
            part = tokens[start : start + self.n_batch]
            last = len(tokens) - 1
            self.decode([(token, start + i, sequence, start + i == last) for i, token in enumerate(part)])
        return self.best(len(part) - 1)

    def clear(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)


def measure_decode(loop: Loop, n_sequences: int, n_prompt: int, n_tokens: int) -> float:
    """Tokens a second over all sequences once every prompt has been read."""
    loop.clear()
    current = [loop.prefill(tokens(loop.n_vocab, n_prompt, seed), seed) for seed in range(n_sequences)]
    began = time.perf_counter()
    for step in range(n_tokens):
        loop.decode([(token, n_prompt + step, sequence, True) for sequence, token in enumerate(current)])
        current = [loop.best(index) for index in range(n_sequences)]
    return n_sequences * n_tokens / (time.perf_counter() - began)


def measure_prefill(loop: Loop, n_prompt: int, seed: int) -> float:
    """Prompt tokens a second until the first answer token."""
    loop.clear()
    prompt = tokens(loop.n_vocab, n_prompt, seed)
    began = time.perf_counter()
    loop.prefill(prompt, 0)
    return n_prompt / (time.perf_counter() - began)


def tokens(n_vocab: int, count: int, seed: int) -> list[int]:
    chosen = random.Random(seed)
    return [chosen.randrange(n_vocab // 10, n_vocab * 9 // 10) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=0, help="measure decoding so many tokens a sequence")
    parser.add_argument("--prefill", type=int, default=0, help="measure reading a prompt of so many tokens")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    n_ctx = max(options.prompt + options.tokens, options.prefill) + 64
    loop = Loop(options.model, options.sequences, n_ctx, options.batch, options.threads)
    measure_prefill(loop, 64, seed=99)  # the first step pages the weights in
    result = {}
    if options.tokens:
        result["decode"] = measure_decode(loop, options.sequences, options.prompt, options.tokens)
    if options.prefill:
        result["prefill"] = measure_prefill(loop, options.prefill, seed=7)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
