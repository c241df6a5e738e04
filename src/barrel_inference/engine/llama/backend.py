"""The real Backend. Every call that llama.cpp answers with an abort or with silent nonsense is checked here first.

Owner of model, context, batch and samplers' candidate array: the engine thread. The vocabulary methods only read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from barrel_inference.config import LoadOptions, ModelOpts
from barrel_inference.engine.backend import DecodeStatus, Sampler, Slice, WeightsInMemory, check_batch, check_seq
from barrel_inference.engine.llama.batch import Batch
from barrel_inference.engine.llama.binding import address_of_logits, float_view, lib, log_tail
from barrel_inference.engine.llama.context import open_context
from barrel_inference.engine.llama.embedding import embed
from barrel_inference.engine.llama.facts import read_info
from barrel_inference.engine.llama.sampling import Candidates, DrySamplers, LlamaSampler
from barrel_inference.engine.llama.vocabulary import Vocabulary
from barrel_inference.engine.llama.watchdog import Watchdog
from barrel_inference.engine.llama.weights import Weights
from barrel_inference.engine.residency import Residency, resolved
from barrel_inference.errors import ConfigError, DecodeError, InvalidModelError, NoWeightsError
from barrel_inference.registry.gguf import shard_paths
from barrel_inference.types import Sampling

_STATUS = {0: DecodeStatus.OK, 1: DecodeStatus.NO_ROOM, 2: DecodeStatus.ABORTED}


class LlamaBackend:
    """Loads in the constructor: InvalidModelError, LoadError or ConfigError."""

    def __init__(self, options: LoadOptions, on_progress: Callable[[float], None] = lambda fraction: None) -> None:
        self._options = options
        model_opts = resolved(options.model_opts)
        self._residency = _residency(options, model_opts)
        self._residency.advise()
        self._weights = Weights(options, model_opts, on_progress)
        self._vocabulary = Vocabulary(self._weights.vocab)
        self._dry = DrySamplers(self._weights.vocab)
        self._watchdog = Watchdog()
        self._context: Any = None
        self._memory: Any = None
        self._rows: list[int] = []
        self._views: dict[int, NDArray[np.float32]] = {}  # of logits, which lie where they lay in the last step
        self.scratch = options.context_opts.n_seq_max
        if options.model_opts.vocab_only:
            self.info = read_info(self._weights, options, context=None, flash_attn=False)
            return
        try:
            flash_attn = self._open()
        except BaseException:
            self._weights.close()
            raise
        self.info = read_info(self._weights, options, context=self._context, flash_attn=flash_attn)
        self._batch = Batch(self.info.n_batch)
        self._candidates = Candidates(self.info.n_vocab)
        if model_opts.prefetch:
            self._warm_up()

    def _open(self) -> bool:
        self._context, flash_attn = open_context(self._weights, self._options.context_opts)
        self._memory = lib.llama_get_memory(self._context)
        self._watchdog.attach(self._context)
        return flash_attn

    def _warm_up(self) -> None:
        """What the first request would otherwise pay for: the first decode allocates and reads all weights."""
        _ = self._vocabulary.eog_tokens
        if self.info.has_memory and not self.info.embeddings:
            self.decode([Slice(self.scratch, 0, (0,), want_logits=True)], None)
            self.seq_remove(self.scratch, -1, -1)

    # ---- vocabulary

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)

    def piece(self, token: int, *, special: bool) -> bytes:
        return self._vocabulary.piece(token, special=special)

    def is_eog(self, token: int) -> bool:
        return self._vocabulary.is_eog(token)

    def is_control(self, token: int) -> bool:
        return self._vocabulary.is_control(token)

    # ---- decoding

    def decode(self, slices: list[Slice], budget_s: float | None) -> DecodeStatus:
        self._check(slices)
        self._rows = self._batch.fill(slices)
        self._watchdog.arm(budget_s)
        log_tail.clear()
        code = lib.llama_decode(self._context, self._batch.struct)
        self._watchdog.disarm()
        return _STATUS.get(code, DecodeStatus.FAILED)

    def _check(self, slices: list[Slice]) -> None:
        """What llama.cpp would answer with an abort, or with a KV that is silently wrong."""
        if self._context is None:
            raise NoWeightsError("this model was loaded with vocab_only")
        check_batch(slices, self.info)
        for piece in slices:
            self._check_start(piece.seq, piece.start)

    def _check_start(self, seq: int, start: int) -> None:
        held = self._last_position(seq)
        if held + 1 != start:
            # An empty sequence would accept any start, and attend to nothing before it.
            raise DecodeError(f"sequence {seq} ends at {held}, the batch starts at {start}")
        n_swa = self.info.n_swa
        if not n_swa or self.info.is_hybrid:  # a hybrid's bounds are those of its recurrent state
            return
        needed = window_start(start, n_swa, self.info.architecture)
        if int(lib.llama_memory_seq_pos_min(self._memory, seq)) > needed:
            raise DecodeError(f"sequence {seq} has lost the window before position {start}")

    def _last_position(self, seq: int) -> int:
        return int(lib.llama_memory_seq_pos_max(self._memory, seq)) if self._memory else -1

    def logits(self, index: int) -> NDArray[np.float32]:
        address = address_of_logits(self._context, self._rows[index])
        if address is None:
            raise DecodeError(f"slice {index} of the last batch asked for no logits")
        view = self._views.get(address)
        if view is None:
            view = self._views[address] = float_view(address, self.info.n_vocab)
        return view

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        return LlamaSampler(sampling, seed, self._vocabulary, self._candidates, n_ctx=self.info.n_ctx, dry=self._dry)

    def embed(self, inputs: list[list[int]]) -> list[NDArray[np.float32]]:
        if self._context is None:
            raise NoWeightsError("this model was loaded with vocab_only")
        self._watchdog.arm(None)  # an aborted decode must not end this too
        return embed(self._context, self._memory, self._batch, self.info, inputs, scratch=self.scratch)

    def rebuild(self) -> None:
        self._views.clear()
        lib.llama_free(self._context)
        self._context = None
        self._open()

    # ---- memory

    def seq_copy(self, src: int, dst: int, start: int, stop: int) -> None:
        check_seq(src, self.info)
        check_seq(dst, self.info)
        if self._memory and src != dst:
            lib.llama_memory_seq_cp(self._memory, src, dst, start, stop)

    def seq_remove(self, seq: int, start: int, stop: int) -> bool:
        check_seq(seq, self.info)
        if not self._memory:
            return True
        is_removed = bool(lib.llama_memory_seq_rm(self._memory, seq, start, stop))
        if seq != self.scratch and self._last_position(seq) < 0:
            self._begin_anew()
        return is_removed

    def _begin_anew(self) -> None:
        """Once nothing is held, the next sequence gets the cells that the first one got: attention sums in their order,
        and llama.cpp would go on behind the ones used last."""
        if all(self._last_position(seq) < 0 for seq in range(self.scratch + 1)):
            lib.llama_memory_clear(self._memory, False)

    def seq_bounds(self, seq: int) -> tuple[int, int]:
        check_seq(seq, self.info)
        if not self._memory:
            return (-1, -1)
        return int(lib.llama_memory_seq_pos_min(self._memory, seq)), self._last_position(seq)

    def state_size(self, seq: int) -> int:
        check_seq(seq, self.info)
        return int(lib.llama_state_seq_get_size(self._context, seq))

    def state_read(self, seq: int, into: memoryview) -> int:
        check_seq(seq, self.info)
        return int(lib.llama_state_seq_get_data(self._context, _bytes_of(into), len(into), seq))

    def state_write(self, seq: int, blob: memoryview) -> bool:
        check_seq(seq, self.info)
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)  # an empty blob succeeds without clearing
        if not len(blob):
            return False
        consumed = lib.llama_state_seq_set_data(self._context, _bytes_of(blob), len(blob), seq)
        if consumed == len(blob):
            return True
        # A failure in a later section leaves cells of earlier ones behind, with unwritten data.
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        return False

    # ---- weights

    def pin_touched_weights(self) -> None:
        self._residency.pin_resident()

    def weights_in_memory(self) -> WeightsInMemory:
        return self._residency.measure()

    def close(self) -> None:
        self._watchdog.close()
        self._residency.close()
        self._dry.close()
        if self._context is not None:
            lib.llama_free(self._context)
            self._context = None
        self._weights.close()


def window_start(position: int, n_swa: int, architecture: str) -> int:
    """The first position that the token at ``position`` attends to; llama4's windows do not slide, but lie side by side
    (and llama.cpp's states leave out what is before the last one)."""
    return position // n_swa * n_swa if architecture == "llama4" else max(0, position - n_swa + 1)


def _residency(options: LoadOptions, model_opts: ModelOpts) -> Residency:
    if options.model_path is None:
        raise ConfigError("model_path is required for the llama backend", option="model_path")
    try:
        return Residency(shard_paths(Path(options.model_path)), model_opts)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise InvalidModelError(f"the model file cannot be read: {error}") from error


def _bytes_of(view: memoryview) -> Any:
    """A ctypes pointer into ``view``, which may be read-only."""
    array = np.frombuffer(view, np.uint8)
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
