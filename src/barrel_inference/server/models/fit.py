"""Whether a model fits into memory beside those that are loaded, and which ones to give up for it. Pure.

The kernel counts mapped weights as available memory, so what loaded models need is counted here and not asked for.
"""

from __future__ import annotations

from typing import Any

from barrel_inference.memory import SystemMemory

WORKER_BYTES = 150 << 20  # interpreter, llama.cpp, compute buffers
RESERVE = 0.05  # of all memory, for everybody else
TURN_S = 5.0
_BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_0": 4.5}


def kv_bytes_per_token(metadata: dict[str, Any], type_k: str = "f16", type_v: str = "f16") -> int:
    """Of a plain attention cache; less is needed with a sliding window."""
    arch = metadata.get("general.architecture", "")

    def number(key: str, default: int = 0) -> int:
        value = metadata.get(f"{arch}.{key}", default)
        numbers = value if isinstance(value, list) else [value]
        return max((each for each in numbers if isinstance(each, int)), default=default)

    heads = number("attention.head_count", 1) or 1
    kv_heads = number("attention.head_count_kv", heads)
    width = number("embedding_length") // heads
    bits_k = number("attention.key_length", width) * _BITS.get(type_k, 16)
    bits_v = number("attention.value_length", width) * _BITS.get(type_v, 16)
    return int(number("block_count") * kv_heads * (bits_k + bits_v) / 8)


def need(size_bytes: int, kv_bytes: int, n_ctx: int, n_seq: int) -> int:
    """Bytes that a loaded model takes."""
    return size_bytes + kv_bytes * n_ctx * n_seq + WORKER_BYTES


def headroom(memory: SystemMemory, loaded_bytes: int) -> int:
    """Bytes for another model, when those that are loaded need ``loaded_bytes``."""
    return min(memory.available, int(memory.total * (1 - RESERVE)) - loaded_bytes)


def turn_s(load_s: float) -> float:
    """How long a model that was just loaded stays, whoever waits for its room: at least as long as the load took, so
    that no more than half of the time goes into loading."""
    return max(TURN_S, load_s)


def value(load_s: float, idle_s: float) -> float:
    """Of an idle model: the longer since its last request and the quicker to load again, the less worth its memory."""
    return load_s / (1.0 + idle_s)
