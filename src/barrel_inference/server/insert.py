"""Filling in the middle: the control tokens a model was taught to do it with, and the prompt made of them."""

from __future__ import annotations

from typing import NamedTuple

from barrel_inference.aio import AsyncModel
from barrel_inference.errors import UnsupportedError


class Markers(NamedTuple):
    prefix: str
    suffix: str
    middle: str


# Of the model families that were trained to do it; a model has at most one of these as control tokens.
KNOWN = (
    Markers("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    Markers("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite, SmolLM
    Markers("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # Refact
    Markers("<|fim▁begin|>", "<|fim▁hole|>", "<|fim▁end|>"),  # DeepSeek
    Markers("<PRE>", "<SUF>", "<MID>"),
    Markers("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    Markers("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)


async def markers(model: AsyncModel) -> Markers | None:
    """None for a model that cannot fill in."""
    for known in KNOWN:
        lengths = [len(await model.tokenize(marker, add_special=False)) for marker in known]
        if lengths == [1, 1, 1]:
            return known
    return None


async def prompt(model: AsyncModel, name: str, before: str, after: str) -> str:
    """The prompt whose continuation stands between ``before`` and ``after``. Raises UnsupportedError."""
    found = await markers(model)
    if found is None:
        raise UnsupportedError(f"{name} does not support insert", capability="insert")
    return f"{found.prefix}{before}{found.suffix}{after}{found.middle}"
