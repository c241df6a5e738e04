"""Answers and events are, field by field, what the clients' own types say; every parameter that their methods have is
honoured, or refused by its name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest

from tests.server.anthropic.conftest import THINKING_TEMPLATE
from tests.server.harness import RunningServer

openai = pytest.importorskip("openai", reason="the clients extra is not installed")
anthropic = pytest.importorskip("anthropic", reason="the clients extra is not installed")

CONTEXT = {"n_ctx": 4096, "n_seq_max": 2}
MODELS: dict[str, Any] = {
    "stub": {"backend": "stub", "context_opts": CONTEXT},
    "thinker": {"backend": "stub", "context_opts": CONTEXT, "template": THINKING_TEMPLATE},
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
REGEX = {"type": "grammar", "syntax": "regex", "definition": "[ab]{3}"}
PATCH = {"type": "custom", "name": "patch", "description": "d", "format": REGEX}
SPACE = {"type": "namespace", "name": "mcp__m__", "description": "d", "tools": [FUNCTION]}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
SAID = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("types"), models=MODELS, ping_s=60) as running:
        yield running


def by_type(union: Any) -> dict[str, Any]:
    """The classes of a union by the type that each has."""
    while get_origin(union) is Annotated:
        union = get_args(union)[0]
    return {get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(union)}


def events(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    status, text, _ = server.exchange("POST", path, {**body, "stream": True})
    assert status == 200, text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


# ---- what comes back

ONE = {"tool_choice": "required", "parallel_tool_calls": False}
ENCRYPTED = {"include": ["reasoning.encrypted_content"]}
RESPONSES: dict[str, dict[str, Any]] = {
    "text": {"top_logprobs": 2},
    "thinking": {"model": "thinker", "reasoning": {"effort": "low"}, **ENCRYPTED},
    "a summary": {"model": "thinker", "reasoning": {"summary": "auto"}},
    "a call": {"tools": [FUNCTION], **ONE},
    "a custom call": {"tools": [PATCH], "tool_choice": {"type": "custom", "name": "patch"}},
    "a call in a namespace": {"tools": [SPACE, PATCH], **ONE},
}


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response(server: RunningServer, name: str) -> None:
    from openai.types import responses

    known = by_type(responses.ResponseStreamEvent)
    body = {"model": "stub", "input": "hi", "max_output_tokens": 60, **RESPONSES[name]}
    for event in events(server, "/v1/responses", body):
        known[event["type"]].model_validate(event)
    _, whole = server.post("/v1/responses", body)
    responses.Response.model_validate(whole)
    _, items = server.request("GET", f"/v1/responses/{whole['id']}/input_items")
    responses.ResponseItemList.model_validate(items)
    assert server.request("GET", f"/v1/responses/{whole['id']}") == (200, whole)
    given_back = {**body, "input": [*SAID, *whole["output"], *results(whole["output"])], "tool_choice": "none"}
    assert server.post("/v1/responses", given_back)[0] == 200


def results(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = [item for item in output if item["type"].endswith("_call")]
    return [{"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "ok"} for call in calls]


CHATS: dict[str, dict[str, Any]] = {
    "text": {"n": 2, "logprobs": True, "top_logprobs": 2},
    "thinking": {"model": "thinker"},
    "a call": {"tools": [CHAT_TOOL], **ONE},
}


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_completion(server: RunningServer, name: str) -> None:
    from openai.types import chat

    body = {"model": "stub", "messages": SAID, "max_tokens": 40, **CHATS[name]}
    chunks = events(server, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    for chunk in chunks:
        chat.ChatCompletionChunk.model_validate(chunk)
    assert len({chunk["id"] for chunk in chunks}) == 1
    chat.ChatCompletion.model_validate(server.post("/v1/chat/completions", body)[1])


def test_a_completion_and_an_embedding(server: RunningServer) -> None:
    from openai import types

    body = {"model": "stub", "prompt": "hi", "max_tokens": 8, "logprobs": 2}
    *pieces, last = events(server, "/v1/completions", body)
    types.Completion.model_validate(last)
    assert all(piece["choices"][0]["finish_reason"] is None for piece in pieces)
    types.Completion.model_validate(server.post("/v1/completions", body)[1])
    types.CreateEmbeddingResponse.model_validate(server.post("/v1/embeddings", {"model": "stub", "input": ["a"]})[1])


MESSAGES: dict[str, dict[str, Any]] = {
    "text": {},
    "thinking": {"model": "thinker", "thinking": {"type": "enabled", "budget_tokens": 8}},
    "a call": {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message(server: RunningServer, name: str) -> None:
    from anthropic import types

    known = by_type(types.RawMessageStreamEvent)
    body = {"model": "stub", "messages": SAID, "max_tokens": 40, **MESSAGES[name]}
    for event in events(server, "/v1/messages", body):
        known[event["type"]].model_validate(event)
    types.Message.model_validate(server.post("/v1/messages", body)[1])


def test_models(server: RunningServer) -> None:
    from anthropic.types import ModelInfo
    from openai.types import Model

    for model in server.request("GET", "/v1/models")[1]["data"]:
        Model.model_validate(model)
    for model in server.request("GET", "/v1/models", anthropic_version="2023-06-01")[1]["data"]:
        ModelInfo.model_validate(model)


# ---- what goes in

OF_THE_CLIENT = {"extra_headers", "extra_query", "extra_body", "timeout", "betas", "user_profile_id", "workspace_id"}
# A value of the right type for each; where there is none the parameter is one that a newer client has brought.
VALUES: dict[str, Any] = {
    "audio": {"format": "mp3", "voice": "alloy"},
    "background": True,
    "best_of": 1,
    "cache_control": {"type": "ephemeral"},
    "compaction": {"type": "summarize"},
    "container": "c",
    "context_management": {"edits": []},
    "conversation": "c",
    "diagnostics": {"previous_message_id": None},
    "dimensions": 8,
    "echo": True,
    "encoding_format": "base64",
    "frequency_penalty": 0.5,
    "function_call": "none",
    "functions": [CHAT_TOOL["function"]],
    "include": ["reasoning.encrypted_content"],
    "inference_geo": "us",
    "instructions": "Be brief.",
    "logit_bias": {"7": 1},
    "logprobs": 1,
    "max_completion_tokens": 4,
    "max_output_tokens": 4,
    "max_tokens": 4,
    "max_tool_calls": 1,
    "mcp_servers": [{"type": "url", "name": "n", "url": "http://127.0.0.1"}],
    "metadata": {"user_id": "a"},
    "modalities": ["text"],
    "moderation": {"model": "m"},
    "n": 2,
    "output_config": {"effort": "low"},
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.5,
    "previous_response_id": "resp_nothing",
    "prompt": {"id": "p"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "reasoning": {"summary": "auto"},
    "reasoning_effort": "low",
    "response_format": {"type": "json_object"},
    "safety_identifier": "s",
    "seed": 1,
    "service_tier": "auto",
    "speed": "standard",
    "stop": ["x"],
    "stop_sequences": ["x"],
    "store": False,
    "stream": False,
    "stream_options": {"include_obfuscation": False},
    "suffix": "x",
    "system": [{"type": "text", "text": "Be brief."}],
    "temperature": 0.5,
    "text": {"format": {"type": "text"}},
    "thinking": {"type": "adaptive"},
    "thread": {"type": "create"},
    "tool_choice": "none",
    "tools": [],
    "top_logprobs": 1,
    "top_p": 0.5,
    "truncation": "auto",
    "user": "u",
    "verbosity": "low",
    "web_search_options": {},
}
# What the names mean elsewhere.
OTHERS: dict[str, dict[str, Any]] = {
    "chat.completions": {"logprobs": True},
    "responses": {"context_management": [{"type": "compaction"}]},
    "messages": {"tool_choice": {"type": "none"}},
    "beta.messages": {"tool_choice": {"type": "none"}},
}
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat.completions": ("/v1/chat/completions", {"messages": SAID, "max_tokens": 2}),
    "completions": ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
    "embeddings": ("/v1/embeddings", {"input": "hi"}),
    "responses": ("/v1/responses", {"input": "hi", "max_output_tokens": 2}),
    "messages": ("/v1/messages", {"messages": SAID, "max_tokens": 2}),
    "beta.messages": ("/v1/messages?beta=true", {"messages": SAID, "max_tokens": 2}),
}
# Alone they ask for what is not there, or cannot be; said here so that a new refusal is noticed.
REFUSED = {
    "chat.completions": {
        *("audio", "moderation", "reasoning_effort", "stream_options", "top_logprobs", "verbosity"),
        "web_search_options",
    },
    "completions": {"stream_options", "suffix"},
    "embeddings": set(),
    "responses": {
        *("background", "context_management", "conversation", "moderation", "previous_response_id", "prompt"),
        "stream_options",
    },
    "messages": {"container", "compaction", "mcp_servers", "thread"},
    "beta.messages": {"container", "compaction", "mcp_servers", "thread"},
}


SAID_OTHERWISE = {"reasoning_effort": "does not support thinking", "suffix": "does not support insert"}


def parameters(api: str) -> list[str]:
    client = anthropic.Anthropic(api_key="any") if "messages" in api else openai.OpenAI(api_key="any")
    with client:
        resource = client
        for name in api.split("."):
            resource = getattr(resource, name)
        known = inspect.signature(resource.create).parameters
    return [name for name in known if name not in OF_THE_CLIENT]


@pytest.mark.parametrize("api", PATHS)
def test_every_parameter_is_honoured_or_refused_by_name(server: RunningServer, api: str) -> None:
    path, usual = PATHS[api]
    wrong, refused = [], set()
    for name in parameters(api):
        if name == "model" or name in usual:
            continue
        known = OTHERS.get(api, {}).get(name, VALUES.get(name, {"new": True}))
        status, answer = server.post(path, {"model": "stub", **usual, name: known})
        told = json.dumps(answer)
        if status == 400 and (name in told or SAID_OTHERWISE.get(name, name) in told):
            refused |= {name}
        elif status != 200:
            wrong.append((name, status, told))
    assert not wrong
    new = {name for name in refused if name not in VALUES}
    assert refused - new == REFUSED[api] & set(parameters(api))
