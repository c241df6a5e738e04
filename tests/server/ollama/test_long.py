"""Too little context, as Ollama handles it and with what it does not say: what was left out, and what was given up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.anthropic.conftest import THINKING_TEMPLATE
from tests.server.harness import RunningServer

N_CTX = 128
MODELS = {
    "stub": {"backend": "stub", "context_opts": {"n_ctx": N_CTX}},
    "thinker": {"backend": "stub", "context_opts": {"n_ctx": 1024}, "template": THINKING_TEMPLATE},
}
RAW = {"model": "stub", "prompt": "x" * 100, "raw": True, "stream": False}
TOO_LONG = "the prompt is longer than the context length currently available"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("long"), models=MODELS) as running:
        yield running


def ask(server: RunningServer, path: str, body: dict[str, Any], **options: Any) -> dict[str, Any]:
    status, answer = server.post(path, {"stream": False, **body, "options": {"temperature": 0, **options}})
    assert status == 200, answer
    return dict(answer)


def test_an_answer_goes_on_when_the_context_is_full(server: RunningServer) -> None:
    answer = ask(server, "/api/generate", RAW, num_predict=300)
    assert (answer["eval_count"], answer["done_reason"]) == (300, "length")
    assert answer["shifted_tokens"] > 100
    _, lines, _ = server.exchange(
        "POST", "/api/generate", {**RAW, "stream": True, "options": {"temperature": 0, "num_predict": 300}}
    )
    pieces = [json.loads(line) for line in lines.splitlines()]
    assert "".join(piece["response"] for piece in pieces) == answer["response"]


def test_without_shift_it_ends_there(server: RunningServer) -> None:
    answer = ask(server, "/api/generate", {**RAW, "shift": False}, num_predict=300)
    assert answer["prompt_eval_count"] + answer["eval_count"] == N_CTX + 1
    assert answer["done_reason"] == "length"
    assert "shifted_tokens" not in answer


def test_an_answer_without_an_end_has_one(server: RunningServer) -> None:
    answer = ask(server, "/api/generate", RAW, ignore_eos=True)
    assert (answer["eval_count"], answer["done_reason"]) == (10 * N_CTX, "length")


@pytest.mark.parametrize(
    "path_and_body",
    [
        ("/api/chat", {"model": "stub", "messages": [{"role": "user", "content": "y" * 300}]}),
        ("/api/generate", {"model": "stub", "prompt": "y" * 300}),
        ("/api/generate", {**RAW, "prompt": "y" * 300}),
    ],
)
def test_one_text_that_is_too_long_loses_its_middle(
    server: RunningServer, path_and_body: tuple[str, dict[str, Any]]
) -> None:
    path, body = path_and_body
    answer = ask(server, path, body, num_predict=3)
    assert answer["truncated_tokens"] > 100
    assert answer["prompt_eval_count"] < N_CTX
    for switch in ("truncate", "shift"):
        status, refused = server.post(path, {**body, switch: False})
        assert (status, refused["error"][: len(TOO_LONG)]) == (400, TOO_LONG)


def test_old_messages_go_first_whatever_shift_says(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "word " * 10}, {"role": "assistant", "content": "yes"}] * 4
    body = {"model": "stub", "messages": [*messages, {"role": "user", "content": "and now?"}], "shift": False}
    answer = ask(server, "/api/chat", body, num_predict=3)
    assert answer["truncated_messages"] > 0
    assert "truncated_tokens" not in answer


def test_num_keep_says_how_much_of_the_beginning_stays(server: RunningServer) -> None:
    body = {"model": "stub", "prompt": "abcdefghij" * 30, "template": "{{ .Prompt }}"}
    for keep, stays in ((0, 0), (20, 20), (-1, N_CTX // 4)):
        context = ask(server, "/api/generate", body, num_predict=1, num_keep=keep)["context"]
        whole = ask(server, "/api/generate", {**body, "prompt": "abcdefghij" * 10}, num_predict=1)["context"]
        same = next(at for at, (a, b) in enumerate(zip(context, whole, strict=False)) if a != b)
        assert same >= stays


def test_behind_an_earlier_context_all_is_as_without(server: RunningServer) -> None:
    """The form holds, and begins behind the thought; a thought is no part of the response."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    body = {"model": "thinker", "prompt": "Hello", "format": {**schema, "additionalProperties": False}}
    context = ask(server, "/api/generate", {**body, "think": False}, num_predict=100)["context"]
    answer = ask(server, "/api/generate", {**body, "think": False, "context": context}, num_predict=100)
    assert set(json.loads(answer["response"])) == {"a"}
    assert answer["prompt_eval_count"] > len(context)
    assert answer["context"][: len(context)] == context
    thought = ask(server, "/api/generate", {**body, "think": True, "context": context}, num_predict=20)
    assert thought["thinking"] and not thought["response"]
