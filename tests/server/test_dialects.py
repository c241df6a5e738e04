"""One conversation through all three dialects: the same reaches the model, the same comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from barrel_inference.server import neutral
from barrel_inference.server.anthropic import translate as anthropic
from barrel_inference.server.anthropic import wire as anthropic_wire
from barrel_inference.server.ollama import translate as ollama
from barrel_inference.server.ollama import wire as ollama_wire
from barrel_inference.server.openai import translate as openai
from barrel_inference.server.openai import wire as openai_wire
from barrel_inference.server.openai.responses import translate as responses
from barrel_inference.server.openai.responses import wire as responses_wire
from tests.server.harness import RunningServer

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
INPUT = {"city": "Paris"}
TEXT = json.dumps(INPUT)

OPENAI: dict[str, Any] = {
    "model": "stub",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": TEXT}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}],
    "max_tokens": 9,
    "temperature": 0,
    "stop": ["END"],
}
RESPONSES: dict[str, Any] = {
    "model": "stub",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": TEXT},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ],
    "tools": [{"type": "function", "name": "weather", "description": "d", "parameters": SCHEMA}],
    "max_output_tokens": 9,
    "temperature": 0,
}
ANTHROPIC: dict[str, Any] = {
    "model": "stub",
    "system": "Be brief.",
    "messages": [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": INPUT},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}]},
    ],
    "tools": [{"name": "weather", "description": "d", "input_schema": SCHEMA}],
    "max_tokens": 9,
    "temperature": 0,
    "stop_sequences": ["END"],
}
OLLAMA: dict[str, Any] = {
    "model": "stub",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "thinking": "hm",
            "tool_calls": [{"id": "c1", "function": {"name": "weather", "arguments": INPUT}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ],
    "tools": OPENAI["tools"],
    "options": {"num_predict": 9, "temperature": 0, "stop": ["END"]},
    "stream": False,
}


def neutral_requests() -> dict[str, neutral.ChatRequest]:
    of_ollama = msgspec.convert(OLLAMA, ollama_wire.ChatRequest)
    return {
        "openai": openai.chat(msgspec.convert(OPENAI, openai_wire.ChatCompletionRequest)),
        "responses": responses.request(msgspec.convert(RESPONSES, responses_wire.ResponseRequest), ()),
        "anthropic": anthropic.messages(msgspec.convert(ANTHROPIC, anthropic_wire.MessagesRequest)),
        "ollama": ollama.chat(of_ollama, ollama.parameters(of_ollama)),
    }


def test_the_same_conversation_reaches_the_model() -> None:
    found = neutral_requests()
    for name, request in found.items():
        assert [_plain(message) for message in request.messages] == [
            _plain(message) for message in found["openai"].messages
        ], name
        assert request.tools == found["openai"].tools, name
        assert request.options["max_tokens"] == 9 and request.options["temperature"] == 0, name
        assert list(request.options.get("stop", ["END"])) == ["END"], name


def _plain(message: Any) -> dict[str, Any]:
    """Without what is only spelled differently."""
    values = {name: value for name, value in msgspec.structs.asdict(message).items() if value not in (None, (), "")}
    values.pop("name", None)  # of the function a result is of: known from the call
    if calls := values.get("tool_calls"):
        values["tool_calls"] = [
            (call["id"], call["function"]["name"], _object(call["function"]["arguments"])) for call in calls
        ]
    return values


def _object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, Any]]:
    models = {"stub": {"backend": "stub", "context_opts": {"n_ctx": 2048}}}
    with RunningServer(tmp_path_factory.mktemp("dialects"), models=models) as server:
        return {
            "openai": server.post("/v1/chat/completions", OPENAI),
            "responses": server.post("/v1/responses", RESPONSES),
            "anthropic": server.post("/v1/messages", ANTHROPIC),
            "ollama": server.post("/api/chat", OLLAMA),
        }


def test_the_same_comes_back(answers: dict[str, tuple[int, Any]]) -> None:
    assert {name: status for name, (status, _) in answers.items()} == dict.fromkeys(answers, 200)
    said = {
        "openai": answers["openai"][1]["choices"][0]["message"]["content"],
        "responses": answers["responses"][1]["output"][0]["content"][0]["text"],
        "anthropic": answers["anthropic"][1]["content"][0]["text"],
        "ollama": answers["ollama"][1]["message"]["content"],
    }
    assert len(set(said.values())) == 1 and said["openai"], said


def test_the_same_is_counted(answers: dict[str, tuple[int, Any]]) -> None:
    openai_usage = answers["openai"][1]["usage"]
    of_responses = answers["responses"][1]["usage"]
    of_anthropic = answers["anthropic"][1]["usage"]
    of_ollama = answers["ollama"][1]
    prompts = {
        openai_usage["prompt_tokens"],
        of_responses["input_tokens"],
        sum(of_anthropic[f"{kind}input_tokens"] for kind in ("", "cache_read_", "cache_creation_")),
        of_ollama["prompt_eval_count"],
    }
    assert len(prompts) == 1
    assert {
        openai_usage["completion_tokens"],
        of_responses["output_tokens"],
        of_anthropic["output_tokens"],
        of_ollama["eval_count"],
    } == {9}


def test_the_prompt_that_one_dialect_has_read_the_others_find_read(answers: dict[str, tuple[int, Any]]) -> None:
    usage = answers["responses"][1]["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == usage["input_tokens"] - 1


CHOICE = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome", "Oslo"]}}, "required": ["city"]}
CALLING: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Where?"}],
            "tools": [{"type": "function", "function": {"name": "go", "parameters": CHOICE}}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    ),
    "responses": (
        "/v1/responses",
        {
            "input": "Where?",
            "tools": [{"type": "function", "name": "go", "parameters": CHOICE}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    ),
    "anthropic": (
        "/v1/messages",
        {
            "messages": [{"role": "user", "content": "Where?"}],
            "tools": [{"name": "go", "input_schema": CHOICE}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "max_tokens": 300,
        },
    ),
}
CALL_OF: dict[str, Callable[[Any], Any]] = {
    "openai": lambda answer: json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]),
    "responses": lambda answer: json.loads(answer["output"][0]["arguments"]),
    "anthropic": lambda answer: answer["content"][0]["input"],
}
PIECE_OF: dict[str, Callable[[Any], list[str]]] = {
    "openai": lambda event: [
        call["function"]["arguments"] for each in event["choices"] for call in each["delta"].get("tool_calls", ())
    ],
    "responses": lambda event: [event["delta"]] if event["type"].endswith("function_call_arguments.delta") else [],
    "anthropic": lambda event: [event["delta"]["partial_json"]] if event["type"] == "content_block_delta" else [],
}


def test_the_same_call_comes_back_whole_and_in_pieces(tmp_path: Path) -> None:
    models = {"stub": {"backend": "stub", "context_opts": {"n_ctx": 2048}}}
    found = []
    with RunningServer(tmp_path, models=models) as server:
        for dialect, (path, body) in CALLING.items():
            asked = {"model": "stub", "temperature": 0, **body}
            found.append(CALL_OF[dialect](server.post(path, asked)[1]))
            lines = server.post(path, {**asked, "stream": True})[1].splitlines()
            events = [json.loads(line[5:]) for line in lines if line.startswith("data: {")]
            pieces = [piece for event in events for piece in PIECE_OF[dialect](event) if piece]
            assert len(pieces) > 1, dialect
            found.append(json.loads("".join(pieces)))
    assert found[0]["city"] in ("Paris", "Rome", "Oslo") and found == [found[0]] * 6
