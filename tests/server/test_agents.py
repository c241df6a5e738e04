"""Agents on a real model: tools under grammar, structured output, thinking off, prompts that are not read twice."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from tests.server.harness import RunningServer
from tests.support.models import smollm2

openai = pytest.importorskip("openai", reason="the clients extra is not installed")
anthropic = pytest.importorskip("anthropic", reason="the clients extra is not installed")

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "unit"],
}
CALCULATE = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}, "operator": {"enum": ["+", "-", "*", "/"]}},
    "required": ["a", "operator", "b"],
}
SCHEMAS = {"get_weather": WEATHER, "calculate": CALCULATE}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"Use it to {name}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
FLAT_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
CLAUDE_TOOLS = [{"name": name, "description": "d", "input_schema": schema} for name, schema in SCHEMAS.items()]
ASK = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = {"smollm2": {"model_path": str(smollm2()), "context_opts": {"n_ctx": 4096}}}
    with RunningServer(tmp_path_factory.mktemp("agents"), models=models) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=300) as one:
        yield one


@pytest.fixture(scope="module")
def claude(server: RunningServer) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0, timeout=300) as one:
        yield one


def chat(client: Any, **options: Any) -> Any:
    asked = {"model": "smollm2", "messages": ASK, "max_tokens": 60, "temperature": 0, **options}
    return client.chat.completions.create(**asked)


def valid(name: str, arguments: dict[str, Any]) -> bool:
    """Against the few keywords that these schemas use."""
    schema = SCHEMAS[name]
    properties: dict[str, Any] = schema["properties"]
    assert set(schema["required"]) <= set(arguments) <= set(properties)
    for key, value in arguments.items():
        wanted = properties[key]
        assert "enum" not in wanted or value in wanted["enum"]
        assert wanted.get("type") not in ("integer", "number") or isinstance(value, int | float)
        assert wanted.get("minimum", value) <= value <= wanted.get("maximum", value) if "minimum" in wanted else True
        assert len(str(value)) <= wanted.get("maxLength", 10**6)
    return True


def test_a_required_call_is_valid_against_its_schema(client: Any) -> None:
    for seed in range(3):
        done = chat(client, tools=TOOLS, tool_choice="required", temperature=1, seed=seed, parallel_tool_calls=False)
        (call,) = done.choices[0].message.tool_calls
        assert done.choices[0].finish_reason == "tool_calls"
        assert valid(call.function.name, json.loads(call.function.arguments))


def test_a_named_tool_is_called(client: Any) -> None:
    named = {"type": "function", "function": {"name": "calculate"}}
    (call,) = chat(client, tools=TOOLS, tool_choice=named).choices[0].message.tool_calls
    assert call.function.name == "calculate"
    assert valid("calculate", json.loads(call.function.arguments))


def test_without_a_choice_of_tools_there_is_text(client: Any) -> None:
    done = chat(client, tools=TOOLS, tool_choice="none", max_tokens=20).choices[0].message
    assert done.tool_calls is None and done.content


def test_an_agent_loop_with_the_prompt_read_once(client: Any) -> None:
    messages: list[Any] = [{"role": "system", "content": "You are a helpful assistant with tools."}, *ASK]
    read: list[tuple[int, int]] = []
    for turn in range(3):
        choice = "required" if turn < 2 else "none"
        done = chat(client, messages=messages, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
        usage = done.usage
        read.append((usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens))
        message = done.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"})
    assert messages[-1]["content"]
    for (before, _), (now, cached) in itertools.pairwise(read):
        assert cached >= before, "everything up to the new message had been read"
        assert now - cached < 80


def test_calls_stream(client: Any) -> None:
    chunks = list(chat(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    arguments = "".join(call.function.arguments or "" for call in calls)
    assert calls[0].id and valid(calls[0].function.name, json.loads(arguments))
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert len(calls) > 5, "the arguments come as they are written"


def test_calls_stream_as_messages(claude: Any) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "max_tokens": 120, "messages": ASK, "extra_body": {"temperature": 0}}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    with claude.messages.stream(**asked, tools=CLAUDE_TOOLS, tool_choice=choice) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    (call,) = message.content
    assert len(pieces) > 5 and json.loads("".join(pieces)) == call.input
    assert valid(call.name, call.input) and message.stop_reason == "tool_use"


def test_calls_stream_as_responses(client: Any) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "input": ASK, "temperature": 0, "parallel_tool_calls": False}
    with client.responses.stream(**asked, tools=FLAT_TOOLS, tool_choice="required") as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        response = stream.get_final_response()
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert len(pieces) > 5 and "".join(pieces) == call.arguments
    assert valid(call.name, json.loads(call.arguments))


def test_a_call_that_is_cut_off(client: Any, claude: Any) -> None:
    """In the middle of the arguments: each dialect says so, and none loses what was written."""
    long = {"type": "object", "properties": {"text": {"type": "string", "minLength": 400}}, "required": ["text"]}
    tool = {"name": "write", "description": "d", "parameters": long}
    done = chat(client, tools=[{"type": "function", "function": tool}], tool_choice="required", max_tokens=30)
    (call,) = done.choices[0].message.tool_calls
    assert done.choices[0].finish_reason == "length" and done.usage.completion_tokens == 30
    assert call.function.arguments.startswith('{"text": "')
    tools = [{"name": "write", "description": "d", "input_schema": long}]
    asked: dict[str, Any] = {"model": "smollm2", "messages": ASK, "tools": tools, "tool_choice": {"type": "any"}}
    message = claude.messages.create(**asked, max_tokens=30, extra_body={"temperature": 0})
    assert message.stop_reason == "max_tokens" and call.function.arguments in message.content[0].text


def test_structured_output_through_the_client(client: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    word = Annotated[str, pydantic.Field(max_length=20)]  # bounded, so that the answer always comes to its end
    age, tags = Annotated[int, pydantic.Field(ge=0, le=150)], Annotated[list[word], pydantic.Field(max_length=3)]
    person = pydantic.create_model("Person", name=(word, ...), age=(age, ...), tags=(tags, ...))
    form = {"type": "json_schema", "json_schema": {"name": "Person", "schema": person.model_json_schema()}}
    done = chat(client, messages=[{"role": "user", "content": "Describe Ada, 36, as JSON."}], response_format=form)
    assert done.choices[0].finish_reason == "stop"
    person.model_validate_json(done.choices[0].message.content)


def test_a_json_object(client: Any) -> None:
    done = chat(client, response_format={"type": "json_object"}, max_tokens=200)
    assert done.choices[0].message.content.lstrip().startswith("{")


def test_choices_and_patterns(client: Any) -> None:
    one = chat(client, extra_body={"guided_choice": ["sunny", "rainy"]}).choices[0].message.content
    assert one in ("sunny", "rainy")
    other = chat(client, extra_body={"guided_regex": "[0-9]{2} degrees"}).choices[0].message.content
    assert other[2:] == " degrees" and other[:2].isdigit()


def test_a_response_with_tools(client: Any) -> None:
    first = client.responses.create(
        model="smollm2", input=ASK, tools=FLAT_TOOLS, tool_choice="required", parallel_tool_calls=False, temperature=0
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert valid(call.name, json.loads(call.arguments))
    second = client.responses.create(
        model="smollm2",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        tools=FLAT_TOOLS,
        tool_choice="none",
        max_output_tokens=20,
        temperature=0,
    )
    assert second.output_text
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


def test_anthropic_tools(claude: Any) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "max_tokens": 120, "extra_body": {"temperature": 0}}
    asked["tools"] = CLAUDE_TOOLS
    first = claude.messages.create(
        **asked, messages=ASK, tool_choice={"type": "any", "disable_parallel_tool_use": True}
    )
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert valid(call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    talk = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = claude.messages.create(**asked, messages=talk, tool_choice={"type": "none"})
    assert second.content[0].type == "text"
    before = first.usage.input_tokens + first.usage.cache_read_input_tokens + first.usage.cache_creation_input_tokens
    assert second.usage.cache_read_input_tokens >= before
