"""One llama_batch, allocated once and filled with numpy. Owned by the engine thread."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from barrel_inference.engine.backend import Slice
from barrel_inference.engine.llama.binding import lib


class Batch:
    """``struct`` is what llama_decode takes; its arrays belong to this object."""

    def __init__(self, capacity: int) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._n_seq = np.ones(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._output = np.zeros(capacity, np.int8)
        stride, base = self._seq.itemsize, self._seq.ctypes.data
        self._seq_pointers = np.arange(capacity, dtype=np.uint64) * np.uint64(stride) + np.uint64(base)
        self.struct = lib.llama_batch()
        fields: dict[str, Any] = dict(lib.llama_batch._fields_)
        for name, array in (
            ("token", self._token),
            ("pos", self._pos),
            ("n_seq_id", self._n_seq),
            ("seq_id", self._seq_pointers),
            ("logits", self._output),
        ):
            setattr(self.struct, name, ctypes.cast(array.ctypes.data, fields[name]))

    def fill(self, slices: list[Slice], *, all_outputs: bool = False) -> list[int]:
        """Returns the batch row of each slice's last token."""
        at = 0
        rows = []
        for piece in slices:
            count = len(piece.tokens)
            end = at + count
            self._token[at:end] = piece.tokens
            if count == 1:
                self._pos[at] = piece.start
            else:
                self._pos[at:end] = np.arange(piece.start, piece.start + count, dtype=np.int32)
            self._seq[at:end] = piece.seq
            self._output[at:end] = all_outputs
            if piece.want_logits:
                self._output[end - 1] = 1
            rows.append(end - 1)
            at = end
        self.struct.n_tokens = at
        return rows
