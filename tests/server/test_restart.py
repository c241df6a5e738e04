"""A server that is killed in the middle of its life: what was said before is read again by none of the APIs.

The server is a process of its own with a disk tier; SIGKILL ends it, and its workers with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.models import smollm2
from tests.support.waiting import until

pytestmark = pytest.mark.model

HISTORY = "The keeper wrote down every ship, its cargo and the weather, and none of it was ever read. " * 8
TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "description": "Write something down.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "maxLength": 40}, "page": {"type": "integer", "maximum": 99}},
            "required": ["text", "page"],
        },
    },
}
THINKER = (  # as most templates do, it leaves out what was thought in earlier turns
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>\n{% endif %}"
    "{%- endif -%}"
)
SUFFIX = 2  # tokens of the model's answer that may be read again: its end is the template's, and the last is decoded


@contextmanager
def killed_at_the_end(root: Path) -> Iterator[str]:
    """The URL of a server."""
    configuration = root / "config.toml"
    configuration.write_text(
        f"""
cache_dir = {json.dumps(str(root / "cache"))}
model_cache_dir = {json.dumps(str(root / "models"))}
ram_dir = {json.dumps(str(root))}
[[tiers]]
name = "store"
kind = "disk"
path = {json.dumps(str(root / "kv"))}
quota_bytes = {1 << 30}
"""
    )
    command = [sys.executable, "-m", "barrel_inference.cli.main", "serve", "--port", "0", "--json"]
    environ = {**os.environ, "BARREL_INFERENCE_CONFIG": str(configuration)}
    server = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    try:
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
        server.stdout.close()


def post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = Request(url + path, json.dumps(body).encode())
    with urlopen(request, timeout=240) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def wait_for_saves(url: str, root: Path) -> None:
    """Saving goes on behind the answer."""
    until(lambda: list(root.glob("kv/*/render/*")) and finished_saves(url), 180)


def finished_saves(url: str) -> float:
    with urlopen(f"{url}/api/cache", timeout=60) as response:
        counters: dict[str, float] = json.load(response)["counters"]
    return counters.get("saves_finish", 0.0)


def install(url: str) -> None:
    """``smol``, and ``thinker``, which is the same with another template."""
    assert post(url, "/api/pull", {"model": str(smollm2()), "stream": False}) == {"status": "success"}
    with urlopen(f"{url}/api/tags", timeout=60) as response:
        (installed,) = json.load(response)["models"]
    create = {"from": installed["name"], "stream": False}
    post(url, "/api/create", {"model": "smol", **create})
    post(url, "/api/create", {"model": "thinker", "template": THINKER, **create})


@pytest.mark.parametrize(
    ("model", "first", "more"),
    [
        ("smol", {"temperature": 1.5, "seed": 9}, [{"role": "user", "content": "And then?"}]),
        ("smol", {"seed": 3, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}, []),
        ("thinker", {"seed": 5, "thinking_budget": 20}, [{"role": "user", "content": "And then?"}]),
    ],
    ids=["text", "tool call", "thoughts"],
)
def test_the_next_turn_restores_the_whole_conversation(
    tmp_path: Path, model: str, first: dict[str, Any], more: list[dict[str, Any]]
) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": HISTORY}]
    with killed_at_the_end(tmp_path) as url:
        install(url)
        before = ask(url, model, messages, max_tokens=80, **first)
        message = before["choices"][0]["message"]
        wait_for_saves(url, tmp_path)
    assert bool(message.pop("reasoning_content", "")) == (model == "thinker")
    calls = message.get("tool_calls") or []
    for call in calls:
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "noted"} for call in calls]
    again = {**first, "tool_choice": "none"} if calls else first
    with killed_at_the_end(tmp_path) as url:
        after = ask(url, model, [*messages, message, *results, *more], max_tokens=4, **again)
    cached = after["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= before["usage"]["total_tokens"] - SUFFIX


def ask(url: str, model: str, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    return post(url, "/v1/chat/completions", {"model": model, "messages": messages, **options})
