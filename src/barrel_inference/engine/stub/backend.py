"""A backend without weights, for tests and demos: the next token is a hash of all KV rows held; wrong KV is wrong text.

It keeps llama.cpp's rules (positions, batches, ranges) and its state format, with two layers of 16-byte rows. Faults
and delays come from LoadOptions.stub; see ``Faults``. Owned by the engine thread; the vocabulary is constant.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from barrel_inference.config import LoadOptions
from barrel_inference.engine.backend import BackendInfo, DecodeStatus, Sampler, Slice, WeightsInMemory, check_batch
from barrel_inference.engine.stub.vocabulary import N_VOCAB, StubVocabulary
from barrel_inference.errors import ConfigError, ContextExceededError, DecodeError, LoadError, NoWeightsError
from barrel_inference.types import Sampling

MAGIC = 0xAF143CD8
N_LAYER = 2
ROW_BYTES = 16
N_EMBD = 32
_MASK = (1 << 64) - 1
_FOLD = 0x9E3779B97F4A7C15
_CELL = np.dtype([("pos", "<i4"), ("n_seq", "<u4"), ("seq", "<i4")])


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong, and how slow everything is."""

    model: str = ""  # another model: other tokens, another fingerprint
    fail_load: str = ""  # the load is refused with this message
    load_s: float = 0.0
    delay_ms: float = 0.0  # of each decode
    token_delay_ms: float = 0.0  # of each token in a decode
    crash_at_token: int = 0  # the process ends when it has decoded so many tokens
    fail_at_step: dict[str, Literal["no_room", "aborted", "failed"]] = {}  # by the number of the decode, from 1
    poison: int = -1  # a batch with this token fails
    lethal: int = -1  # a batch with this token ends the process
    endless: int = -1  # a batch with this token never returns
    eog_every: int = 0  # about one token in so many ends the answer; 0 = never


class StubBackend:
    def __init__(self, options: LoadOptions, on_progress: Callable[[float], None] = lambda fraction: None) -> None:
        try:
            self._faults = msgspec.convert(options.stub, Faults)
        except msgspec.ValidationError as error:
            raise ConfigError(f"stub: {error}", option="stub", value=options.stub) from error
        if self._faults.fail_load:
            raise LoadError(self._faults.fail_load)
        for quarter in range(1, 5):
            time.sleep(self._faults.load_s / 4)
            on_progress(quarter / 4)
        self._vocabulary = StubVocabulary()
        self.info = _info(options)
        self.scratch = self.info.n_seq_max
        self._salt = sum(ord(letter) * 31**index for index, letter in enumerate(self._faults.model)) & _MASK
        self._held: dict[int, _Rows] = {}
        self._logits: list[NDArray[np.float32] | None] = []
        self._candidates: Any = None
        self._steps = 0
        self._decoded = 0
        self.rebuild()

    # ---- vocabulary

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)

    def piece(self, token: int, *, special: bool) -> bytes:
        return self._vocabulary.piece(token, special=special)

    def is_eog(self, token: int) -> bool:
        return token in self._vocabulary.eog_tokens

    def is_control(self, token: int) -> bool:
        return self._vocabulary.is_control(token)

    # ---- decoding

    def decode(self, slices: list[Slice], budget_s: float | None) -> DecodeStatus:
        n_tokens = sum(len(piece.tokens) for piece in slices)
        self._check(slices)
        self._steps += 1
        delay_s = (self._faults.delay_ms + n_tokens * self._faults.token_delay_ms) / 1000
        if delay_s:
            time.sleep(delay_s if budget_s is None else min(delay_s, budget_s))
        if budget_s is not None and delay_s > budget_s:
            return DecodeStatus.ABORTED
        if (fault := self._faults.fail_at_step.get(str(self._steps))) is not None:
            return DecodeStatus(fault)
        if any(self._faults.lethal in piece.tokens for piece in slices):
            os.abort()
        while any(self._faults.endless in piece.tokens for piece in slices):
            time.sleep(1)
        if any(self._faults.poison in piece.tokens for piece in slices):
            return DecodeStatus.FAILED
        self._decoded += n_tokens
        if 0 < self._faults.crash_at_token <= self._decoded:
            os.abort()
        self._logits = [self._extend(piece) for piece in slices]
        return DecodeStatus.OK

    def _check(self, slices: list[Slice]) -> None:
        if self.info.vocab_only:
            raise NoWeightsError("this model was loaded with vocab_only")
        check_batch(slices, self.info)
        for piece in slices:
            if self._held[piece.seq].end != piece.start:
                raise DecodeError(f"sequence {piece.seq} ends at {self._held[piece.seq].end}, not {piece.start}")

    def _extend(self, piece: Slice) -> NDArray[np.float32] | None:
        rows = self._held[piece.seq]
        for offset, token in enumerate(piece.tokens):
            rows.append(_mix(token * 0x100000001B3 + (piece.start + offset) + self._salt))
        return self._predict(rows, piece.tokens[-1]) if piece.want_logits else None

    def _predict(self, rows: _Rows, last: int) -> NDArray[np.float32]:
        fold = rows.fold()
        logits = np.zeros(N_VOCAB, np.float32)
        every = self._faults.eog_every
        if every and fold % every == 0:
            logits[self._vocabulary.eos] = 20.0
        for rank in range(8):
            logits[self._vocabulary.follower(last, _mix(fold + rank))] += 10.0 - rank
        return logits

    def logits(self, index: int) -> NDArray[np.float32]:
        found = self._logits[index]
        if found is None:
            raise DecodeError(f"slice {index} of the last batch asked for no logits")
        return found

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        # The binding takes half a second to import, and most workers of the stub never sample.
        from barrel_inference.engine.llama.sampling import Candidates, LlamaSampler

        if self._candidates is None:
            self._candidates = Candidates(N_VOCAB)
        return LlamaSampler(sampling, seed, self._vocabulary, self._candidates, n_ctx=self.info.n_ctx)

    def embed(self, inputs: list[list[int]]) -> list[NDArray[np.float32]]:
        for tokens in inputs:
            if not 0 < len(tokens) <= self.info.n_ubatch:
                raise ContextExceededError(
                    f"an input of {len(tokens)} tokens; 1 to {self.info.n_ubatch} are possible",
                    n_prompt_tokens=len(tokens),
                    n_ctx=self.info.n_ubatch,
                )
        return [self._embed(tokens) for tokens in inputs]

    def _embed(self, tokens: list[int]) -> NDArray[np.float32]:
        vector = np.zeros(N_EMBD, np.float32)
        for token in tokens:
            vector[_mix(token + self._salt) % N_EMBD] += 1.0
        return vector / np.float32(np.linalg.norm(vector))

    def rebuild(self) -> None:
        self._held = {seq: _Rows(0, []) for seq in range(self.scratch + 1)}

    # ---- memory

    def seq_copy(self, src: int, dst: int, start: int, stop: int) -> None:
        source, target = self._held[src], self._held[dst]
        part = source.part(start, source.end if stop < 0 else stop)
        if target.rows and target.end != part.start:
            raise DecodeError(f"sequence {dst} ends at {target.end}, the copy starts at {part.start}")
        self._held[dst] = part if not target.rows else _Rows(target.start, target.rows + part.rows)

    def seq_remove(self, seq: int, start: int, stop: int) -> bool:
        rows = self._held[seq]
        first, last = max(start, rows.start), rows.end if stop < 0 else min(stop, rows.end)
        if last >= rows.end:
            self._held[seq] = rows.part(rows.start, first)
        elif first <= rows.start:
            self._held[seq] = rows.part(last, rows.end)
        else:
            return False  # no hole: nobody needs one
        return True

    def seq_bounds(self, seq: int) -> tuple[int, int]:
        rows = self._held[seq]
        return (rows.start, rows.end - 1) if rows.rows else (-1, -1)

    def state_size(self, seq: int) -> int:
        return len(_blob(self._held[seq], seq))

    def state_read(self, seq: int, into: memoryview) -> int:
        blob = _blob(self._held[seq], seq)
        into[: len(blob)] = blob
        return len(blob)

    def state_write(self, seq: int, blob: memoryview) -> bool:
        rows = _parse(bytes(blob))
        self._held[seq] = rows or _Rows(0, [])
        return rows is not None

    def pin_touched_weights(self) -> None:
        pass

    def weights_in_memory(self) -> WeightsInMemory:
        return WeightsInMemory(0, ())

    def close(self) -> None:
        self._held = {}


class _Rows:
    """The KV of one sequence: one 64-bit row a position, from ``start`` on, and their running folds."""

    def __init__(self, start: int, rows: list[int]) -> None:
        self.start = start
        self.rows = rows
        self._folds: list[int] = []

    @property
    def end(self) -> int:
        return self.start + len(self.rows)

    def append(self, row: int) -> None:
        self.rows.append(row)

    def part(self, start: int, stop: int) -> _Rows:
        start = max(start, self.start)
        return _Rows(start, self.rows[start - self.start : max(stop - self.start, 0)])

    def fold(self) -> int:
        """Of all rows in order; what attention over them comes to here."""
        fold = self._folds[-1] if self._folds else self.start
        for row in self.rows[len(self._folds) :]:
            fold = _mix(fold * _FOLD + row)
            self._folds.append(fold)
        return fold


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _blob(rows: _Rows, seq: int) -> bytes:
    """llama.cpp's sequence state with flash attention on: all K layers, then all V layers, rows in cell order."""
    cells = np.zeros(len(rows.rows), _CELL)
    cells["pos"] = np.arange(rows.start, rows.end)
    cells["n_seq"], cells["seq"] = 1, seq
    head = struct.pack("<IiII", MAGIC, seq, 1, len(cells)) + cells.tobytes()
    if not rows.rows:
        return head
    values = np.array(rows.rows, np.uint64)
    tensors = [np.stack([values ^ np.uint64(layer), ~values], axis=1).tobytes() for layer in range(2 * N_LAYER)]
    layers = [struct.pack("<iQ", 0, ROW_BYTES) + tensor for tensor in tensors]
    return head + struct.pack("<II", 0, N_LAYER) + b"".join(layers)


def _parse(blob: bytes) -> _Rows | None:
    """The inverse of ``_blob``. None unless these rows make exactly this blob again."""
    try:
        _magic, seq, _streams, count = struct.unpack_from("<IiII", blob)
        rows = _read_rows(blob, count) if count else _Rows(0, [])
    except (struct.error, ValueError):
        return None
    return rows if _blob(rows, seq) == blob else None


def _read_rows(blob: bytes, count: int) -> _Rows:
    """From the first layer's K."""
    cells = np.frombuffer(blob, _CELL, count, 16)
    values = np.frombuffer(blob, np.uint64, 2 * count, 16 + cells.nbytes + 8 + 12)
    return _Rows(int(cells["pos"][0]), values[::2].tolist())


def _info(options: LoadOptions) -> BackendInfo:
    opts = options.context_opts
    n_batch = min(opts.n_batch, opts.n_ctx)
    return BackendInfo(
        architecture="stub",
        description="stub: deterministic words",
        n_ctx=opts.n_ctx,
        n_ctx_train=1 << 20,
        n_batch=n_batch,
        n_ubatch=min(opts.n_ubatch or n_batch, n_batch),
        n_seq_max=opts.n_seq_max,
        n_vocab=N_VOCAB,
        n_embd=N_EMBD,
        n_layer=N_LAYER,
        n_params=0,
        size_bytes=0,
        vocab_only=options.model_opts.vocab_only,
        embeddings=opts.embeddings,
        flash_attn=True,
        type_k=opts.type_k,
        type_v=opts.type_v,
        rope=f"{opts.rope_freq_base} {opts.rope_freq_scale} {opts.rope_scaling} {opts.yarn_orig_ctx}",
        quant_type=options.quant_type or "none",
        quant_bits=options.quant_bits or 0.0,
        bos_token="<s>",
        eos_token="</s>",
        chat_template=CHAT_TEMPLATE,
        build="stub 1",
    )


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
