"""Anthropic's client against a server with a real model: text, a call under grammar, and what the cache saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import RunningServer
from tests.support.models import smollm2

anthropic = pytest.importorskip("anthropic", reason="the clients extra is not installed")
pytestmark = pytest.mark.model

PAINT = {
    "name": "paint",
    "description": "Paints the wall",
    "input_schema": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}


def test_an_agents_turn(root: Path) -> None:
    model = {"model_path": str(smollm2()), "context_opts": {"n_ctx": 1024, "n_threads": 1}}
    asked: dict[str, Any] = {"model": "smollm2", "max_tokens": 40, "tools": [PAINT], "extra_body": {"temperature": 0}}
    said: list[Any] = [{"role": "user", "content": "Paint it red."}]
    with (
        RunningServer(root, models={"smollm2": model}) as server,
        anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        called = client.messages.create(**asked, messages=said, tool_choice={"type": "tool", "name": "paint"})
        (use,) = called.content
        assert (use.name, called.stop_reason) == ("paint", "tool_use")
        assert use.input["colour"] in ("red", "green")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "painted"}
        said += [called.to_param(), {"role": "user", "content": [result]}]
        with client.messages.stream(**asked, messages=said, tool_choice={"type": "none"}) as stream:
            shown = "".join(stream.text_stream)
            answered = stream.get_final_message()
    assert shown
    assert answered.usage.cache_read_input_tokens >= called.usage.input_tokens
    assert answered.usage.input_tokens < 64, "only the result was read"
