"""Ollama's own Python client against a real server with stub models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.harness import RunningServer

ollama = pytest.importorskip("ollama", reason="the clients extra is not installed")

OPTIONS = {"num_predict": 12, "seed": 1, "temperature": 0}
ASK = [{"role": "user", "content": "Hello there"}]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Any]:
    with ollama.Client(host=server.url) as one:
        yield one


def test_chat(client: Any) -> None:
    done = client.chat(model="stub", messages=ASK, options=OPTIONS)
    assert done.message.role == "assistant"
    assert done.message.content
    assert (done.done, done.done_reason) == (True, "length")
    assert done.eval_count == 12
    assert done.prompt_eval_count > 0
    assert done.total_duration >= done.eval_duration > 0


def test_chat_streamed_is_the_same_text(client: Any) -> None:
    pieces = list(client.chat(model="stub", messages=ASK, options=OPTIONS, stream=True))
    whole = client.chat(model="stub", messages=ASK, options=OPTIONS)
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_generate(client: Any) -> None:
    done = client.generate(model="stub", prompt="Once", options=OPTIONS)
    assert done.response
    assert done.context, "the tokens of prompt and answer"
    again = client.generate(model="stub", prompt="and then", options=OPTIONS, context=done.context)
    assert again.prompt_eval_count > len(done.context)


def test_generate_raw(client: Any) -> None:
    done = client.generate(model="stub", prompt="Once", raw=True, options=OPTIONS)
    assert done.prompt_eval_count <= 5
    assert done.context is None


def test_generate_streamed(client: Any) -> None:
    pieces = list(client.generate(model="stub", prompt="Once", options=OPTIONS, stream=True))
    whole = client.generate(model="stub", prompt="Once", options=OPTIONS)
    assert "".join(piece.response for piece in pieces) == whole.response


def test_logprobs(client: Any) -> None:
    done = client.generate(model="stub", prompt="Once", options=OPTIONS, logprobs=True, top_logprobs=3)
    assert len(done.logprobs) == 12
    assert all(len(each.top_logprobs) == 3 and each.logprob <= 0 for each in done.logprobs)


def test_format_json(client: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    done = client.chat(model="stub", messages=ASK, format=schema, options={"num_predict": 200, "seed": 1})
    assert done.message.content.replace(" ", "").replace("\n", "") in ('{"a":"x"}', '{"a":"y"}')


def test_load_and_unload(client: Any, server: RunningServer) -> None:
    done = client.generate(model="stub", prompt="", keep_alive="1h")
    assert (done.done_reason, done.response) == ("load", "")
    (running,) = [each for each in client.ps().models if each.model == "stub:latest"]
    assert running.context_length == 512
    assert (running.expires_at - done_at(done)).total_seconds() == pytest.approx(3600, abs=60)
    done = client.chat(model="stub", messages=[], keep_alive=0)
    assert done.done_reason == "unload"
    assert "stub:latest" not in {each.model for each in client.ps().models}


def done_at(done: Any) -> Any:
    from datetime import datetime

    return datetime.fromisoformat(done.created_at)


def test_held_for_ever(client: Any) -> None:
    client.generate(model="stub", prompt="", keep_alive=-1)
    (running,) = [each for each in client.ps().models if each.model == "stub:latest"]
    assert running.expires_at.year > 2126
    client.generate(model="stub", prompt="", keep_alive="5m")


def test_unloading_what_is_not_loaded(client: Any) -> None:
    assert client.generate(model="slow", prompt="", keep_alive=0).done_reason == "unload"


def test_embed(client: Any) -> None:
    done = client.embed(model="stub", input=["one", "two"])
    assert len(done.embeddings) == 2
    assert sum(value * value for value in done.embeddings[0]) == pytest.approx(1, abs=1e-3)
    assert client.embed(model="stub", input="one").embeddings[0] == pytest.approx(done.embeddings[0])
    short = client.embed(model="stub", input="one", dimensions=8)
    assert len(short.embeddings[0]) == 8
    assert client.embed(model="stub", input=[]).embeddings == []
    assert client.embed(model="stub", input="").embeddings == []


def test_embeddings(client: Any) -> None:
    assert len(client.embeddings(model="stub", prompt="one").embedding) > 0
    assert list(client.embeddings(model="stub", prompt="").embedding) == []


def test_list_and_show(client: Any) -> None:
    assert {each.model for each in client.list().models} == {"stub:latest", "slow:latest"}
    shown = client.show("stub")
    assert shown.modelfile.startswith("# Modelfile of stub:latest")
    assert shown.modelinfo == {}
    assert "completion" in shown.capabilities


def test_unknown_models(client: Any) -> None:
    for ask in (
        lambda: client.chat(model="nope", messages=ASK),
        lambda: client.generate(model="nope", prompt="x"),
        lambda: client.show("nope"),
        lambda: client.delete("nope"),
    ):
        with pytest.raises(ollama.ResponseError) as caught:
            ask()
        assert (caught.value.status_code, caught.value.error) == (404, "model 'nope' not found")
    with pytest.raises(ollama.ResponseError) as caught:
        client.embed(model="nope", input="x")
    assert caught.value.error == 'model "nope" not found, try pulling it first'


def test_a_stream_that_fails_before_its_first_piece_has_the_status(client: Any) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        list(client.chat(model="nope", messages=ASK, stream=True))
    assert caught.value.status_code == 404


def test_tools_come_back_as_calls_or_text(client: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    done = client.chat(model="stub", messages=ASK, tools=[tool], options=OPTIONS)
    assert done.done


async def test_async_client(server: RunningServer) -> None:
    client = ollama.AsyncClient(host=server.url)
    try:
        pieces = [piece async for piece in await client.chat(model="stub", messages=ASK, options=OPTIONS, stream=True)]
    finally:
        await client._client.aclose()
    assert pieces[-1].done
