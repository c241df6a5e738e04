"""Memory-pressure sources."""

from __future__ import annotations

import sys

from barrel_inference.kvcache.admin.pressure import none, nvidia_smi, source, system


def test_sources_by_name() -> None:
    assert source("none")() == 0.0
    assert 0.0 < source("system")() < 1.0
    assert source("system") is system
    assert source(lambda: 0.5)() == 0.5
    assert none() == 0.0


def smi(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"print({text!r})")


def test_the_fullest_gpu_counts() -> None:
    assert nvidia_smi(smi("100, 1000\n900, 1000")) == 0.9


def test_no_gpu_is_no_pressure() -> None:
    assert nvidia_smi(("/nonexistent/nvidia-smi",)) == 0.0
    assert nvidia_smi(smi("no devices were found")) == 0.0
    assert nvidia_smi(smi("")) == 0.0
    assert nvidia_smi((sys.executable, "-c", "raise SystemExit(9)")) == 0.0
