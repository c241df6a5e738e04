"""The registry's own routes, on an installed model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.registry.weights import model
from tests.server.harness import RunningServer


def test_editing_says_when_a_context_is_capped(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "edited.gguf"
    file.write_bytes(model())
    assert server.post("/api/pull", {"model": str(file), "stream": False})[0] == 200
    status, edited = server.post("/api/edit", {"model": "edited", "parameters": {"num_ctx": 9000, "top_k": 3}})
    assert (status, edited["model"]) == (200, "edited:latest")
    assert edited["warning"].startswith("num_ctx 9000 is capped at 4096: ")
    assert edited["parameters"] == {"num_ctx": 9000, "top_k": 3}
    status, edited = server.post("/api/edit", {"model": "edited", "parameters": {"num_ctx": 512}, "unset": ["top_k"]})
    assert (status, edited.get("warning"), edited["parameters"]) == (200, None, {"num_ctx": 512})


@pytest.mark.parametrize("limit", ["0", "101", "few", "-1", "9" * 5000])
def test_a_search_names_the_limit_that_it_cannot_take(server: RunningServer, limit: str) -> None:
    status, answer = server.request("GET", f"/api/search?q=qwen&limit={limit}")
    assert (status, answer["error"]) == (400, "limit: must be 1 to 100")
