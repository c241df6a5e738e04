"""The seam to llama.cpp: what the engine needs from a loaded model. ``llama`` and ``stub`` implement it; third
parties by entry point.

Ownership: the engine thread alone calls anything but the vocabulary methods, which are pure and safe on any thread.
Sequence ids are 0 … n_seq_max-1 for requests; ``scratch`` is one more, for copying ranges.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from barrel_inference.errors import DecodeError
from barrel_inference.kvcache.policy import solo_chunk
from barrel_inference.types import Sampling

LARGE_MODEL = 500e6  # parameters: on the CPU, a step that reads a prompt takes seconds


class DecodeStatus(enum.Enum):
    OK = "ok"
    NO_ROOM = "no_room"  # nothing was decoded; memory is as before
    ABORTED = "aborted"  # the time budget ran out; sequences of the batch are in an unknown state
    FAILED = "failed"  # the context must be rebuilt


class Slice(msgspec.Struct, frozen=True):
    """Consecutive tokens of one sequence in a batch. ``want_logits``: of its last token."""

    seq: int
    start: int  # position of the first token
    tokens: tuple[int, ...]
    want_logits: bool


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts read from the model and the real context (after llama.cpp's own adjustments)."""

    architecture: str
    description: str
    n_ctx: int  # per sequence
    n_ctx_train: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int  # without scratch
    n_vocab: int
    n_embd: int
    n_layer: int
    n_gpu_layers: int = 0  # really offloaded; the output counts as one more layer
    n_params: int
    size_bytes: int
    n_swa: int = 0  # sliding window in tokens; 0 = none
    is_recurrent: bool = False
    is_hybrid: bool = False
    has_memory: bool = True
    vocab_only: bool = False
    embeddings: bool = False
    flash_attn: bool = False  # resolved
    attends_on_cpu: bool = False  # every cell in use, whoever's, costs each step time
    type_k: str = "f16"
    type_v: str = "f16"
    rope: str = ""  # canonical text of every RoPE/YaRN parameter in force
    quant_type: str = ""
    quant_bits: float = 0.0
    bos_token: str = ""
    eos_token: str = ""
    chat_template: str | None = None
    build: str = ""  # identifies binding, llama.cpp commit and state format
    warnings: tuple[str, ...] = ()

    @property
    def solo_chunk(self) -> int:
        """Tokens of a prompt that a step reads while nothing else runs."""
        is_slow = self.attends_on_cpu and self.n_params >= LARGE_MODEL
        return solo_chunk(self.n_batch, self.n_ubatch, is_slow=is_slow)


class WeightsInMemory(NamedTuple):
    """``resident_bytes`` of the weight files; ``warnings``: what the system would not read ahead or lock."""

    resident_bytes: int
    warnings: tuple[str, ...]


class Sampler(Protocol):
    """The sampler chain of one sequence.

    Position-seeded: the randomness of output token i depends on (seed, i) alone, so that a resumed request continues
    the same
    draw without the logits of what it already emitted. ``stateful`` samplers (mirostat) are the exception and must
    see every token.
    """

    stateful: bool

    def sample(self, logits: NDArray[np.float32], index: int) -> int:
        """Choose output token ``index`` from logits [n_vocab] (already masked), which it may change;
        does not accept it."""

    def accept(self, token: int) -> None:
        """Enter a token (prompt or output) into penalties and DRY history."""

    def close(self) -> None: ...


class Backend(Protocol):
    info: BackendInfo
    scratch: int

    # vocabulary: any thread
    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def piece(self, token: int, *, special: bool) -> bytes: ...
    def is_eog(self, token: int) -> bool: ...
    def is_control(self, token: int) -> bool: ...

    # decoding: engine thread
    def decode(self, slices: list[Slice], budget_s: float | None) -> DecodeStatus:
        """One llama_decode of at most n_batch tokens (checked here: more would abort the process)."""

    def logits(self, index: int) -> NDArray[np.float32]:
        """Writable view [n_vocab] of the last token of ``slices[index]`` of the last decode; valid until the next
        decode."""

    def sampler(self, sampling: Sampling, seed: int) -> Sampler: ...

    def embed(self, inputs: list[list[int]]) -> list[NDArray[np.float32]]:
        """Pooled, L2-normalised [n_embd] per input, batched internally. Each input must fit n_ubatch. KVFullError when
        the sequences leave no room."""

    def rebuild(self) -> None:
        """Replace the context in place after FAILED or ABORTED; all KV is gone, the weights stay."""

    # memory: engine thread
    def seq_copy(self, src: int, dst: int, start: int, stop: int) -> None:
        """Share positions [start, stop) of src into dst (stop -1 = end). No data moves."""

    def seq_remove(self, seq: int, start: int, stop: int) -> bool:
        """Drop positions [start, stop) (stop -1 = end). False when the memory cannot be cut there: then drop it all."""

    def seq_bounds(self, seq: int) -> tuple[int, int]:
        """(smallest, largest) position held, (-1, -1) if empty. With a sliding window the smallest may be > 0."""

    def state_size(self, seq: int) -> int: ...

    def state_read(self, seq: int, into: memoryview) -> int:
        """Copy the sequence's state blob into ``into``; bytes written, 0 on failure."""

    def state_write(self, seq: int, blob: memoryview) -> bool:
        """Load a blob into ``seq``, which is cleared first and left empty on any failure."""

    # weights: engine thread, but for the count
    def pin_touched_weights(self) -> None:
        """After the first request: lock what it touched of the weights, once, if the options ask for it."""

    def weights_in_memory(self) -> WeightsInMemory:
        """Measured at most every few seconds. Any thread."""

    def close(self) -> None: ...


def check_batch(slices: list[Slice], info: BackendInfo) -> None:
    """What holds for the batches of every backend; DecodeError otherwise."""
    n_tokens = sum(len(piece.tokens) for piece in slices)
    if not 0 < n_tokens <= info.n_batch:
        raise DecodeError(f"a batch of {n_tokens} tokens; 1 to {info.n_batch} are possible")
    for piece in slices:
        check_seq(piece.seq, info)
        if not piece.tokens or min(piece.tokens) < 0 or max(piece.tokens) >= info.n_vocab:
            raise DecodeError(f"token ids must be in [0, {info.n_vocab}) and at least one")


def check_seq(seq: int, info: BackendInfo) -> None:
    """A request's sequence or the scratch; DecodeError otherwise."""
    if not 0 <= seq <= info.n_seq_max:
        raise DecodeError(f"sequence id {seq} is outside [0, {info.n_seq_max}]")
