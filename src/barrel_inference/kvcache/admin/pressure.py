"""Where the janitor learns that memory is short. A source gives the used fraction, 0 … 1."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from typing import Literal

from barrel_inference.memory import system_memory

logger = logging.getLogger(__name__)

Source = Callable[[], float]
SourceName = Literal["none", "system", "nvidia_smi"]
SMI = ("nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits")
SMI_TIMEOUT_S = 5.0


def source(name: SourceName | Source) -> Source:
    """The source of that name; a callable is one already."""
    return name if callable(name) else {"none": none, "system": system, "nvidia_smi": nvidia_smi}[name]


def none() -> float:
    return 0.0


def system() -> float:
    memory = system_memory()
    return 1.0 - memory.available / memory.total


def nvidia_smi(command: tuple[str, ...] = SMI) -> float:
    """The fullest GPU; 0 where there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True)
        used = [tuple(map(float, line.split(","))) for line in done.stdout.splitlines() if line.strip()]
        return max((row[0] / row[1] for row in used), default=0.0)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, ZeroDivisionError) as error:
        logger.debug("nvidia-smi: %s", error)
        return 0.0
