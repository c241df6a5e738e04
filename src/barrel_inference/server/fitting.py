"""What Ollama does with too little context: a prompt that does not fit loses its middle, and an answer that fills the
context goes on in it. Both are counted, so that the answer can say it."""

from __future__ import annotations

from barrel_inference.server.models.parameters import Parameters, translate
from barrel_inference.server.models.pool import Lease

NUM_KEEP = 4  # Ollama's default: tokens of the beginning that stay
MAX_CONTEXTS = 10  # an answer that nothing else ends is at most so many contexts long, as Ollama's
Prompt = str | tuple[int, ...]


def num_keep(lease: Lease, found: Parameters) -> int:
    """Of the request, else of the model; -1: all of the prompt, if that is possible."""
    own = translate(lease.entry.parameters).num_keep
    return max(-1, next((given for given in (found.num_keep, own) if given is not None), NUM_KEEP))


def endless(wish: Parameters, n_ctx: int, keep: int) -> Parameters:
    """Going on in a full context, without the older half of what follows the first ``keep`` tokens."""
    return wish._replace(request={**wish.request, "shift_keep": keep, "max_tokens": MAX_CONTEXTS * n_ctx})


async def fitted(lease: Lease, prompt: Prompt, keep: int, max_tokens: int | None) -> tuple[Prompt, int]:
    """The prompt with its middle left out as far as needed, and how many tokens that are."""
    if isinstance(prompt, str) and len(prompt.encode(errors="replace")) < lease.n_ctx // 2:
        return prompt, 0  # a token has at least one byte
    tokens = tuple(await lease.model.tokenize(prompt)) if isinstance(prompt, str) else prompt
    if len(tokens) < lease.n_ctx:
        return prompt, 0
    shorter = shortened(tokens, lease.n_ctx, keep, max_tokens)
    return shorter, len(tokens) - len(shorter)


def shortened(tokens: tuple[int, ...], n_ctx: int, keep: int, max_tokens: int | None) -> tuple[int, ...]:
    """The first ``keep`` tokens (all that fit with -1) and the last ones. A quarter of the context, or what the answer
    may take if that is less, is left for the answer."""
    quarter = n_ctx // 4
    room = max(1, n_ctx - 1 - (quarter if max_tokens is None else min(quarter, max_tokens)))
    head = min(keep if keep >= 0 else room, room // 2)
    return tokens[:head] + tokens[len(tokens) - (room - head) :]
