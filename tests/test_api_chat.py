"""``chat`` and ``chat_stream`` of the Python API against a real worker with the stub backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import barrel_inference as bi
from barrel_inference.aio import AsyncModel
from barrel_inference.aio.chat import AsyncChatStream
from barrel_inference.chat.events import CallArguments, CallEnded, CallStarted, Content, Finished, Reasoning
from barrel_inference.errors import InvalidRequestError, UnsupportedError
from barrel_inference.types import Message

ASK = [{"role": "user", "content": "Name three rivers."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
        },
    },
}
THINKER = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is not defined or enable_thinking %}<think>\n"
    "{% else %}<think></think>{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bi.Model]:
    config = bi.RuntimeConfig(ram_dir=str(tmp_path_factory.mktemp("ram")))
    with bi.Runtime(config) as runtime:
        yield runtime.load_model("stub", backend="stub", context_opts={"n_seq_max": 2, "n_ctx": 4096})


def test_an_answer_goes_to_the_end_of_the_conversation(model: bi.Model) -> None:
    first = model.chat(ASK, max_tokens=60, seed=1)
    assert first.message.role == "assistant"
    assert first.content == first.completion.text != ""
    assert (first.reasoning, first.tool_calls, first.finish_reason) == ("", (), "length")
    assert first.usage.completion_tokens == 60
    second = model.chat([*ASK, first.message, {"role": "user", "content": "And lakes?"}], max_tokens=4, seed=1)
    sampled = first.completion.prompt_tokens + first.completion.tokens
    assert second.completion.prompt_tokens[: len(sampled)] == sampled
    assert second.usage.cached_tokens >= len(sampled) - 1


def test_the_stream_says_what_the_answer_says(model: bi.Model) -> None:
    whole = model.chat(ASK, max_tokens=12, seed=3)
    stream = model.chat_stream(ASK, max_tokens=12, seed=3)
    events = list(stream)
    assert "".join(event.text for event in events if isinstance(event, Content)) == whole.content
    assert isinstance(events[-1], Finished) and events[-1].message == whole.message
    assert stream.result().message == whole.message


def test_a_required_call_is_valid(model: bi.Model) -> None:
    events = list(
        model.chat_stream(ASK, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200, seed=1)
    )
    kinds = [type(event) for event in events]
    assert kinds[0] is CallStarted and CallArguments in kinds and CallEnded in kinds
    assert isinstance(events[-1], Finished) and events[-1].reason == "tool_calls"
    answer = model.chat(ASK, tools=[TOOL], tool_choice="weather", max_tokens=200, seed=1)
    assert answer.finish_reason == "tool_calls"
    (call, *_) = answer.tool_calls
    assert call["function"]["name"] == "weather"
    assert list(json.loads(call["function"]["arguments"])) == ["city"]


def test_a_call_that_comes_back_is_the_tokens_that_were_written(model: bi.Model) -> None:
    first = model.chat(ASK, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200, seed=5)
    respelled = [{**call, "function": {"name": "weather", "arguments": "{}"}} for call in first.tool_calls]
    results = [{"role": "tool", "content": "rain", "tool_call_id": call["id"]} for call in respelled]
    turn: list[Any] = [*ASK, {"role": "assistant", "tool_calls": respelled}, *results]
    second = model.chat(turn, tools=[TOOL], max_tokens=4, seed=1)
    sampled = first.completion.prompt_tokens + first.completion.tokens
    assert second.completion.prompt_tokens[: len(sampled)] == sampled


def test_thoughts_come_apart_and_end_with_their_budget(model: bi.Model) -> None:
    options: dict[str, Any] = {"chat_template": THINKER, "max_tokens": 40, "seed": 1}
    free = model.chat(ASK, **options)
    assert free.reasoning and not free.content
    events = list(model.chat_stream(ASK, think_budget=5, **options))
    thought = "".join(event.text for event in events if isinstance(event, Reasoning))
    assert thought and free.reasoning.startswith(thought.strip())
    answer = model.chat(ASK, think_budget=5, **options)
    assert (answer.reasoning, bool(answer.content)) == (thought, True)
    assert model.chat(ASK, think=False, **options).reasoning == ""


def test_the_answer_has_the_wanted_form(model: bi.Model) -> None:
    choice = model.chat(ASK, choices=["Rhine", "Elbe"], max_tokens=20, seed=1)
    assert choice.content in ("Rhine", "Elbe")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    closed = {**schema, "additionalProperties": False}
    options: dict[str, Any] = {"think_budget": 3, "chat_template": THINKER}
    thought = model.chat(ASK, json_schema=closed, max_tokens=100, seed=2, **options)
    assert thought.reasoning and thought.content.lstrip().startswith("{")


def test_several_answers_to_one_question(model: bi.Model) -> None:
    answer = model.chat(ASK, n=2, max_tokens=6, seed=1)
    (other,) = answer.others
    assert answer.content == model.chat(ASK, max_tokens=6, seed=1).content
    assert other.content and other.content != answer.content


def test_the_prompt_can_be_seen(model: bi.Model) -> None:
    text = model.apply_template(ASK)
    assert text.endswith("<|im_start|>assistant\n") and "Name three rivers." in text
    assert "weather" in model.apply_template(ASK, tools=[TOOL])
    begun = [*ASK, {"role": "assistant", "content": "The Rhine,"}]
    assert model.apply_template(begun, continue_final_message=True).endswith("The Rhine,")


@pytest.mark.parametrize(
    ("messages", "options", "named"),
    [
        ([], {}, "at least one message"),
        ([{"content": "x"}], {}, "a role"),
        ([{"role": "usr", "content": "x"}], {}, "role .usr. is not allowed: expected one of system"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}], {}, "tool call"),
        ([{"role": "assistant", "tool_calls": ["f"]}], {}, "tool call"),
        ([{"role": "assistant", "tool_calls": 5}], {}, "tool calls"),
        ([{"role": "assistant", "tool_calls": [{"id": [], "function": {"name": "f"}}]}], {}, "tool call"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": {5}}}}]}],
            {},
            "messages must be JSON",
        ),
        *(([{"role": "user", "content": wrong}], {}, "content") for wrong in (True, 5, b"x", {"a": 1}, ["x"], [None])),
        ([{"role": "user", "content": [{"type": "text"}]}], {}, "content"),
        ([Message(role="user", content=5)], {}, "content"),  # type: ignore[arg-type]
        ([{"role": "tool", "content": "x", "tool_call_id": 5}], {}, "tool_call_id"),
        ([{"role": "user", "content": "x", "name": ["y"]}], {}, "name"),
        ([{"role": "assistant", "content": "x", "reasoning_content": 5}], {}, "reasoning_content"),
        ([{"role": "user", "content": "x", "when": object()}], {}, "messages must be JSON"),
        (ASK, {"tools": [{"function": {}}]}, "a tool"),
        (ASK, {"tools": ["weather"]}, "tools"),
        (ASK, {"tools": [{"function": {"name": "f", "parameters": {"a": {5}}}}]}, "tools must be JSON"),
        (ASK, {"tools": [{"function": {"name": "f", "parameters": {5: 1, "a": 2}}}]}, "tools must be JSON"),
        (ASK, {"template": {"a": {(1, 2): 3}}}, "template must be JSON"),
        (ASK, {"documents": [{"a": {5: 1, "a": 2}}]}, "documents must be JSON"),
        (ASK, {"tools": [{"function": {"name": 'a", "b'}}]}, "tool's name"),
        (ASK, {"tools": [{"function": {"name": "a\nb"}}]}, "tool's name"),
        (ASK, {"tool_choice": ""}, "tool_choice"),
        (ASK, {"tool_choice": "nonsense", "tools": [TOOL]}, "nonsense"),
        (ASK, {"tool_choice": "required"}, "requires a tool"),
        (ASK, {"think": "much"}, "think"),
        (ASK, {"thinking": True}, "did you mean 'think'"),
        (ASK, {"template": 5}, "template"),
        (ASK, {"regex": "a", "choices": ["b"]}, "at most one"),
        (ASK, {"temperature": -1}, "temperature"),
        ([{"role": "user", "content": "a\ud800"}], {}, "surrogate"),
    ],
)
def test_what_is_wrong_is_one_typed_error(model: bi.Model, messages: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        model.chat(messages, **options)


def test_a_message_may_be_any_mapping(model: bi.Model) -> None:
    frozen = MappingProxyType({"name": "f", "arguments": MappingProxyType({"a": 1})})
    calls = (MappingProxyType({"function": frozen}),)
    parts = (MappingProxyType({"type": "text", "text": "Name three rivers."}),)
    said = [{"role": "user", "content": parts}, MappingProxyType({"role": "assistant", "tool_calls": calls})]
    assert "Name three rivers." in model.apply_template(said)


def test_a_model_that_cannot_think_says_so(model: bi.Model) -> None:
    with pytest.raises(UnsupportedError, match="does not support thinking"):
        model.chat(ASK, think=True)


def test_given_markers_are_those_of_the_model(tmp_path: Path) -> None:
    """The template knows neither thoughts nor tools; who gives marks says that the model does."""
    marks: dict[str, Any] = {"thinking_markers": ("<t>", "</t>"), "tool_call_markers": ("<call>", "</call>")}
    with bi.Runtime(bi.RuntimeConfig(ram_dir=str(tmp_path))) as runtime:
        _use_markers(runtime.load_model(backend="stub", **marks))


def _use_markers(marked: bi.Model) -> None:
    plain = marked.apply_template(ASK)
    assert marked.chat(ASK, think=True, max_tokens=5).completion.tokens
    assert marked.apply_template(ASK, think=True, choices=["yes"]) == f"{plain}<t>\n"
    assert marked.apply_template(ASK, think=False) == f"{plain}<t>\n\n</t>\n\n"
    assert "<call>" in marked.apply_template(ASK, tools=[TOOL])
    answer = marked.chat(ASK, think=True, choices=["yes"], think_budget=3)
    assert answer.message.reasoning_content and answer.message.content == "yes"


async def test_cancelling_and_leaving_stop_the_work(tmp_path: Path) -> None:
    async with bi.AsyncRuntime(bi.RuntimeConfig(ram_dir=str(tmp_path))) as runtime:
        slow = await runtime.load_model(backend="stub", stub={"delay_ms": 5}, context_opts={"n_ctx": 100_000})
        options: dict[str, Any] = {"max_tokens": 50_000, "ignore_eos": True}
        stream = slow.chat_stream(ASK, **options)
        await anext(stream)
        stream.cancel()
        assert (await stream.result()).finish_reason == "cancelled"
        early = slow.chat_stream(ASK, **options)
        early.cancel()
        assert (await early.result()).finish_reason == "cancelled"
        async with slow.chat_stream(ASK, **options) as left:
            await anext(left)
        assert (await slow.chat(ASK, max_tokens=1, timeout_s=60)).finish_reason == "length"


async def test_a_cancelled_thought_is_not_followed_by_an_answer(tmp_path: Path) -> None:
    async with bi.AsyncRuntime(bi.RuntimeConfig(ram_dir=str(tmp_path))) as runtime:
        model = await runtime.load_model(backend="stub", stub={"delay_ms": 5}, context_opts={"n_ctx": 100_000})
        for position in (1, 4):
            found = await _cancelled_after(model, position)
            assert isinstance(found[-1], Finished) and found[-1].reason == "cancelled"


async def _cancelled_after(model: AsyncModel, count: int) -> list[bi.events.Event]:
    stream: AsyncChatStream = model.chat_stream(
        ASK, chat_template=THINKER, think_budget=3, max_tokens=50_000, ignore_eos=True
    )
    found: list[bi.events.Event] = []
    async with asyncio.timeout(60):
        async for event in stream:
            found.append(event)
            if len(found) == count:
                stream.cancel()
    return found
