"""What must be equal for two KV states to be interchangeable. Pure but for ``write``.

Not in it: n_ctx, n_batch, n_seq_max, threads, paths. A tenant's salt enters the chain's root, not the namespace.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from barrel_inference.config import BLOCK_TOKENS
from barrel_inference.files import leave_note
from barrel_inference.kvcache.chain import digest
from barrel_inference.kvcache.record import VERSION


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """Every field changes the bytes of a state, or how they are read."""

    fingerprint: str  # SHA-256 of the model's content
    architecture: str
    quant_type: str
    quant_bits: float
    lora: tuple[tuple[str, float], ...] = ()  # sha256, scale
    type_k: str
    type_v: str
    n_layer: int
    layout: str  # sections, row sizes, V transposed or not, as JSON
    n_swa: int
    flash_attn: bool
    rope: str  # type and all RoPE/YaRN parameters in force
    build: str  # of the binding: newer ones change the state format under the same magic
    ctx_params_hash: str = ""
    block_tokens: int = BLOCK_TOKENS
    record_version: int = VERSION

    def digest(self) -> bytes:
        ordered = msgspec.structs.replace(self, lora=tuple(sorted(self.lora)))
        return digest(msgspec.json.encode(ordered, order="sorted"))

    def write(self, folder: Path) -> None:
        """Leave a readable ``ns.json`` beside the blocks."""
        leave_note(folder / "ns.json", msgspec.json.format(msgspec.json.encode(self)))
