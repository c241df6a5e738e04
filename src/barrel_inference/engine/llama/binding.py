"""The compiled library: import, log, what it was built with. The log tail is process-wide, as llama.cpp's is."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
from llama_cpp import llama_cpp
from numpy.typing import NDArray

from barrel_inference.errors import BarrelError, OutOfMemoryError
from barrel_inference.memory import tells_of_shortage

__all__ = ["address_of_logits", "build", "features", "float_view", "lib", "log_tail"]

lib: Any = llama_cpp  # ctypes: nothing in it has a type that could be checked

_log = logging.getLogger(__name__)
_ERROR, _WARN, _CONT = 4, 3, 5
_FLASH_LINE = "resolve_fused_ops: Flash Attention"
_NO_FLASH_LINE = "flash_attn is not compatible"
_NO_ROTATION = "LLAMA_ATTN_ROT_DISABLE"  # quantised KV is rotated unless this is set, and its bytes do not tell


class LogTail:
    """The last lines llama.cpp complained with: the only place where it says why a call failed. Its warnings are no
    news until then: it warns at each load of what we mean (the sum of all sequences' contexts, no pooling)."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=20)  # and how bad it is
        self._lock = threading.Lock()
        self._last_level = 0
        self.flash_attn_resolved: bool | None = None

    def write(self, level: int, text: str) -> None:
        level = self._last_level if level == _CONT else level
        self._last_level = level
        if _FLASH_LINE in text or _NO_FLASH_LINE in text:
            self.flash_attn_resolved = "enabled" in text
        if level not in (_ERROR, _WARN) or not text.strip():
            return
        with self._lock:
            self._lines.append((level, text.strip()))
        _log.log(logging.WARNING if level == _ERROR else logging.DEBUG, "%s", text.strip())

    def clear(self) -> None:
        with self._lock:
            self._lines.clear()

    def reason(self, default: str) -> str:
        """The collected complaints in one line: a want of memory first, errors before warnings."""
        with self._lock:
            lines = sorted(self._lines, key=lambda line: (not tells_of_shortage(line[1]), line[0] != _ERROR))
        return "; ".join(text for _, text in lines) or default

    def failure(self, what: str, default: str, kind: type[BarrelError]) -> BarrelError:
        """The error for ``what`` failed: OutOfMemoryError when llama.cpp says so, else ``kind``."""
        reason = self.reason(default)
        return (OutOfMemoryError if tells_of_shortage(reason.split("; ")[0]) else kind)(f"{what}: {reason}")


log_tail = LogTail()


def _receive(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    log_tail.write(level, text.decode(errors="replace"))


_callback = lib.llama_log_callback(_receive)
lib.llama_log_set(_callback, ctypes.c_void_p(0))
lib.llama_backend_init()


# (context, batch row) to an address or None: without the object that the binding makes of each pointer.
address_of_logits = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(
    ("llama_get_logits_ith", lib._lib)
)


def float_view(address: int, count: int) -> NDArray[np.float32]:
    """The ``count`` floats that llama.cpp has there, without a copy."""
    array: Any = (ctypes.c_float * count).from_address(address)
    view: NDArray[np.float32] = np.frombuffer(array, np.float32)
    return view


def build(environ: Mapping[str, str] = os.environ) -> str:
    """Identifies binding, llama.cpp and state format: KV bytes of another build are never loaded."""
    name = (
        f"llama-cpp-python {version('llama-cpp-python')} llama.cpp {lib.llama_version().decode()} "
        f"session {lib.LLAMA_SESSION_VERSION} seq {lib.LLAMA_STATE_SEQ_VERSION}"
    )
    rotation = environ.get(_NO_ROTATION)
    return name if rotation is None else f"{name} {_NO_ROTATION}={rotation}"


def features() -> dict[str, Any]:
    """What was compiled in, for ``doctor``."""
    return {
        "binding": version("llama-cpp-python"),
        "llama_cpp": lib.llama_version().decode(),
        "build": build(),
        "system": lib.llama_print_system_info().decode().strip(),
        "gpu_offload": bool(lib.llama_supports_gpu_offload()),
        "mmap": bool(lib.llama_supports_mmap()),
        "mlock": bool(lib.llama_supports_mlock()),
        "max_devices": int(lib.llama_max_devices()),
        "max_sequences": int(lib.llama_max_parallel_sequences()),
    }
