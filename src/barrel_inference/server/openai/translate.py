"""OpenAI's requests to neutral ones. Pure: what cannot be honoured raises, naming the parameter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from barrel_inference.chat import schema
from barrel_inference.chat.messages import arguments_of
from barrel_inference.errors import InvalidRequestError, UnsupportedError
from barrel_inference.server import neutral
from barrel_inference.server.models.parameters import biases
from barrel_inference.server.openai import wire
from barrel_inference.types import Constraint, Embedding, Message

# Parameters that go on under the same name, and one under ours.
_SAME = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "n", "ignore_eos", "max_tokens"),
    *("frequency_penalty", "presence_penalty", "repeat_penalty", "repeat_last_n"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "session", "cache", "parent_key"),
)
_SAMPLING = {name: name for name in _SAME} | {"repetition_penalty": "repeat_penalty"}
_RANGES = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "top_logprobs": (0, 20),
    "logprobs": (0, 100),  # of completions
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), (0, 2**31 - 1)),
}
EFFORTS: dict[str, neutral.Think] = {"none": False, "xhigh": "max"}


def chat(body: wire.ChatCompletionRequest, *, keep_alive: bool = False) -> neutral.ChatRequest:
    _refuse_unsupported(body)
    choice, allowed = _tool_choice(body)
    tools = [_tool(each) for each in _tools(body)]
    return neutral.ChatRequest(
        model=body.model,
        messages=tuple(_messages(body.messages)),
        tools=tuple(each for each in tools if allowed is None or each["function"]["name"] in allowed),
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        constraint=_constraint(body, body.response_format),
        think=_think(body),
        think_budget=_budget(body),
        documents=tuple(body.documents or ()),
        template=dict(body.chat_template_kwargs or {}),
        continue_final=_continues(body),
        options=_options(body) | _chat_options(body),
        keep_alive=body.keep_alive if keep_alive else None,
    )


def completion(
    body: wire.CompletionRequest, prompt: str | list[int], *, keep_alive: bool = False
) -> neutral.CompletionRequest:
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequestError("best_of is only supported when it equals n", option="best_of")
    if body.echo and body.logprobs is not None:
        raise UnsupportedError("logprobs with echo: there are none of the prompt's tokens", option="logprobs")
    options = _options(body)
    options["max_tokens"] = 16 if body.max_tokens is None else body.max_tokens  # OpenAI's default here
    if body.logprobs is not None:
        options |= {"logprobs": True, "top_logprobs": body.logprobs}
    found = _constraint(body, None)
    if found is not None:
        options |= {name: value for name, value in msgspec.structs.asdict(found).items() if value is not None}
    return neutral.CompletionRequest(
        model=body.model,
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        suffix=body.suffix or None,
        options=options,
        keep_alive=body.keep_alive if keep_alive else None,
    )


def prompts(given: wire.Inputs, option: str = "prompt") -> list[str | list[int]]:
    """The one or many prompts of a completion request, or inputs of an embedding request."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequestError(f"{option} must not be empty", option=option)
    numbers = [each for each in given if isinstance(each, int)]
    if numbers and len(numbers) != len(given):
        raise InvalidRequestError("a list of inputs holds texts, or lists of token ids, or is one", option=option)
    return [numbers] if numbers else [each for each in given if not isinstance(each, int)]


def embedding(body: wire.EmbeddingRequest, *, keep_alive: bool = False) -> neutral.EmbedRequest:
    if body.encoding_format not in (None, "float", "base64"):
        raise InvalidRequestError(
            f"Invalid value for 'encoding_format' = {body.encoding_format}. Supported values: ['float', 'base64'].",
            option="encoding_format",
        )
    inputs = prompts(body.input, "input")
    return neutral.EmbedRequest(
        model=body.model,
        inputs=tuple(each if isinstance(each, str) else tuple(each) for each in inputs),
        dimensions=body.dimensions,
        keep_alive=body.keep_alive if keep_alive else None,
    )


def check_dimensions(wanted: int | None, found: Embedding) -> None:
    """Raises InvalidRequestError where the model has fewer than wanted."""
    if wanted is not None and any(len(vector) < wanted for vector in found.vectors):
        raise InvalidRequestError(
            f"dimensions must be at most {len(found.vectors[0])} for this model, not {wanted}", option="dimensions"
        )


# ---- options


def _options(body: wire.Sampled) -> dict[str, Any]:
    """What the client said, under our names."""
    check_ranges(body)
    options = {ours: value for name, ours in _SAMPLING.items() if (value := getattr(body, name)) is not None}
    if body.stop is not None:
        options["stop"] = _stop(body.stop)
    if body.logit_bias:
        options["logit_bias"] = biases("logit_bias", body.logit_bias)
    return options


def check_ranges(body: Any) -> None:
    """Of what the kinds of requests share. Raises InvalidRequestError."""
    for name, (low, high) in _RANGES.items():
        value = getattr(body, name, None)
        if value is not None and not low <= value <= high:
            raise InvalidRequestError(f"{name} must be between {low} and {high}, not {value}", option=name)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options is only allowed when stream is true", option="stream_options")


def _stop(stop: str | list[str]) -> tuple[str, ...]:
    return tuple(each for each in ([stop] if isinstance(stop, str) else stop) if each)


def _chat_options(body: wire.ChatCompletionRequest) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if body.max_completion_tokens is not None:
        options["max_tokens"] = body.max_completion_tokens
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs to be true", option="top_logprobs")
    if body.logprobs:
        options |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return options


def _refuse_unsupported(body: wire.ChatCompletionRequest) -> None:
    if not body.messages:
        raise InvalidRequestError("[] is too short - 'messages'", option="messages")
    for name, asked in (("audio", body.audio), ("modalities", set(body.modalities or ()) - {"text"})):
        if asked:
            raise UnsupportedError("only text can be generated", option=name)
    if body.web_search_options is not None:
        raise UnsupportedError("this server does not search the web", option="web_search_options")
    if body.moderation is not None:
        raise UnsupportedError("this server does not moderate", option="moderation")
    if body.verbosity not in (None, "medium"):
        raise UnsupportedError("verbosity is not supported", option="verbosity")


def _think(body: wire.ChatCompletionRequest) -> neutral.Think:
    asked = body.reasoning or wire.Reasoning()
    effort: Any = body.reasoning_effort or asked.effort
    return asked.enabled if effort is None else EFFORTS.get(effort, effort)


def _budget(body: wire.ChatCompletionRequest) -> int | None:
    if body.reasoning is None or body.reasoning.max_tokens is None:
        return body.thinking_budget
    return body.reasoning.max_tokens


def _continues(body: wire.ChatCompletionRequest) -> bool:
    if body.add_generation_prompt and body.continue_final_message:
        raise InvalidRequestError(
            "add_generation_prompt and continue_final_message exclude each other", option="continue_final_message"
        )
    if body.add_generation_prompt is False and not body.continue_final_message:
        raise UnsupportedError(
            "add_generation_prompt can be false with continue_final_message only", option="add_generation_prompt"
        )
    return bool(body.continue_final_message)


def _constraint(body: wire.Sampled, form: wire.ResponseFormat | None) -> Constraint | None:
    found = [each for each in (_of_format(form), *_extensions(body)) if each is not None]
    if len(found) > 1:
        raise InvalidRequestError("more than one output format is given", option="response_format")
    return found[0] if found else None


def _of_format(form: wire.ResponseFormat | None) -> Constraint | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return schema.constraint(form.schema) if form.schema is not None else schema.any_object()
    if form.json_schema is None or form.json_schema.schema is None:
        raise InvalidRequestError("response_format.json_schema.schema is missing", option="response_format")
    return schema.constraint(form.json_schema.schema)


def _extensions(body: wire.Sampled) -> Iterable[Constraint | None]:
    """llama-server's and vLLM's parameters for the same things."""
    for grammar in (body.grammar, body.guided_grammar):
        yield Constraint(grammar=grammar) if grammar else None
    for given in (body.json_schema, body.guided_json):
        yield schema.constraint(_object(given)) if given is not None else None
    yield Constraint(regex=body.guided_regex) if body.guided_regex else None
    yield Constraint(choices=tuple(body.guided_choice)) if body.guided_choice else None


def _object(value: Mapping[str, Any] | str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        parsed = None
    if not isinstance(parsed, Mapping):
        raise InvalidRequestError("guided_json is a JSON schema", option="guided_json")
    return parsed


# ---- tools


def _tools(body: wire.ChatCompletionRequest) -> list[wire.Tool]:
    """The older ``functions`` are tools, too."""
    return list(body.tools or ()) or [wire.Tool(function=each) for each in body.functions or ()]


def _tool(tool: wire.Tool) -> dict[str, Any]:
    function = tool.function
    if tool.type != "function":
        raise UnsupportedError(f"tools of type {tool.type!r} are not supported here", option="tools")
    if function is None:
        raise InvalidRequestError("a tool of type 'function' needs its function", option="tools")
    parameters = function.parameters or {"type": "object", "properties": {}}
    plain: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        plain["description"] = function.description
    if function.strict is not None:
        plain["strict"] = function.strict
    return {"type": "function", "function": plain | {"parameters": parameters}}


def _tool_choice(body: wire.ChatCompletionRequest) -> tuple[neutral.ToolChoice, set[str] | None]:
    """What is to be called, and the names of the tools that may be; None: all."""
    match body.tool_choice if body.tool_choice is not None else body.function_call:
        case None:
            return neutral.ToolChoice(), None
        case wire.NamedTool(type="allowed_tools", allowed_tools=wire.AllowedTools(mode=mode, tools=tools)):
            return neutral.ToolChoice(mode=mode), {_chosen_name(each) for each in tools}
        case wire.NamedTool() as named:
            return neutral.ToolChoice(mode="named", name=_chosen_name(named)), None
        case wire.FunctionName(name=name):
            return neutral.ToolChoice(mode="named", name=name), None
        case "required":
            return neutral.ToolChoice(mode="required"), None
        case mode:
            return neutral.ToolChoice(mode="none" if mode == "none" else "auto"), None


def _chosen_name(tool: wire.NamedTool) -> str:
    if tool.type != "function" or tool.function is None:
        raise UnsupportedError(f"tool_choice of type {tool.type!r} is not supported here", option="tool_choice")
    return tool.function.name


# ---- messages


def _messages(messages: Sequence[wire.MessageIn]) -> Iterable[Message]:
    for message in messages:
        match message:
            case wire.AssistantMessage():
                yield _assistant(message)
            case wire.ToolMessage(tool_call_id=call_id):
                yield Message(role="tool", content=text(message.content), tool_call_id=call_id, name=message.name)
            case wire.FunctionMessage(name=name):
                yield Message(role="tool", content=text(message.content), tool_call_id=f"call_{name}", name=name)
            case _:
                role = message.__struct_config__.tag
                yield Message(role=str(role), content=text(message.content), name=message.name)


def _assistant(message: wire.AssistantMessage) -> Message:
    calls = [_call(each) for each in message.tool_calls or ()]
    if message.function_call is not None:
        name = message.function_call.name
        calls.append(_call(wire.ToolCallIn(id=f"call_{name}", function=message.function_call)))
    return Message(
        role="assistant",
        content=text(message.content) or message.refusal or "",
        reasoning_content=message.reasoning_content or message.reasoning,
        tool_calls=tuple(calls),
    )


def _call(call: wire.ToolCallIn) -> dict[str, Any]:
    arguments = json.dumps(arguments_of(call.function.arguments), ensure_ascii=False)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def text(content: wire.ContentIn) -> str:
    """Raises UnsupportedError for anything but text."""
    if isinstance(content, str | None):
        return content or ""
    return "\n".join(map(_text_part, content))


def _text_part(part: wire.Part) -> str:
    match part:
        case wire.TextPart(text=found) | wire.RefusalPart(refusal=found):
            return found
    raise UnsupportedError(f"this model reads text only, not {part.__struct_config__.tag}", option="messages")
