"""Making a prompt fit that is longer than the context: what is left out is counted, so that the answer can say it."""

from __future__ import annotations

from barrel_inference.server.models.parameters import Parameters
from barrel_inference.server.models.pool import Lease

NUM_KEEP = 4  # Ollama's default: tokens of the beginning that stay
Prompt = str | tuple[int, ...]


async def fitted(lease: Lease, prompt: Prompt, found: Parameters) -> tuple[Prompt, int]:
    """The prompt with its middle left out as far as needed, and how many tokens that are.

    A quarter of the context, or what the answer may take if that is less, is kept for the answer.
    """
    if isinstance(prompt, str) and len(prompt.encode(errors="replace")) < lease.n_ctx // 2:
        return prompt, 0  # a token has at least one byte
    tokens = tuple(await lease.model.tokenize(prompt)) if isinstance(prompt, str) else prompt
    if len(tokens) < lease.n_ctx:
        return prompt, 0
    shorter = shortened(tokens, lease.n_ctx, found.num_keep, found.request.get("max_tokens"))
    return shorter, len(tokens) - len(shorter)


def shortened(tokens: tuple[int, ...], n_ctx: int, num_keep: int | None, max_tokens: int | None) -> tuple[int, ...]:
    """The first ``num_keep`` tokens (all that fit with -1) and the last ones."""
    quarter = n_ctx // 4
    room = max(1, n_ctx - 1 - (quarter if max_tokens is None else min(quarter, max_tokens)))
    keep = NUM_KEEP if num_keep is None else num_keep if num_keep >= 0 else room // 2
    head = min(keep, room // 2)
    return tokens[:head] + tokens[len(tokens) - (room - head) :]
