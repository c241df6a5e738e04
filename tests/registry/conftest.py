"""A hub and a registry of its own for each test."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.config import RegistryOpts
from barrel_inference.registry import Registry
from barrel_inference.registry.download.part import read_state
from tests.support.hub import BLOCK, Hub
from tests.support.waiting import eventually


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


class Killing:
    """A hub that never sends more than ``WINDOW`` bytes beyond what the pull has recorded, so that a kill at any moment
    loses no more than that: a pull that recorded less promptly would wait for ever. Owns the count of what was lost."""

    WINDOW = 256 << 10

    def __init__(self, hub: Hub, root: Path) -> None:
        self.hub, self.root = hub, root
        self.lost_bytes = 0
        self._target = 0
        hub.allowance = self._allowed

    async def kill_at(self, process: subprocess.Popen[str], n_bytes: int) -> None:
        """Let so many more bytes out, and kill the process when they are."""
        self._target = self.hub.sent_bytes + n_bytes
        await eventually(lambda: self.hub.sent_bytes > self._target - BLOCK, 120)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with self.hub.lock:
            self.lost_bytes = max(0, self.hub.sent_bytes - self._recorded())

    def end(self) -> None:
        """The rest goes out freely."""
        self.hub.allowance = None

    def _allowed(self) -> int:
        return min(self._target, self.lost_bytes + self._recorded() + self.WINDOW)

    def _recorded(self) -> int:
        states = self.root.glob("tmp/*.part.state")
        return sum(written for state in states for written, _ in read_state(state))


async def pull(registry: Registry, spec: str, **options: Any) -> list[dict[str, Any]]:
    """All events of a pull."""
    return [event async for event in registry.pull(spec, **options)]
