"""One chat request on one model, without a worker: events, budgets of thinking, prompts that do not fit."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self, cast

import pytest

from barrel_inference.aio import AsyncModel
from barrel_inference.chat.events import Content, Finished, Reasoning
from barrel_inference.errors import InvalidRequestError
from barrel_inference.server import chat
from barrel_inference.server.neutral import ChatRequest
from barrel_inference.types import CacheReport, Chunk, Completion, Constraint, Message, ModelInfo, TokenLogprob, Usage

THINKER = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is not defined or enable_thinking %}<think>\n"
    "{% else %}<think></think>{% endif %}{% endif %}"
)


class Script:
    """A stream of one letter a token. ``cancel`` ends it; the last chunk has the completion."""

    def __init__(self, prompt: Any, text: str) -> None:
        self.prompt = prompt
        self.cancelled = False
        self._text = text
        self._said = ""
        self._completion: Completion | None = None
        self._chunks = self._make()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await anext(self._chunks)
        self._completion = chunk.completion or self._completion
        return chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._chunks.aclose()  # type: ignore[attr-defined]

    def cancel(self) -> None:
        self.cancelled = True

    async def result(self) -> Completion:
        async for _ in self:
            pass
        assert self._completion is not None
        return self._completion

    async def _make(self) -> AsyncIterator[Chunk]:
        usage = Usage(prompt_tokens=3, completion_tokens=0, cached_tokens=2)
        for letter in self._text:
            if self.cancelled:
                break
            self._said += letter
            logprob = TokenLogprob(token=ord(letter), text=letter, logprob=-1.0)
            yield Chunk(text=letter, tokens=(ord(letter),), logprobs=(logprob,), usage=usage)
        tokens = tuple(map(ord, self._said))
        yield Chunk(
            completion=Completion(
                text=self._said,
                tokens=tokens,
                finish_reason="cancelled" if self.cancelled else "stop",
                prompt_tokens=(1, 2, 3),
                cache=CacheReport(kind="partial", restored_tokens=2),
                usage=Usage(prompt_tokens=3, completion_tokens=len(tokens), cached_tokens=2),
            )
        )


class FakeModel:
    """Writes the given texts, one a request. A token is a letter."""

    def __init__(self, *texts: str, template: str = THINKER, n_ctx: int = 1000) -> None:
        self._texts = iter(texts)
        self._info = ModelInfo(id="fake", phase="ready", chat_template=template, n_ctx=n_ctx)
        self.asked: list[tuple[Any, dict[str, Any]]] = []

    def info(self) -> ModelInfo:
        return self._info

    def stream(self, prompt: Any, **options: Any) -> Script:
        self.asked.append((prompt, options))
        return Script(prompt, next(self._texts))

    async def tokenize(self, text: str, **_: Any) -> list[int]:
        return list(map(ord, text))


class Ponderer(FakeModel):
    """Thinks at length about every text, and answers where the thought is ended for it."""

    def stream(self, prompt: Any, **options: Any) -> Script:
        self.asked.append((prompt, options))
        return Script(prompt, "abcdefgh" if isinstance(prompt, str) else "Answer")


def ask(*texts: str, **more: Any) -> ChatRequest:
    roles = itertools.cycle(["user", "assistant"])
    messages = tuple(Message(role=next(roles), content=text) for text in texts or ("hi",))
    return ChatRequest(model="fake", messages=messages, **more)


async def events(model: FakeModel, request: ChatRequest) -> list[Any]:
    return [event async for event in chat.chat_events(cast(AsyncModel, model), request)]


def said(found: Sequence[Any], kind: type[Any]) -> str:
    return "".join(event.text for event in found if isinstance(event, kind))


async def test_thoughts_and_content_come_apart() -> None:
    model = FakeModel("why</think>Hello")
    found = await events(model, ask())
    assert (said(found, Reasoning), said(found, Content)) == ("why", "Hello")
    assert isinstance(found[-1], Finished) and found[-1].reason == "stop"
    assert found[0].usage == Usage(prompt_tokens=3, cached_tokens=2)
    assert all(event.usage is None for event in found[1:])


async def test_log_probabilities_belong_to_the_content() -> None:
    found = await events(FakeModel("w</think>Hi"), ask(options={"logprobs": True}))
    shown = [entry.text for event in found if isinstance(event, Content) for entry in event.logprobs]
    assert shown[-2:] == ["H", "i"]


async def test_a_thought_is_ended_when_its_budget_is_spent() -> None:
    model = FakeModel("abcdefghijklmnop", "Answer")
    found = await events(model, ask(think_budget=4, options={"max_tokens": 100}))
    assert said(found, Reasoning) == "abcd"
    assert said(found, Content) == "Answer"
    (_, first), (prompt, second) = model.asked
    closing = "\n</think>\n\n"
    assert prompt == (1, 2, 3, *map(ord, "abcd" + closing))
    assert (first["max_tokens"], second["max_tokens"]) == (100, 100 - 4 - len(closing))
    completion = found[-1].completion
    assert completion.text == "abcd" + closing + "Answer"
    assert completion.usage == Usage(prompt_tokens=3, completion_tokens=4 + len(closing) + 6, cached_tokens=2)
    assert completion.cache.kind == "partial"


async def test_a_thought_within_its_budget_is_left_alone() -> None:
    model = FakeModel("abc</think>Answer")
    found = await events(model, ask(think_budget=50))
    assert (said(found, Reasoning), said(found, Content), len(model.asked)) == ("abc", "Answer", 1)


async def test_no_budget_no_thought() -> None:
    model = FakeModel("abcdef", "Answer")
    found = await events(model, ask(think_budget=0))
    assert (said(found, Reasoning), said(found, Content)) == ("", "Answer")


async def test_the_tokens_of_thoughts_are_counted() -> None:
    """With the mark that ends them, also where that is written for the model."""
    assert (await events(FakeModel("why</think>Hello"), ask()))[-1].reasoning_tokens == len("why</think>")
    assert (await events(FakeModel("Hello"), ask(think=False)))[-1].reasoning_tokens == 0
    cut = await events(FakeModel("abcdefgh", "Answer"), ask(think_budget=4))
    assert cut[-1].reasoning_tokens == len("abcd\n</think>\n\n")


async def test_each_of_several_answers_has_its_budget() -> None:
    model = Ponderer()
    found = await events(model, ask(think_budget=4, options={"n": 3, "seed": 7}))
    for index in range(3):
        own = [event for event in found if event.index == index]
        assert (said(own, Reasoning), said(own, Content)) == ("abcd", "Answer")
        assert isinstance(own[-1], Finished) and own[-1].completion.index == index
    assert sorted(asked["seed"] for _, asked in model.asked) == [5, 5, 6, 6, 7, 7]


async def test_behind_a_budget_calls_are_still_optional() -> None:
    """The grammar of calls waits for their mark, before and after."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    model = FakeModel("abcdefgh", "Answer")
    await events(model, ask(think_budget=4, tools=(tool,)))
    marks = [(asked["start_after"], asked.get("outside")) for _, asked in model.asked]
    assert marks == [("<tool_call>", ("", "</think>")), ("<tool_call>", None)]
    schema = Constraint(json_schema="{}")
    await events(model := FakeModel("abcdefgh", "1"), ask(think_budget=4, constraint=schema))
    assert [asked.get("start_after") for _, asked in model.asked] == ["</think>", None]


async def test_the_next_prompt_repeats_the_thought() -> None:
    model = FakeModel("why</think>Hello", "x")
    found = await events(model, ask("hi"))
    await events(model, ask("hi", said(found, Content), "more"))
    prompts = [prompt for prompt, _ in model.asked]
    assert prompts[1].startswith(prompts[0] + "why</think>Hello")


async def test_old_messages_are_left_out_of_a_prompt_that_does_not_fit() -> None:
    model = FakeModel("x", n_ctx=120)
    long = ["a" * 60, "b" * 60, "c" * 60, "d" * 20, "last"]
    found = await events(model, ask(*long, truncate=True, think=False))
    prompt = model.asked[0][0]
    assert "last" in prompt and "a" * 60 not in prompt and len(prompt) < 120
    assert found[-1].dropped_messages > 0


CALLER = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' and not (loop.previtem is defined and loop.previtem.tool_calls) %}"
    "{{ raise_exception('a result without its call') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<end>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def used_a_tool(system: str, *after: str) -> ChatRequest:
    messages = [
        Message(role="system", content=system),
        Message(role="user", content="a" * 60),
        Message(role="assistant", content="", tool_calls=(CALL,)),
        Message(role="tool", content="result", tool_call_id="call_1"),
        *(Message(role="user", content=text) for text in after),
    ]
    return ChatRequest(model="fake", messages=tuple(messages[not system :]), truncate=True)


@pytest.mark.parametrize("system", ["", "sys"])
async def test_the_result_of_a_call_is_left_out_with_it(system: str) -> None:
    model = FakeModel("x", template=CALLER, n_ctx=110)
    found = await events(model, used_a_tool(system, "last" * 10))
    prompt = model.asked[0][0]
    assert system in prompt and "last" in prompt and "result" not in prompt and "look" not in prompt
    assert found[-1].dropped_messages == 3


@pytest.mark.parametrize("system", ["", "sys"])
async def test_the_call_of_the_last_result_stays(system: str) -> None:
    model = FakeModel("x", template=CALLER, n_ctx=130)
    found = await events(model, used_a_tool(system))
    prompt = model.asked[0][0]
    assert system in prompt and "look" in prompt and "result" in prompt and "a" * 60 not in prompt
    assert found[-1].dropped_messages == 1


async def test_tokens_are_counted_of_the_whole_prompt() -> None:
    model = FakeModel("x")
    text = await chat.render(cast(AsyncModel, model), ask())
    assert await chat.count_tokens(cast(AsyncModel, model), ask()) == len(text)


async def test_a_conversation_needs_a_message() -> None:
    with pytest.raises(InvalidRequestError):
        await events(FakeModel("x"), ChatRequest(model="fake", messages=()))


def test_features_of_a_template() -> None:
    assert chat.features(FakeModel().info()) == chat.Features(tools=False, thinking=True)
    assert chat.features(FakeModel(template="chatml").info()) == chat.Features(tools=False, thinking=False)
