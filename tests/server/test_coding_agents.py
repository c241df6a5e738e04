"""Requests as coding agents send them: each is answered, and its tools work for more than one turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.harness import RunningServer

COMMAND = {"type": "object", "properties": {"command": {"enum": ["ls", "pwd"]}}, "required": ["command"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = {"stub": {"backend": "stub", "context_opts": {"n_ctx": 8192}}}
    with RunningServer(tmp_path_factory.mktemp("agents"), models=models) as running:
        yield running


def events(server: RunningServer, path: str, body: Any, **headers: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    status, text, head = server.exchange("POST", path, body, **headers)
    assert status == 200, text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")], head


# ---- Codex CLI

SHELL = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {**COMMAND, "additionalProperties": False},
}
LARK = 'start: begin_patch\nbegin_patch: "*** Begin Patch" LF\n%import common.LF\n'
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files. This is a FREEFORM tool, so do not wrap the patch in JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": LARK},
}
MCP = {"type": "namespace", "name": "mcp__docs__", "description": "Tools of docs.", "tools": [SHELL]}
HOSTED = [{"type": "web_search", "external_web_access": False}, {"type": "image_generation", "output_format": "png"}]
CODEX: dict[str, Any] = {
    "model": "stub",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
    ],
    "tools": [SHELL, PATCH, MCP, *HOSTED],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": None,
    "store": False,
    "stream": True,
    "include": [],
    "prompt_cache_key": "0199a213",
    "client_metadata": {"x-codex-installation-id": "1"},
}


def test_codex(server: RunningServer) -> None:
    found, head = events(server, "/v1/responses", {**CODEX, "max_output_tokens": 8})
    assert found[0]["type"] == "response.created" and found[-1]["type"] == "response.incomplete"
    ignored = "tools.apply_patch.format, tools.web_search, tools.image_generation"
    assert head["x-ignored-options"] == ignored, "what is left out is told"


@pytest.mark.parametrize("choice", ["function", "custom", "namespace"])
def test_codex_calls_its_tools(server: RunningServer, choice: str) -> None:
    chosen = {
        "function": {"type": "function", "name": "exec_command"},
        "custom": {"type": "custom", "name": "apply_patch"},
        "namespace": {"type": "function", "name": "exec_command", "namespace": "mcp__docs__"},
    }[choice]
    found, _ = events(server, "/v1/responses", {**CODEX, "tool_choice": chosen, "max_output_tokens": 200})
    (call,) = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert call["type"] == ("custom_tool_call" if choice == "custom" else "function_call")
    assert (call["name"], call.get("namespace")) == (chosen["name"], chosen.get("namespace"))
    kept = {key: value for key, value in call.items() if key != "id"}  # as it keeps them
    result = {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "README.md"}
    more = {**CODEX, "input": [*CODEX["input"], kept, result], "max_output_tokens": 4}
    found, _ = events(server, "/v1/responses", more)
    usage = found[-1]["response"]["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] > 100, "the head is not read again"


def test_codex_with_its_tools_in_the_input(server: RunningServer) -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [{**MCP, "tools": [SHELL, PATCH]}]}
    asked = {**CODEX, "tools": [], "input": [added, *CODEX["input"]], "max_output_tokens": 200}
    found, _ = events(server, "/v1/responses", {**asked, "tool_choice": "required"})
    (call,) = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert call["namespace"] == "mcp__docs__" and call["name"] in ("exec_command", "apply_patch")


def test_what_codex_asks_first(server: RunningServer) -> None:
    status, answer = server.request("GET", "/v1/models?client_version=0.152.0")
    assert status == 200 and answer["data"]


# ---- Claude Code

EPHEMERAL = {"type": "ephemeral", "ttl": "1h", "scope": "global"}
CLAUDE: dict[str, Any] = {
    "model": "stub",
    "max_tokens": 8,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.251.7b4; cc_entrypoint=cli; cch=0;"},
        {"type": "text", "text": "You are a coding agent.", "cache_control": EPHEMERAL},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>Today is Monday.</system-reminder>"}]},
        {"role": "system", "content": "Agents: general-purpose"},
        {"role": "user", "content": [{"type": "text", "text": "List the files.", "cache_control": EPHEMERAL}]},
    ],
    "tools": [
        {"name": "Bash", "description": "Runs a command.", "input_schema": COMMAND, "eager_input_streaming": True},
        {
            "name": "Read",
            "description": "Reads a file.",
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {"file_path": {"type": "string"}, "limit": {"type": "integer", "exclusiveMinimum": 0}},
                "required": ["file_path"],
                "additionalProperties": False,
            },
            "cache_control": EPHEMERAL,
        },
    ],
    "metadata": {"user_id": '{"device_id":"1","session_id":"2"}'},
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "diagnostics": {"previous_message_id": None},
}
BETAS = {
    "anthropic_version": "2023-06-01",
    "anthropic_beta": "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24",
    "x_api_key": "any",
}


@pytest.mark.parametrize(
    "more", [{}, {"thinking": {"type": "enabled", "budget_tokens": 7}}, {"thinking": {"type": "enabled"}}]
)
def test_claude_code(server: RunningServer, more: dict[str, Any]) -> None:
    found, _ = events(server, "/v1/messages?beta=true", {**CLAUDE, **more}, **BETAS)
    kinds = [event["type"] for event in found if event["type"] != "ping"]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    (read,) = [event["message"]["usage"] for event in found if event["type"] == "message_start"]
    assert read["input_tokens"] + read["cache_read_input_tokens"] > 100, "it is told at the beginning"


def test_claude_codes_turns_are_not_read_twice(server: RunningServer) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    asked = {**CLAUDE, "stream": False, "tool_choice": choice, "max_tokens": 300}
    asked["tools"] = asked["tools"][:1]
    status, first = server.post("/v1/messages?beta=true", asked, **BETAS)
    assert status == 200 and first["stop_reason"] == "tool_use", first
    result = {"type": "tool_result", "tool_use_id": first["content"][-1]["id"], "content": "README.md"}
    more = [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    asked = {**asked, "messages": [*CLAUDE["messages"], *more], "tool_choice": {"type": "none"}, "max_tokens": 2}
    _, second = server.post("/v1/messages?beta=true", asked, **BETAS)
    usage = first["usage"]
    assert second["usage"]["cache_read_input_tokens"] >= usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_claude_code_counts_and_lists(server: RunningServer) -> None:
    asked = {name: CLAUDE[name] for name in ("model", "messages", "system", "tools", "thinking")}
    status, counted = server.post("/v1/messages/count_tokens?beta=true", asked, **BETAS)
    assert status == 200 and counted["input_tokens"] > 100
    status, listed = server.request("GET", "/v1/models?limit=1000&lifecycle[]=active", **BETAS)
    assert status == 200 and listed["data"][0]["type"] == "model"
    assert server.request("GET", "/v1/models?lifecycle[]=retired", **BETAS)[1]["data"] == []
    assert server.request("HEAD", "/")[0] == 200


def test_claude_codes_search_is_refused_by_name(server: RunningServer) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]
    status, answer = server.post("/v1/messages?beta=true", {**CLAUDE, "tools": tools}, **BETAS)
    assert status == 400 and "web_search_20250305" in answer["error"]["message"]


# ---- editors and front ends

CHAT_TOOL = {"type": "function", "function": {"name": "exec", "description": "Runs.", "parameters": COMMAND}}
CHATS: dict[str, dict[str, Any]] = {
    "Continue": {"max_tokens": 8, "stream": True, "tools": [CHAT_TOOL], "stop": [f"</{n}>" for n in range(40)]},
    "Zed": {
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 8,
        "stop": [],
        "temperature": 1.0,
        "tools": [CHAT_TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
    },
    "Open WebUI": {
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 8,
        "metadata": None,
        "reasoning_effort": None,
        "seed": None,
    },
}


@pytest.mark.parametrize("name", CHATS)
def test_editors_and_front_ends(server: RunningServer, name: str) -> None:
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "List the files."}]},
    ]
    found, _ = events(server, "/v1/chat/completions", {"model": "stub", "messages": said, **CHATS[name]})
    assert any(choice["delta"].get("content") for chunk in found for choice in chunk["choices"])
    if "stream_options" in CHATS[name]:
        assert found[-1]["usage"]["completion_tokens"] > 0 and found[-1]["choices"] == []
