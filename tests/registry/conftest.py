"""A hub and a registry of its own for each test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.config import RegistryOpts
from barrel_inference.registry import Registry
from tests.support.hub import Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        yield running


@pytest.fixture
def registry(tmp_path: Path, hub: Hub) -> Registry:
    return open_registry(tmp_path / "models", hub)


def open_registry(root: Path, hub: Hub, **options: Any) -> Registry:
    """One that knows the hub as the Hub and as Ollama's registry, and is impatient."""
    given = {"hf_endpoint": hub.url, "ollama_endpoint": hub.url, "stall_s": 2.0, "max_attempts": 3, **options}
    return Registry(root, RegistryOpts(**given))


async def eventually(check: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait until ``check`` is true; fail when it does not become so."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


async def pull(registry: Registry, spec: str, **options: Any) -> list[dict[str, Any]]:
    """All events of a pull."""
    return [event async for event in registry.pull(spec, **options)]
