"""The model file as llama.cpp loads it: weights, adapters, metadata. Owned by the engine thread; freed by ``close``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from barrel_inference.config import LoadOptions, ModelOpts
from barrel_inference.engine.llama.binding import lib, log_tail
from barrel_inference.errors import ConfigError, InvalidModelError, LoadError

_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2}
_LOAD_MODES = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}  # (mmap, mlock)
_META_BYTES = 1 << 20


class Weights:
    """``pointer`` is llama.cpp's model, ``adapters`` the (adapter, scale) pairs that every context must set."""

    def __init__(self, options: LoadOptions, model_opts: ModelOpts, on_progress: Callable[[float], None]) -> None:
        assert options.model_path is not None
        self.adapters: list[tuple[Any, float]] = []
        self.given = ModelParams(model_opts, on_progress)  # llama.cpp keeps pointers into it while loading
        log_tail.clear()
        self.pointer = lib.llama_model_load_from_file(options.model_path.encode(), self.given.params)
        if not self.pointer:
            raise log_tail.failure(f"llama.cpp refuses {options.model_path}", "no reason given", InvalidModelError)
        self.vocab = lib.llama_model_get_vocab(self.pointer)
        complaint = log_tail.reason("")
        self.warnings = [f"the weights could not be locked: {complaint}"] if "mlock" in complaint else []
        self._load_adapters(options)

    def _load_adapters(self, options: LoadOptions) -> None:
        # Before any context: its graph budget counts the adapters that exist by then. Always in the same order: their
        # sum depends on it, in the last bits.
        for path, scale, _digest in sorted(options.lora, key=lambda each: (each[2], each[1])):
            log_tail.clear()
            adapter = lib.llama_adapter_lora_init(self.pointer, path.encode()) if Path(path).is_file() else None
            if not adapter:
                reason = log_tail.reason("no such file")
                self.close()
                raise LoadError(f"the LoRA adapter {path} cannot be applied: {reason}", path=path)
            self.adapters.append((adapter, scale))

    def metadata(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(_META_BYTES)
        length = lib.llama_model_meta_val_str(self.pointer, key.encode(), buffer, _META_BYTES)
        return None if length < 0 else buffer.value.decode(errors="replace")

    def metadata_keys(self) -> list[str]:
        buffer = ctypes.create_string_buffer(4096)
        return [
            buffer.value.decode(errors="replace")
            for index in range(lib.llama_model_meta_count(self.pointer))
            if lib.llama_model_meta_key_by_index(self.pointer, index, buffer, len(buffer)) >= 0
        ]

    def description(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.pointer, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    def close(self) -> None:
        for adapter, _scale in self.adapters:
            lib.llama_adapter_lora_free(adapter)
        self.adapters = []
        if self.pointer:
            lib.llama_model_free(self.pointer)
            self.pointer = None


class ModelParams:
    """llama_model_params and everything it points to."""

    def __init__(self, opts: ModelOpts, on_progress: Callable[[float], None]) -> None:
        params = lib.llama_model_default_params()
        params.n_gpu_layers = opts.n_gpu_layers
        params.split_mode = _SPLIT_MODES[opts.split_mode]
        params.main_gpu = opts.main_gpu
        params.load_mode = _LOAD_MODES[opts.use_mmap, opts.use_mlock]
        params.vocab_only = opts.vocab_only
        if opts.tensor_split:
            self._split = _tensor_split(opts.tensor_split)
            params.tensor_split = self._split
        self._progress = lib.llama_progress_callback(lambda fraction, _: _report(on_progress, fraction))
        params.progress_callback = self._progress
        self.params = params


def _report(on_progress: Callable[[float], None], fraction: float) -> bool:
    on_progress(fraction)
    return True  # false would abort the load


def _tensor_split(split: tuple[float, ...]) -> Any:
    limit = int(lib.llama_max_devices())
    if len(split) > limit:
        raise ConfigError(
            f"tensor_split has {len(split)} entries, this build knows at most {limit} devices",
            option="model_opts.tensor_split",
            value=list(split),
            allowed=f"at most {limit} numbers",
        )
    return (ctypes.c_float * limit)(*split)
