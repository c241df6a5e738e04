"""Anthropic's own Python client against a real server with stub models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.server.harness import RunningServer

anthropic = pytest.importorskip("anthropic", reason="the clients extra is not installed")

SAID = [{"role": "user", "content": "Hello there"}]
ASK: dict[str, Any] = {"model": "stub", "max_tokens": 12, "messages": SAID}
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}  # newer clients have no parameter for it
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
ADD = {
    "name": "add",
    "description": "Adds two digits",
    "input_schema": {
        "type": "object",
        "properties": {"a": DIGIT, "b": DIGIT},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


# ---- messages


def test_a_message(client: Any) -> None:
    message = client.messages.create(**ASK)
    assert (message.type, message.role, message.model) == ("message", "assistant", "stub")
    assert message.id.startswith("msg_")
    assert text_of(message)
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert message.usage.output_tokens == 12


def test_the_prompt_is_counted_once_read_or_restored(client: Any) -> None:
    said = [{"role": "user", "content": "One thing that nobody has said before in these tests, " * 4}]
    total = client.messages.count_tokens(model="stub", messages=said).input_tokens
    first, second = (client.messages.create(model="stub", max_tokens=4, messages=said).usage for _ in range(2))
    for used in (first, second):
        assert used.input_tokens + used.cache_read_input_tokens + used.cache_creation_input_tokens == total
    assert second.cache_read_input_tokens > first.cache_read_input_tokens
    assert second.input_tokens < total


def test_what_is_marked_for_the_cache_is_counted_as_put_there(client: Any) -> None:
    block = {"type": "text", "text": "Some other thing to keep. " * 12, "cache_control": {"type": "ephemeral"}}
    used = client.messages.create(model="stub", max_tokens=4, messages=[{"role": "user", "content": [block]}]).usage
    assert used.cache_creation_input_tokens > 60
    assert used.input_tokens == 0


def test_the_stream_is_the_same_message(client: Any) -> None:
    whole = client.messages.create(**ASK, **GREEDY)
    with client.messages.stream(**ASK, **GREEDY) as stream:
        shown = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert shown == text_of(last) == text_of(whole)
    assert last.stop_reason == whole.stop_reason
    assert last.usage.output_tokens == 12
    assert last.usage.input_tokens + last.usage.cache_read_input_tokens == whole.usage.input_tokens + (
        whole.usage.cache_read_input_tokens
    )


def test_raw_events_in_order(client: Any) -> None:
    events = list(client.messages.create(**ASK, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    start, delta = events[0].message.usage, events[-2].usage
    assert (start.input_tokens, start.cache_read_input_tokens) == (delta.input_tokens, delta.cache_read_input_tokens)


def test_a_silent_stream_says_ping(server: RunningServer) -> None:
    body = {**ASK, "model": "slow", "stream": True}
    _, text, headers = server.exchange("POST", "/v1/messages", body)
    events = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert headers["content-type"].startswith("text/event-stream")
    assert "ping" in events
    assert next(each for each in events if each != "ping") == "message_start"
    assert events[-1] == "message_stop"


def test_a_stop_sequence(client: Any) -> None:
    whole = text_of(client.messages.create(**ASK, **GREEDY))
    word = whole.split()[2]
    message = client.messages.create(**ASK, **GREEDY, stop_sequences=[word, "never"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)
    assert text_of(message) == whole[: whole.index(word)]


def test_a_prefilled_answer_is_continued(client: Any) -> None:
    begun = [*SAID, {"role": "assistant", "content": "The answer is"}]
    assert text_of(client.messages.create(model="stub", max_tokens=4, messages=begun))


def test_no_tokens_at_all_only_read_the_prompt(client: Any) -> None:
    message = client.messages.create(model="stub", max_tokens=0, messages=SAID)
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)


def test_counting_tokens_counts_all_that_is_read(client: Any) -> None:
    few = client.messages.count_tokens(model="stub", messages=SAID).input_tokens
    more = client.messages.count_tokens(model="stub", messages=SAID, system="Be brief.", tools=[ADD]).input_tokens
    assert 0 < few < more


def test_the_billing_header_of_an_agent_moves_nothing(client: Any) -> None:
    def used(mark: str) -> Any:
        head = f"x-anthropic-billing-header: cc_version=2.1.{mark}; cc_entrypoint=cli; cch={mark};"
        system = [{"type": "text", "text": head}, {"type": "text", "text": "You are an agent. " * 20}]
        return client.messages.create(model="stub", max_tokens=2, system=system, messages=SAID).usage

    first, second = used("7b4"), used("0d9")
    assert second.cache_read_input_tokens > first.cache_read_input_tokens
    assert second.input_tokens == 1  # the last token is always read


# ---- thinking


def test_thinking_within_its_budget(client: Any) -> None:
    with client.messages.stream(
        model="thinker", max_tokens=40, messages=SAID, thinking={"type": "enabled", "budget_tokens": 8}
    ) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking and message.content[0].signature
    assert {"thinking", "signature"} <= set(kinds)
    assert message.usage.output_tokens <= 40


def test_a_thought_comes_back_and_a_changed_one_is_refused(client: Any) -> None:
    asked = {"model": "thinker", "max_tokens": 40, "thinking": {"type": "enabled", "budget_tokens": 8}}
    first = client.messages.create(**asked, messages=SAID)
    turn = [*SAID, first.to_param(), {"role": "user", "content": "And then?"}]
    second = client.messages.create(**asked, messages=turn)
    assert second.usage.cache_read_input_tokens > 0
    first.content[0].thinking += "!"
    with pytest.raises(anthropic.BadRequestError, match="cannot be modified"):
        client.messages.create(**asked, messages=[*SAID, first.to_param(), *SAID])


def test_a_hidden_thought_is_in_its_signature(client: Any) -> None:
    thinking = {"type": "enabled", "budget_tokens": 8, "display": "omitted"}
    message = client.messages.create(model="thinker", max_tokens=40, messages=SAID, thinking=thinking)
    assert (message.content[0].type, message.content[0].thinking) == ("thinking", "")
    turn = [*SAID, message.to_param(), {"role": "user", "content": "And then?"}]
    assert client.messages.create(model="thinker", max_tokens=4, messages=turn).content


def test_without_thinking_nothing_is_thought(client: Any) -> None:
    message = client.messages.create(model="thinker", max_tokens=4, messages=SAID, thinking={"type": "disabled"})
    assert [block.type for block in message.content] == ["text"]


def test_a_model_that_cannot_think_says_so_in_the_head(client: Any) -> None:
    raw = client.messages.with_raw_response.create(**ASK, thinking={"type": "adaptive"})
    assert raw.headers["x-ignored-options"] == "thinking"
    assert text_of(raw.parse())


@pytest.mark.parametrize("stream", [False, True])
def test_citations_are_not_made_and_the_head_says_so(client: Any, stream: bool) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "The sky is blue."}

    def ask(enabled: bool) -> Any:
        document = {"type": "document", "source": source, "citations": {"enabled": enabled}}
        nested = {"type": "search_result", "source": "s", "title": "t", "content": [], "citations": {"enabled": False}}
        said = [{"role": "user", "content": [document, nested, {"type": "text", "text": "Why?"}]}]
        raw = client.messages.with_raw_response.create(**{**ASK, "messages": said}, stream=stream)
        list(raw.parse()) if stream else raw.parse()
        return raw.headers.get("x-ignored-options")

    assert (ask(True), ask(False)) == ("citations", None)


# ---- tools and forms


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_a_required_call_is_valid(client: Any, choice: dict[str, Any]) -> None:
    choice = choice | {"disable_parallel_tool_use": True}
    message = client.messages.create(model="stub", max_tokens=200, messages=SAID, tools=[ADD], tool_choice=choice)
    (use,) = message.content
    assert (use.type, use.name, message.stop_reason) == ("tool_use", "add", "tool_use")
    assert sorted(use.input) == ["a", "b"]
    assert all(value in range(10) for value in use.input.values())


def test_a_streamed_call_is_the_same(client: Any) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(model="stub", max_tokens=200, messages=SAID, tools=[ADD], tool_choice=choice) as stream:
        partial = "".join(event.partial_json for event in stream if event.type == "input_json")
        (use,) = stream.get_final_message().content
    assert json.loads(partial) == use.input


def test_the_tool_loop(client: Any) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    asked = {"model": "stub", "max_tokens": 200, "tools": [ADD], "tool_choice": choice}
    said: list[Any] = list(SAID)
    read = []
    for _ in range(3):
        message = client.messages.create(**asked, messages=said)
        read.append(message.usage.input_tokens)
        use = message.content[0]
        result = {"type": "tool_result", "tool_use_id": use.id, "content": str(use.input["a"] + use.input["b"])}
        said += [message.to_param(), {"role": "user", "content": [result]}]
    assert client.messages.create(**asked | {"tool_choice": {"type": "none"}}, messages=said).content
    assert max(read[1:]) < 100, "only what is new is read"


def test_the_clients_own_tool_runner(client: Any) -> None:
    asked: list[str] = []

    @anthropic.beta_tool
    def weather(city: Literal["Bern", "Basel"]) -> str:
        """Tells the weather.

        Args:
            city: Where.
        """
        asked.append(city)
        return "rain"

    runner = client.beta.messages.tool_runner(
        model="stub",
        max_tokens=400,
        messages=SAID,
        tools=[weather],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_iterations=2,
    )
    messages = list(runner)
    assert len(messages) == 2
    assert asked and set(asked) <= {"Bern", "Basel"}


def test_an_output_format(client: Any) -> None:
    form = {"type": "json_schema", "schema": ADD["input_schema"]}
    message = client.messages.create(model="stub", max_tokens=200, messages=SAID, output_config={"format": form})
    assert sorted(json.loads(text_of(message))) == ["a", "b"]


def test_the_beta_route_reports_that_no_edits_were_made(client: Any) -> None:
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    message = client.beta.messages.create(**ASK, context_management=edits, betas=["context-management-2025-06-27"])
    assert message.context_management.applied_edits == []


# ---- errors


def test_an_unknown_model(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**ASK | {"model": "nope"})
    assert caught.value.type == "not_found_error"
    assert caught.value.request_id == caught.value.body["request_id"]


def test_a_prompt_that_is_too_long(client: Any) -> None:
    asked = {"model": "slow", "max_tokens": 4, "messages": [{"role": "user", "content": "word " * 2000}]}
    words = r"prompt is too long: \d+ tokens > 512 maximum"
    with pytest.raises(anthropic.BadRequestError, match=words):
        client.messages.create(**asked)
    with pytest.raises(anthropic.APIStatusError, match=words):  # of the answer, or of an event behind a ping
        list(client.messages.create(**asked, stream=True))


@pytest.mark.parametrize(
    "fields", [{"max_tokens": None}, {"temperature": 3}, {"extra": 1}, {"thread": {"type": "create"}}]
)
def test_a_wrong_request(server: RunningServer, fields: dict[str, Any]) -> None:
    status, body = server.post("/v1/messages", ASK | fields)
    assert (status, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert body["request_id"].startswith("req_")


def test_keys(root: Path) -> None:
    with RunningServer(root, api_keys=("sk-secret-1",)) as server:
        with anthropic.Anthropic(base_url=server.url, api_key="sk-wrong-22", max_retries=0) as wrong:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                wrong.messages.create(**ASK)
            assert caught.value.type == "authentication_error"
        with anthropic.Anthropic(base_url=server.url, api_key="sk-secret-1", max_retries=0) as right:
            assert right.messages.create(**ASK).content


# ---- asynchronous


async def test_asynchronous(server: RunningServer) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        whole = await client.messages.create(**ASK, **GREEDY)
        async with client.messages.stream(**ASK, **GREEDY) as stream:
            shown = "".join([text async for text in stream.text_stream])
        assert shown == text_of(whole)
        assert (await client.messages.count_tokens(model="stub", messages=SAID)).input_tokens > 0
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(**ASK | {"model": "nope"})
