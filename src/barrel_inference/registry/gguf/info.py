"""What a GGUF file says about itself, ready for a manifest. Pure values."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from barrel_inference.registry.gguf.reader import MetadataValue, Skipped
from barrel_inference.registry.gguf.tensors import Tensor

# general.file_type as llama.cpp numbers it; gaps are formats that are gone.
_FILE_TYPES = {
    **dict(enumerate(["f32", "f16", "q4_0", "q4_1"])),
    **dict(enumerate(["q8_0", "q5_0", "q5_1", "q2_k", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m"], 7)),
    **dict(enumerate(["q5_k_s", "q5_k_m", "q6_k", "iq2_xxs", "iq2_xs", "q2_k_s", "iq3_xs", "iq3_xxs"], 16)),
    **dict(enumerate(["iq1_s", "iq4_nl", "iq3_s", "iq3_m", "iq2_s", "iq2_m", "iq4_xs", "iq1_m", "bf16"], 24)),
    **dict(enumerate(["tq1_0", "tq2_0", "mxfp4_moe", "nvfp4", "q1_0", "q2_0"], 36)),
}
_GUESSED = 1024  # flag llama-quantize sets when it had to guess the file type


class GgufInfo(NamedTuple):
    """One model, of one file or of all its shards. ``metadata`` is the first file's; numbers cover all of them."""

    path: Path
    shards: tuple[Path, ...]  # every file in order; the one file when it is not split
    version: int
    metadata: dict[str, MetadataValue]
    tensors: tuple[Tensor, ...]
    size_bytes: int  # of all files

    @property
    def architecture(self) -> str:
        return self._text("general.architecture")

    @property
    def family(self) -> str:
        """The architecture less its version: qwen2 and qwen3moe are ``qwen``."""
        match = re.match(r"[a-z_-]+?(?=-?\d|$)", self.architecture)
        return match[0] if match else self.architecture

    @property
    def name(self) -> str:
        return self._text("general.name")

    @property
    def kind(self) -> str:
        """``model``, ``adapter``, ``mmproj`` …; files of older converters do not say."""
        return self._text("general.type") or ("mmproj" if self.architecture == "clip" else "model")

    @property
    def n_params(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def parameter_size(self) -> str:
        """As people say it: the file's own label, else counted (``7.6B``)."""
        return self._text("general.size_label") or format_count(self.n_params)

    @property
    def quantization(self) -> str:
        """``q4_k_m``; from the tensors' most common type by weight when the file does not say."""
        label = _FILE_TYPES.get(self._number("general.file_type") & ~_GUESSED) if self._has_file_type else None
        return label or self._main_type()

    @property
    def quant_bits(self) -> int:
        """Nominal bits a weight: the digit in the quantization's name."""
        match = re.search(r"\d+", self.quantization)
        return int(match[0]) if match else 0

    @property
    def context_length(self) -> int:
        return self._number(f"{self.architecture}.context_length")

    @property
    def embedding_length(self) -> int:
        return self._number(f"{self.architecture}.embedding_length")

    @property
    def vocab_size(self) -> int:
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, Skipped):
            return tokens.n_items
        return len(tokens) if isinstance(tokens, list) else 0

    @property
    def chat_template(self) -> str | None:
        return self._text("tokenizer.chat_template") or None

    @property
    def is_embedding(self) -> bool:
        return f"{self.architecture}.pooling_type" in self.metadata

    @property
    def _has_file_type(self) -> bool:
        return "general.file_type" in self.metadata

    def _main_type(self) -> str:
        weight: Counter[str] = Counter()
        for tensor in self.tensors:
            weight[tensor.type] += tensor.n_elements
        return weight.most_common(1)[0][0].lower() if weight else ""

    def _text(self, key: str) -> str:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else ""

    def _number(self, key: str) -> int:
        value = self.metadata.get(key)
        if isinstance(value, list):  # some keys are given a layer at a time
            value = max((item for item in value if isinstance(item, int)), default=0)
        return value if isinstance(value, int) else 0


def format_count(count: int) -> str:
    """135M, 7.6B, 1.1T: three significant digits at most, no needless zeros."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            value = count / size
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.1f}".removesuffix(".0") + unit
    return str(count)
