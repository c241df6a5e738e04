"""Random models of a few MB, one for each kind of llama.cpp memory, written by llama.cpp itself in milliseconds.

Their vocabulary is llama.cpp's "test" one (text means nothing to it): feed token ids in [0, N_VOCAB).
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import numpy as np

from barrel_inference.engine.llama.binding import lib

N_VOCAB = 128
N_EMBD = 256
N_HEAD = 2
N_LAYER = 2
WINDOW = 96  # of the sliding-window model: more than a block, less than two
Arch = Literal["llama", "gemma3", "mamba", "jamba", "lfm2"]
ARCHS: tuple[Arch, ...] = ("llama", "gemma3", "mamba", "jamba", "lfm2")

_PACKAGE = Path(lib.__file__).parent / "lib"
_PER_LAYER_HEADS = {"jamba", "lfm2"}  # a layer without heads is a recurrent one
_TYPE_F32 = 0


@functools.cache
def tiny_model(arch: Arch) -> Path:
    """A GGUF of this architecture, the same bytes each time, for the life of the test process."""
    path = Path(_folder().name) / f"{arch}.gguf"
    write_model(path, arch)
    return path


def write_model(path: Path, arch: Arch, sizes: dict[str, int] | None = None) -> None:
    """``sizes``: metadata of the architecture in place of the usual ones."""
    ggml = _ggml()
    metadata = ggml.gguf_init_empty()
    for key, value in _metadata(arch, sizes or {}).items():
        _set(ggml, metadata, key.encode(), value)
    fill = lib.llama_model_set_tensor_data_t(lambda tensor, _: _fill(ggml, tensor))
    model = lib.llama_model_init_from_user(metadata, fill, None, lib.llama_model_default_params())
    assert model, f"llama.cpp cannot make a {arch}"
    lib.llama_model_save_to_file(model, str(path).encode())
    lib.llama_model_free(model)
    ggml.gguf_free(metadata)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="barrel-tiny-")


def _metadata(arch: Arch, sizes: dict[str, int]) -> dict[str, Any]:
    heads = [N_HEAD, 0] if arch in _PER_LAYER_HEADS else N_HEAD
    own = {
        "vocab_size": N_VOCAB,
        "context_length": 4096,
        "embedding_length": N_EMBD,
        "block_count": N_LAYER,
        "feed_forward_length": 384,
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": 2,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 2 * N_EMBD,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 16,
        "ssm.group_count": 2,
        "shortconv.l_cache": 3,
    }
    if arch == "lfm2":
        del own["attention.sliding_window"], own["attention.sliding_window_pattern"]
    return {
        "general.architecture": arch,
        **{f"{arch}.{key}": value for key, value in (own | sizes).items()},
        "tokenizer.ggml.model": "test",
        "tokenizer.ggml.tokens": [f"tok_{token}" for token in range(N_VOCAB)],
        "tokenizer.ggml.scores": [0.0] * N_VOCAB,
    }


@functools.cache
def _ggml() -> Any:
    (path,) = {each.resolve() for each in _PACKAGE.glob("libggml-base.*") if each.suffix in (".so", ".dylib", ".dll")}
    ggml = ctypes.CDLL(str(path))
    ggml.gguf_init_empty.restype = ctypes.c_void_p
    ggml.ggml_get_name.restype = ctypes.c_char_p
    ggml.ggml_nelements.restype = ctypes.c_int64
    for name in ("gguf_free", "ggml_get_name", "ggml_nelements"):
        getattr(ggml, name).argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_tensor_set.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    return ggml


def _set(ggml: Any, metadata: int, key: bytes, value: Any) -> None:
    at = ctypes.c_void_p(metadata)
    match value:
        case int():
            ggml.gguf_set_val_u32(at, key, ctypes.c_uint32(value))
        case float():
            ggml.gguf_set_val_f32(at, key, ctypes.c_float(value))
        case str():
            ggml.gguf_set_val_str(at, key, value.encode())
        case [str(), *_]:
            texts = (ctypes.c_char_p * len(value))(*(text.encode() for text in value))
            ggml.gguf_set_arr_str(at, key, texts, ctypes.c_size_t(len(value)))
        case [float(), *_]:
            ggml.gguf_set_arr_data(at, key, 6, (ctypes.c_float * len(value))(*value), ctypes.c_size_t(len(value)))
        case _:
            ggml.gguf_set_arr_data(at, key, 4, (ctypes.c_uint32 * len(value))(*value), ctypes.c_size_t(len(value)))


def _fill(ggml: Any, tensor: int) -> None:
    name = ggml.ggml_get_name(tensor)
    values = np.random.default_rng(crc32(name)).normal(0, 0.1, ggml.ggml_nelements(tensor)).astype(np.float32)
    if b"norm" in name:
        values += 1  # or attention sees next to nothing
    if b"ssm_a" in name:
        values = -np.abs(values)  # a decay
    is_f32 = ctypes.cast(tensor, ctypes.POINTER(ctypes.c_int32))[0] == _TYPE_F32
    data = values if is_f32 else values.astype(np.float16)
    ggml.ggml_backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)
