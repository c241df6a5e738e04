"""Ollama's requests in neutral form, whatever they hold."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.errors import BarrelError
from barrel_inference.server.ollama import translate, wire

WORDS = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
OPTIONS = st.dictionaries(
    st.sampled_from(["num_ctx", "num_predict", "temperature", "stop", "seed", "num_gpu", "mirostat", "unknown"]), JSON
)
SHARED = {
    "format": JSON,
    "think": JSON | st.sampled_from(translate.LEVELS),
    "options": OPTIONS,
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(-1, 21),
}
NAMED = st.fixed_dictionaries({}, optional={"name": WORDS | JSON, "arguments": JSON, "parameters": JSON})
CALL = st.fixed_dictionaries({}, optional={"id": JSON, "function": NAMED | JSON})
SAID = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "Developer", "nobody"])},
    optional={"content": WORDS, "thinking": WORDS, "tool_calls": st.lists(CALL, max_size=2), "tool_name": WORDS},
)
CHAT = st.fixed_dictionaries(
    {"messages": st.lists(SAID, max_size=4)}, optional={"tools": st.lists(NAMED | CALL, max_size=3), **SHARED}
)
GENERATE = st.fixed_dictionaries(
    {"prompt": WORDS},
    optional={"system": WORDS, "suffix": WORDS, "context": st.lists(st.integers()), "raw": st.booleans(), **SHARED},
)


def decoded(kind: Any, body: dict[str, Any]) -> Any:
    """None when it is no request."""
    try:
        return msgspec.json.decode(msgspec.json.encode({"model": "m", **body}), type=kind)
    except msgspec.ValidationError:
        return None


@given(CHAT)
def test_every_conversation_is_translated_or_refused_and_no_text_is_lost(body: dict[str, Any]) -> None:
    request = decoded(wire.ChatRequest, body)
    if request is None:
        return
    try:
        found = translate.chat(request, translate.parameters(request))
    except BarrelError as error:
        assert error.code in ("invalid_request", "unsupported")
        return
    said = [(each.content, each.reasoning_content or "") for each in found.messages]
    assert said == [(each.content or "", each.thinking or "") for each in request.messages]
    assert [len(each.tool_calls) for each in found.messages] == [
        len(each.tool_calls or ()) for each in request.messages
    ]
    assert found.tools == tuple(request.tools or ())


@given(GENERATE)
def test_every_prompt_is_translated_or_refused(body: dict[str, Any]) -> None:
    request = decoded(wire.GenerateRequest, body)
    if request is None:
        return
    try:
        translate.check_raw(request)
        found = translate.parameters(request)
        conversation, plain = translate.generate(request, found), translate.raw(request, found)
    except BarrelError as error:
        assert error.code in ("invalid_request", "unsupported")
        return
    assert conversation.messages[-1].content == plain.prompt == body["prompt"]


@given(JSON)
def test_inputs_of_an_embedding_are_texts_or_refused(value: Any) -> None:
    try:
        found = translate.inputs(value)
    except BarrelError as error:
        assert error.details["option"] == "input"
        return
    assert list(found) == ([value] if isinstance(value, str) else value or [])
