"""OpenAI's own Python client against a real server with stub models: every method that applies."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.server.harness import RunningServer

openai = pytest.importorskip("openai", reason="the clients extra is not installed")

ASK = [{"role": "user", "content": "Hello there"}]
GREEDY: dict[str, Any] = {"temperature": 0, "seed": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = {name: {"backend": "stub", "context_opts": {"n_ctx": 512}} for name in ("stub", "ending")}
    models["ending"]["stub"] = {"eog_every": 8}
    with RunningServer(tmp_path_factory.mktemp("openai"), models=models) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as one:
        yield one


@pytest.fixture
async def async_client(server: RunningServer) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as one:
        yield one


def chat(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": "stub", "messages": ASK, "max_tokens": 8, **GREEDY, **options})


def test_models(client: Any) -> None:
    names = [model.id for model in client.models.list()]
    assert "stub:latest" in names
    assert client.models.retrieve("stub").id == "stub:latest"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_chat(client: Any) -> None:
    done = chat(client)
    assert done.choices[0].message.role == "assistant"
    assert done.choices[0].message.content
    assert done.choices[0].finish_reason == "length"
    assert done.usage.completion_tokens == 8
    assert done.usage.total_tokens == done.usage.prompt_tokens + 8


def test_a_stream_says_what_the_whole_answer_says(client: Any) -> None:
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage.completion_tokens == 8
    assert chunks[-1].choices == []


def test_the_stream_helper(client: Any) -> None:
    with client.chat.completions.stream(model="ending", messages=ASK, **GREEDY) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done"} <= kinds
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].message.content == chat(client, model="ending", max_tokens=None).choices[0].message.content


async def test_asynchronously(async_client: Any, client: Any) -> None:
    whole = await async_client.chat.completions.create(model="stub", messages=ASK, max_tokens=8, **GREEDY)
    assert whole.choices[0].message.content == chat(client).choices[0].message.content
    stream = await async_client.chat.completions.create(model="stub", messages=ASK, max_tokens=8, stream=True, **GREEDY)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == whole.choices[0].message.content


async def test_all_else_asynchronously(async_client: Any, client: Any) -> None:
    """As the blocking client has it."""
    assert [each.id async for each in async_client.models.list()] == [each.id for each in client.models.list()]
    assert (await async_client.models.retrieve("stub")).id == "stub:latest"
    asked: dict[str, Any] = {"model": "stub", "prompt": "Once", "max_tokens": 6, **GREEDY}
    whole = await async_client.completions.create(**asked)
    pieces = [piece async for piece in await async_client.completions.create(**asked, stream=True)]
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    vectors = await async_client.embeddings.create(model="stub", input=["a"])
    assert vectors.data[0].embedding == client.embeddings.create(model="stub", input=["a"]).data[0].embedding
    async with async_client.chat.completions.stream(model="ending", messages=ASK, **GREEDY) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == chat(client, model="ending", max_tokens=None).choices[0].message.content
    async with async_client.responses.stream(model="ending", input="Hello", temperature=0) as stream:
        response = await stream.get_final_response()
    assert (await async_client.responses.retrieve(response.id)).output_text == response.output_text
    await async_client.responses.delete(response.id)


async def test_parsed_answers(async_client: Any, client: Any) -> None:
    pydantic = pytest.importorskip("pydantic", reason="the clients extra is not installed")
    yes = pydantic.create_model("Yes", ok=(bool, ...))
    asked: dict[str, Any] = {"model": "stub", "messages": ASK, "response_format": yes, **GREEDY}
    assert client.chat.completions.parse(**asked).choices[0].message.parsed.ok in (True, False)
    assert (await async_client.chat.completions.parse(**asked)).choices[0].message.parsed.ok in (True, False)
    assert client.responses.parse(model="stub", input="x", text_format=yes).output_parsed.ok in (True, False)


def test_a_second_turn_is_cached(client: Any) -> None:
    first = chat(client)
    talk = [
        *ASK,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And?"},
    ]
    second = chat(client, messages=talk)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def test_several_answers_with_log_probabilities(client: Any) -> None:
    done = chat(client, n=2, temperature=1, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in done.choices] == [0, 1]
    for choice in done.choices:
        assert len(choice.logprobs.content) == 8
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
        written = b"".join(bytes(token.bytes) for token in choice.logprobs.content)
        assert written.decode(errors="replace") == choice.message.content


def test_stop_strings(client: Any) -> None:
    words = chat(client, max_tokens=16).choices[0].message.content
    stop = words.split()[3]
    done = chat(client, max_tokens=16, stop=stop)
    assert done.choices[0].finish_reason == "stop"
    assert stop not in done.choices[0].message.content
    assert words.startswith(done.choices[0].message.content)


def test_errors_have_types(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        chat(client, model="nothing")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        chat(client, temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        chat(client, messages=[{"role": "user", "content": "word " * 5000}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="unknown field") as unknown:
        chat(client, extra_body={"no_such_parameter": 1})
    assert unknown.value.param == "no_such_parameter"
    with pytest.raises(openai.BadRequestError) as typed:
        chat(client, messages=[{"role": "user", "content": 1}])
    assert typed.value.param == "messages[0].content"


def test_completions(client: Any, server: RunningServer) -> None:
    one = client.completions.create(model="stub", prompt="Once", max_tokens=5, **GREEDY)
    assert one.choices[0].text
    echoed = client.completions.create(model="stub", prompt="Once", max_tokens=5, echo=True, **GREEDY)
    assert echoed.choices[0].text == "Once" + one.choices[0].text
    _, found = server.post("/api/tokenize", {"model": "stub", "content": "Once", "add_special": False})
    echoed = client.completions.create(model="stub", prompt=found["tokens"], max_tokens=0, echo=True, **GREEDY)
    assert echoed.choices[0].text == "Once"
    many = client.completions.create(model="stub", prompt=["Once", "Twice"], max_tokens=5, n=2, **GREEDY)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == one.choices[0].text
    assert many.usage.completion_tokens == 20


def test_a_completion_stream(client: Any) -> None:
    whole = client.completions.create(model="stub", prompt="Once", max_tokens=5, **GREEDY)
    chunks = client.completions.create(model="stub", prompt="Once", max_tokens=5, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_a_completion_of_tokens_with_log_probabilities(client: Any, server: RunningServer) -> None:
    _, found = server.post("/api/tokenize", {"model": "stub", "content": "Once", "add_special": True})
    tokens = found["tokens"]
    same = client.completions.create(model="stub", prompt=tokens, max_tokens=5, logprobs=2, **GREEDY)
    assert (
        same.choices[0].text
        == client.completions.create(model="stub", prompt="Once", max_tokens=5, **GREEDY).choices[0].text
    )
    shown = same.choices[0].logprobs
    assert len(shown.tokens) == len(shown.token_logprobs) == len(shown.text_offset) == 5
    assert shown.text_offset[0] == 0


def test_embeddings(client: Any) -> None:
    floats = client.embeddings.create(model="stub", input=["a", "b"], encoding_format="float")
    assert [each.index for each in floats.data] == [0, 1]
    packed = client.embeddings.create(model="stub", input="a")  # base64 behind the client's back
    assert packed.data[0].embedding == pytest.approx(floats.data[0].embedding)
    raw = client.embeddings.with_raw_response.create(model="stub", input="a", encoding_format="base64").http_response
    decoded = base64.b64decode(raw.json()["data"][0]["embedding"])
    assert struct.unpack(f"<{len(decoded) // 4}f", decoded) == pytest.approx(floats.data[0].embedding)
    short = client.embeddings.create(model="stub", input="a", dimensions=30).data[0].embedding
    assert len(short) == 30 and sum(value * value for value in short) == pytest.approx(1)
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="stub", input="a", dimensions=100_000)
    assert caught.value.param == "dimensions"


def test_responses(client: Any) -> None:
    first = client.responses.create(model="stub", input="Hello", max_output_tokens=6, temperature=0)
    assert first.status == "incomplete" and first.output_text
    second = client.responses.create(
        model="stub", input="And?", previous_response_id=first.id, max_output_tokens=6, temperature=0
    )
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    items = client.responses.input_items.list(second.id).data
    assert [item.content[0].text for item in items] == ["And?"]
    with pytest.raises(openai.BadRequestError, match="stream"):
        client.responses.retrieve(first.id, stream=True)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_the_input_of_a_response_page_by_page(client: Any) -> None:
    said = [{"role": "user", "content": f"{number}"} for number in range(5)]
    done = client.responses.create(model="stub", input=said, max_output_tokens=1)
    for order, expected in (("asc", "01234"), ("desc", "43210")):
        listed = client.responses.input_items.list(done.id, limit=2, order=order)
        assert len(listed.data) == 2
        assert "".join(item.content[0].text for item in listed) == expected, "the client turns the pages"
    for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "nothing"}):
        with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
            client.responses.input_items.list(done.id, **wrong)


def test_a_response_that_is_not_stored(client: Any) -> None:
    done = client.responses.create(model="stub", input="Hello", max_output_tokens=4, store=False)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="stub", input="x", previous_response_id=done.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_a_response_stream(client: Any) -> None:
    asked: dict[str, Any] = {"model": "ending", "input": "Hello", "temperature": 0}
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == final.output_text == client.responses.create(**asked).output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_a_response_asynchronously(async_client: Any) -> None:
    stream = await async_client.responses.create(model="stub", input="Hello", max_output_tokens=4, stream=True)
    kinds = [event.type async for event in stream]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.incomplete")


def test_tokens_of_a_response_can_be_counted(client: Any) -> None:
    counted = client.responses.input_tokens.count(model="stub", input="Hello")
    done = client.responses.create(model="stub", input="Hello", max_output_tokens=1)
    assert counted.input_tokens == done.usage.input_tokens
