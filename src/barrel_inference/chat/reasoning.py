"""Reasoning: the marks a model puts around it, how a template turns it on and off, whether a prompt opens it. Pure."""

from __future__ import annotations

from typing import Any, Literal

from barrel_inference.chat.output import Thinking
from barrel_inference.chat.tools.learned import whole_marks
from barrel_inference.chat.tools.scan import common_prefix, common_suffix

Think = bool | Literal["minimal", "low", "medium", "high", "max"] | None

KNOWN = (
    Thinking("<think>", "</think>"),
    Thinking("<seed:think>", "</seed:think>"),
    Thinking("<mm:think>", "</mm:think>"),
    Thinking("<think:opensource>", "</think:opensource>"),
    Thinking("<thought>", "</thought>"),
    Thinking("[THINK]", "[/THINK]"),
    Thinking("<|START_THINKING|>", "<|END_THINKING|>"),
    Thinking("<|inner_prefix|>", "<|inner_suffix|>"),
    Thinking("<|channel>thought", "<channel|>"),
    Thinking("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    Thinking("<|think|>", "<|end|>"),
    Thinking("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)
_NOISE = (
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ("<|START_TEXT|>", "<|END_TEXT|>"),
    ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ("<|begin|>assistant", "<|content|>"),
    (">>>all\n",),
    ("<response>", "</response>"),
)

_SWITCHES: dict[str, tuple[Any, Any]] = {  # variable of a template: its values for on and off
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "skip_thinking": (False, True),
    "thinking_mode": ("enabled", "disabled"),
    "thinking_option": ("on", "off"),
}
_LEVELS = ("reasoning_effort", "thinking_effort", "reasoning_strength")


def switches(variables: frozenset[str], think: Think) -> dict[str, Any]:
    """The template keywords that ask for as much thinking as wanted; None asks for nothing in particular."""
    if think is None:
        return {}
    on = think is not False
    found = {name: values[0 if on else 1] for name, values in _SWITCHES.items() if name in variables}
    if isinstance(think, str):
        level = {"minimal": "low", "max": "high"}.get(think, think)
        found |= {name: level for name in _LEVELS if name in variables}
    elif not on:
        found |= {name: "low" for name in _LEVELS if name in variables and not found}
    return found


def known(texts: list[str]) -> Thinking | None:
    """``texts``: what the template rendered, and its own text."""
    for text in texts:
        for thinking in KNOWN:
            if thinking.open in text and thinking.close in text:
                return thinking
    return None


def learn(with_reasoning: str, without: str, reasoning: str, content: str) -> Thinking | None:
    """From the same turn rendered with and without a reasoning: what stands around it."""
    before, found, behind = with_reasoning.partition(reasoning)
    if not found or content not in behind:
        return None
    head = common_prefix(before, without.partition(content)[0])
    opening = whole_marks(before[len(head) :]).strip()
    closing = behind.partition(content)[0]
    closing = closing.removesuffix(common_suffix(closing, without.partition(content)[0])).strip() or closing.strip()
    return Thinking(opening, closing) if opening and closing else None


def noise(source: str) -> tuple[str, ...]:
    """Marks around the content that a template's text shows."""
    found = [marks for marks in _NOISE if all(mark.strip() in source for mark in marks)]
    return tuple(mark for marks in found for mark in marks)


def is_open(tail: str, thinking: Thinking | None) -> bool:
    """Whether a prompt that ends in ``tail`` leaves a thought open."""
    return thinking is not None and tail.rfind(thinking.open) > tail.rfind(thinking.close)


def closed(tail: str, thinking: Thinking) -> str:
    """What to add to a prompt so that the model does not think: an empty thought, or the end of the one begun."""
    if is_open(tail, thinking):
        return f"\n{thinking.close}\n\n"
    return "" if thinking.close in tail else f"{thinking.open}\n\n{thinking.close}\n\n"
