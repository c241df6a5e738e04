"""Requests that are meant to break something, on a stub model: each is answered, or refused saying why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.harness import RunningServer

USER = [{"role": "user", "content": "hi"}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "minLength": 40}}, "required": ["city"]}
LOOP = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}
TREE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/T"}}, "$defs": {"T": {"$ref": "#"}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = {"stub": {"backend": "stub", "context_opts": {"n_ctx": 4096, "n_seq_max": 4}}}
    with RunningServer(tmp_path_factory.mktemp("hostile"), models=models) as running:
        yield running


def tool(name: str = "f", parameters: Any = WEATHER) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def content(part: Any) -> list[Any]:
    return [{"role": "user", "content": part}]


REFUSED: dict[str, dict[str, Any]] = {
    "prompt has": {"tools": [tool(f"tool_{number}") for number in range(500)]},
    "context": {"messages": [{"role": ("user", "assistant")[n % 2], "content": f"say {n}"} for n in range(1001)]},
    "leads back to itself": {"response_format": form(LOOP)},
    "does not exist": {"response_format": form({"properties": {"a": {"$ref": "#/$defs/No"}}})},
    "not fetch": {"response_format": form({"properties": {"a": {"$ref": "http://localhost/a"}}})},
    "parameters": {"tools": [tool(parameters=[1])]},
    "name": {"tools": [tool("")]},
    "function.name": {"tools": [tool('a"b <x>\n{}')], "tool_choice": "required"},
    "messages": {"messages": []},
    "none of the tools": {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
    "image_url": {"messages": content([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}])},
    "input_audio": {"messages": content([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}])},
    "surrogate": {"messages": content("\ud800")},
}
ANSWERED: dict[str, dict[str, Any]] = {
    "a tree as a form": {"response_format": form(TREE)},
    "a loop in a tool": {"tools": [tool(parameters=LOOP)]},
    "a reference to nothing in a tool": {"tools": [tool(parameters={"properties": {"a": {"$ref": "#/$defs/No"}}})]},
    "a reference abroad in a tool": {"tools": [tool(parameters={"properties": {"a": {"$ref": "http://localhost/a"}}})]},
    "two tools of a name": {"tools": [tool(), tool()], "tool_choice": "required"},
    "no text": {"messages": content("")},
    "no parts": {"messages": content([])},
    "a NUL": {"messages": content("a\0b")},
    "a result without a call": {"messages": [{"role": "tool", "content": "x", "tool_call_id": "no"}]},
    "an answer only": {"messages": [{"role": "assistant", "content": "Hi"}]},
    "eight answers with tools": {"tools": [tool()], "tool_choice": "required", "n": 8},
    "a call cut off before its name": {"tools": [tool()], "tool_choice": "required", "max_tokens": 1},
    "nothing to be written": {"tools": [tool()], "tool_choice": "required", "max_tokens": 0},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("reason", "body"), REFUSED.items(), ids=str)
def test_refused_with_a_reason(server: RunningServer, reason: str, body: dict[str, Any], stream: bool) -> None:
    asked = {"model": "stub", "messages": USER, "max_tokens": 8, "stream": stream, **body}
    status, answer = server.post("/v1/chat/completions", asked)
    assert status == 400 and reason in answer["error"]["message"]


@pytest.mark.parametrize("name", ANSWERED)
def test_answered(server: RunningServer, name: str) -> None:
    asked = {"model": "stub", "messages": USER, "max_tokens": 8, **ANSWERED[name]}
    status, answer = server.post("/v1/chat/completions", asked)
    assert status == 200, answer
    assert len(answer["choices"]) == asked.get("n", 1)
    assert answer["usage"]["completion_tokens"] <= asked["max_tokens"] * len(answer["choices"])


def test_text_that_is_no_text_is_refused(server: RunningServer) -> None:
    for path, field in (("chat/completions", "messages"), ("responses", "input"), ("messages", "messages")):
        body = json.dumps({"model": "stub", field: USER}).encode().replace(b"hi", b"\xff\xfe")
        status, answer = server.post(f"/v1/{path}", body)
        assert status == 400 and "UTF-8" in json.dumps(answer)


def test_a_stop_string_inside_a_call_ends_it_there(server: RunningServer) -> None:
    asked = {"model": "stub", "messages": USER, "tools": [tool()], "tool_choice": "required", "stop": ['"city"']}
    _, answer = server.post("/v1/chat/completions", {**asked, "max_tokens": 200})
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{"
