"""What Ollama's clients are told when something is wrong: statuses and words of theirs."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.server.harness import RunningServer

CHAT = {"model": "stub", "messages": [{"role": "user", "content": "hi"}], "stream": False}
GENERATE = {"model": "stub", "prompt": "hi", "stream": False}
CALL: dict[str, Any] = {"function": {"name": "f", "arguments": {}}}
NO_TOOLS: list[Any] = [{}, {"function": 1}, {"function": {"name": 1}}, {"function": {"name": "f", "parameters": [1]}}]


def chat(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/api/chat", {**CHAT, **more}


def generate(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/api/generate", {**GENERATE, **more}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (chat(model=""), "model is required"),
        (chat(options={"num_ctx": "big"}), 'option "num_ctx" must be of type integer'),
        (chat(format="yaml"), 'invalid format: "yaml"; expected "json" or a valid JSON Schema object'),
        (
            chat(think="very"),
            'invalid think value: "very" (must be "high", "medium", "low", "max", true, or false)',
        ),
        (chat(think=True), '"stub" does not support thinking'),
        (chat(keep_alive="300"), 'time: missing unit in duration "300"'),
        (chat(logprobs=True, top_logprobs=21), "top_logprobs must be between 0 and 20"),
        (generate(raw=True, system="x"), "raw mode does not support template, system, or context"),
        (generate(images=["aGk="]), "stub does not support vision"),
        (generate(suffix="x"), "stub:latest does not support insert"),
        (("/api/embed", {"model": "stub", "input": 5}), "invalid input type"),
        (("/api/pull", {}), "invalid model name"),
        (("/api/show", {}), "model is required"),
        (("/api/copy", {"source": "../x", "destination": "b"}), 'source "../x" is invalid'),
        (("/api/copy", {"source": "a", "destination": "/"}), 'destination "/" is invalid'),
        (chat(messages=[{"role": "assistant", "tool_calls": [CALL | {"id": [1]}]}]), "tool_calls: an id is a string"),
        (chat(messages=[{"role": "assistant", "tool_calls": [{"id": "x"}]}]), "tool_calls: each needs a function"),
        (chat(keep_alive=True), "keep_alive: Unsupported type: 'bool'"),
        (chat(options={"temperature": 10**400}), 'option "temperature" must be of type float32'),
        *((chat(tools=[tool]), "tools: each is a function with a name") for tool in NO_TOOLS),
        (chat(messages=[{"role": "robot", "content": "x"}]), 'invalid role: "robot"'),
    ],
)
def test_bad_requests(server: RunningServer, asked: tuple[str, dict[str, Any]], words: str) -> None:
    status, body = server.post(*asked)
    assert (status, body["error"][: len(words)]) == (400, words)


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"", "missing request body"), (b"{", "invalid request: "), (b"[]", "invalid request: "), (b"\xff", "invalid")],
)
def test_bodies_that_are_none(server: RunningServer, body: bytes, words: str) -> None:
    status, answer = server.post("/api/chat", body)
    assert status == 400
    assert answer["error"].startswith(words)


def test_encoded_bodies_are_named(server: RunningServer) -> None:
    status, answer = server.request("POST", "/api/chat", gzip.compress(b"{}"), Content_Encoding="gzip")
    assert status == 400
    assert "'gzip'" in answer["error"]


def test_any_content_type_will_do(server: RunningServer) -> None:
    status, _ = server.post("/api/show", {"model": "stub"}, content_type="application/x-www-form-urlencoded")
    assert status == 200


def test_wrong_method_and_path(server: RunningServer) -> None:
    assert server.request("GET", "/api/chat")[0] == 405
    assert server.request("GET", "/api/nothing") == (404, "404 page not found")


def test_delete_takes_a_body(server: RunningServer) -> None:
    assert server.request("DELETE", "/api/delete", {"model": "nope"}) == (404, {"error": "model 'nope' not found"})


def test_a_prompt_that_is_too_long_is_cut_and_the_answer_says_so(server: RunningServer) -> None:
    status, body = server.post("/api/generate", {**GENERATE, "raw": True, "prompt": "word " * 400, "options": FEW})
    assert status == 200
    assert body["truncated_tokens"] > 0
    assert body["prompt_eval_count"] < 512


def test_old_messages_are_left_out_and_the_answer_says_so(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "word " * 40}, {"role": "assistant", "content": "yes"}] * 8
    messages.append({"role": "user", "content": "and now?"})
    status, body = server.post("/api/chat", {**CHAT, "messages": messages, "options": FEW})
    assert status == 200
    assert body["truncated_messages"] > 0


FEW = {"num_predict": 3}


@pytest.mark.parametrize("switch", ["truncate", "shift"])
def test_or_it_is_refused(server: RunningServer, switch: str) -> None:
    for body in ({**GENERATE, "raw": True, "prompt": "word " * 400}, {**GENERATE, "prompt": "word " * 400}):
        status, answer = server.post("/api/generate", {**body, switch: False})
        assert status == 400
        assert answer["error"].startswith("the prompt is longer than the context length currently available")
    status, answer = server.post("/api/embed", {"model": "stub", "input": "word " * 400, "truncate": False})
    assert (status, answer) == (400, {"error": "the input length exceeds the context length"})


def test_unknown_options_are_told(server: RunningServer) -> None:
    status, _, headers = server.exchange("POST", "/api/generate", {**GENERATE, "options": {**FEW, "tfs_z": 1}})
    assert status == 200
    assert headers["x-ignored-options"] == "tfs_z"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {**GENERATE, "options": FEW}),
        ("/api/generate", {**GENERATE, "raw": True, "options": FEW}),
        ("/api/generate", {"model": "stub"}),
        ("/api/chat", {**CHAT, "options": FEW}),
        ("/api/embed", {"model": "stub", "input": "a"}),
    ],
)
def test_a_context_that_is_capped_is_told(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    def ask(num_ctx: int) -> tuple[str | None, Any]:
        options = {**body.get("options", {}), "num_ctx": num_ctx}
        status, text, headers = server.exchange("POST", path, {**body, "options": options})
        assert status == 200
        return headers.get("x-capped-options"), json.loads(text).get("capped")

    assert ask(1 << 20) == ("num_ctx=512", None if path == "/api/embed" else {"num_ctx": 512})
    assert ask(256) == (None, None)


@pytest.mark.parametrize("options", [{"num_thread": -3}, {"num_batch": -3}, {"weight_residency": "zzz"}])
def test_load_options_are_checked_whether_the_model_is_loaded_or_not(
    server: RunningServer, options: dict[str, Any]
) -> None:
    (name,) = options
    for keep_alive in (0, "5m"):
        server.post("/api/generate", {"model": "stub", "keep_alive": keep_alive})
        for body in ({**GENERATE, "options": options}, {"model": "stub", "options": options}):
            status, answer = server.post("/api/generate", body)
            assert (status, f'option "{name}" must be' in answer["error"]) == (400, True)


def test_the_bias_of_a_token(server: RunningServer) -> None:
    """Which the stub's choice follows."""
    token = server.post("/api/tokenize", {"model": "stub", "content": "Z"})[1]["tokens"][0]
    options = {**FEW, "temperature": 0, "logit_bias": {str(token): 1000}}
    status, body = server.post("/api/generate", {**GENERATE, "options": options})
    assert (status, body["response"]) == (200, "ZZZ")
    status, body = server.post("/api/generate", {**GENERATE, "options": {"logit_bias": {"Z": 1}}})
    assert (status, body) == (400, {"error": "logit_bias maps token ids to numbers"})


def test_debug_render_only(server: RunningServer) -> None:
    status, body = server.post("/api/chat", {**CHAT, "_debug_render_only": True})
    assert status == 200
    assert "hi" in body["_debug_info"]["rendered_template"]


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/api/chat", {"options": {"temperature": "warm"}}), ("/v1/chat/completions", {"temperature": -1})],
)
def test_the_wrong_option_is_named_in_a_header_whatever_the_dialect(
    server: RunningServer, path: str, asked: dict[str, Any]
) -> None:
    body = {"model": "stub", "messages": [{"role": "user", "content": "Hi"}], **asked}
    status, _, headers = server.exchange("POST", path, body)
    assert (status, headers.get("x-wrong-option")) == (400, "temperature")


def test_push_is_refused(server: RunningServer) -> None:
    assert server.post("/api/push", {"model": "stub"})[0] == 400


def test_copying_what_is_not_there(server: RunningServer) -> None:
    asked = {"source": "nope", "destination": "b"}
    assert server.post("/api/copy", asked) == (404, {"error": 'model "nope" not found'})


def test_what_is_missing_is_named(server: RunningServer) -> None:
    blob = "sha256:" + "a" * 64
    status, answer = server.post("/api/create", {"model": "mine", "files": {"a.gguf": blob}})
    assert (status, answer) == (404, {"error": f"blob {blob} is not here; upload it with POST /api/blobs/{blob}"})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/copy", {"source": "mine", "destination": "stub"}),
        ("POST", "/api/copy", {"source": "stub", "destination": "mine"}),
        ("POST", "/api/create", {"model": "stub", "from": "slow"}),
        ("POST", "/api/pull", {"model": "hf://Org/Repo", "name": "stub:latest"}),
        ("POST", "/api/edit", {"model": "stub", "parameters": {"top_k": 3}}),
        ("DELETE", "/api/delete", {"model": "stub"}),
    ],
)
def test_what_the_configuration_describes_is_changed_there(
    server: RunningServer, method: str, path: str, body: dict[str, Any]
) -> None:
    """And not said to be missing while it is listed, nor hidden behind it under the same name."""
    status, answer = server.request(method, path, body)
    assert status == 400
    assert "the configuration" in answer["error"] and "server.models" in answer["error"]


def test_unloading_looks_at_nothing_else(server: RunningServer) -> None:
    odd = {"images": ["aGk="], "raw": True, "system": "x", "suffix": "x", "format": 5, "options": {"num_ctx": "big"}}
    status, body = server.post("/api/generate", {"model": "stub", "prompt": "", "keep_alive": 0, **odd})
    assert (status, body["done_reason"]) == (200, "unload")
    status, body = server.post("/api/chat", {"model": "stub", "keep_alive": "0s", "format": 5})
    assert (status, body["done_reason"]) == (200, "unload")


@pytest.mark.parametrize(
    ("method", "path", "status", "answer"),
    [
        ("GET", "/api/status", 200, {"cloud": {"disabled": True, "source": "config"}}),
        ("GET", "/api/experimental/model-recommendations", 200, {"recommendations": []}),
        ("POST", "/api/me", 401, {"error": "unauthorized"}),
        ("POST", "/api/signout", 401, {"error": "you are not currently signed in"}),
        ("DELETE", "/api/user/keys/abc", 401, {"error": "you are not currently signed in"}),
    ],
)
def test_there_is_no_cloud(server: RunningServer, method: str, path: str, status: int, answer: Any) -> None:
    assert server.request(method, path) == (status, answer)


@pytest.mark.parametrize("path", ["/api/experimental/web_search", "/api/experimental/web_fetch"])
def test_nothing_is_asked_of_the_web(server: RunningServer, path: str) -> None:
    assert server.post(path, {"query": "x", "url": "x"})[0] == 403
