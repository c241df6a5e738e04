"""What is found out about real templates, and that what they write is read."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from barrel_inference.chat.dialogue import Dialogue, Turn
from barrel_inference.chat.messages import conform, described
from barrel_inference.chat.output import OutputParser
from barrel_inference.chat.templates.template import Template
from barrel_inference.chat.tools.scan import Pattern, common_prefix
from barrel_inference.chat.tools.tagged import Tagged
from tests.chat.pieces import DEFINITIONS, TOOLS, fed
from tests.chat.tools.test_families import ENDINGS, walk
from tests.support.templates import templates

pytestmark = pytest.mark.slow

# Templates by the syntax of their family; all others are learned, or know no calls.
FAMILY = {
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "ibm-granite-granite-4.0": "hermes",
    "Qwen3-Coder": "qwen_coder",
    "Qwen3.5-4B": "qwen_coder",
    "StepFun3.5-Flash": "qwen_coder",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen_coder",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral_array",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral_id",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_r1",
    "deepseek-ai-DeepSeek-V3.1": "deepseek",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "meetkai-functionary-medium-v3.1": "functionary",
    "meetkai-functionary-medium-v3.2": "functionary_v32",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command_r_plus",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "moonshotai-Kimi-K2": "kimi",
    "Kimi-K2-Thinking": "kimi",
    "LFM2.5-8B-A1B": "pythonic",
    "google-gemma-4-31B-it": "gemma",
}
LEARNED = [
    "Apertus-8B-Instruct",
    "ByteDance-Seed-OSS",
    "GigaChat3.1-10B-A1.8B",
    "Kimi-K3",
    "MiniMax-M1",
    "MiniMax-M2",
    "MiniMax-M3",
    "NVIDIA-Nemotron-Nano-v2",
    "openbmb-MiniCPM5-1B",
    "tencent-Hy3",
    "unsloth-Apriel-1.5",
    "upstage-Solar-Open-100B",
]
AMBIGUOUS = {"LFM2.5-8B-A1B"}
THINKING = {
    "Qwen-Qwen3-0.6B": "<think>",
    "ByteDance-Seed-OSS": "<seed:think>",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "<|START_THINKING|>",
    "google-gemma-4-31B-it": "<|channel>thought",
    "mistralai-Ministral-3-14B-Reasoning-2512": "[THINK]",
    "Kimi-K3": "<|open|>think<|sep|>",
    "MiniMax-M3": "<mm:think>",
    "meta-llama-Llama-3.3-70B-Instruct": None,
    "Qwen-Qwen2.5-7B-Instruct": None,
    "google-gemma-2-2b-it": None,
}


def dialogue(name: str) -> Dialogue:
    return Dialogue(Template(templates()[name], bos_token="<s>", eos_token="</s>"))


@pytest.mark.parametrize(("name", "family"), FAMILY.items())
def test_families_are_recognised(name: str, family: str) -> None:
    syntax = dialogue(name).profile.shape.syntax
    assert syntax is not None and syntax.name == family


@pytest.mark.parametrize("name", LEARNED)
def test_other_syntaxes_are_learned(name: str) -> None:
    syntax = dialogue(name).profile.shape.syntax
    assert syntax is not None and syntax.name == "learned"


@pytest.mark.parametrize(("name", "opening"), THINKING.items())
def test_thoughts_are_recognised(name: str, opening: str | None) -> None:
    thinking = dialogue(name).profile.shape.thinking
    assert (thinking and thinking.open) == opening


def call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


CASES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "one": [("get_weather", {"city": "Paris", "days": 3})],
    "text that looks like markup": [("get_weather", {"city": "a </x> {b} [c] \"d\" 'e' \\ é 木"})],
    "several lines": [("get_weather", {"city": "one\n  two\n\nthree"})],
    "no arguments": [("get_time", {})],
    "two": [("get_weather", {"city": "Rome", "days": 1}), ("get_time", {"zone": "CET"})],
}


def written(one: Dialogue, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """What the template writes for these calls, and some of what it writes around every answer."""
    form, syntax = one.profile.form, one.profile.shape.syntax
    assert syntax is not None
    answer = {"role": "assistant", "tool_calls": [call(f"call{i:05}", *each) for i, each in enumerate(calls)]}
    tools = [described(tool) for tool in DEFINITIONS]
    texts = [
        one.template.text(conform([{"role": "user", "content": "Please."}, last], form, syntax), tools=tools)
        for last in (answer, {"role": "assistant", "content": "zqcontent"})
    ]
    head = common_prefix(texts[0], texts[1].partition("zqcontent")[0])
    whole = re.sub(r"[<\[][^>\]]*$", "", head)  # back to the beginning of a mark
    return texts[0][len(whole) :]


def begun(one: Dialogue) -> str:
    """The mark of a call that a prompt ends with."""
    syntax = one.profile.shape.syntax
    prompt = one.prompt(Turn([{"role": "user", "content": "Please."}], tools=DEFINITIONS)).text
    return next(filter(prompt.endswith, syntax.triggers if syntax else ()), "")


def test_calls_as_the_templates_write_them_are_read() -> None:
    """The mark to beat is llama.cpp's own parser: 549 of 632 clear cases."""
    wrong: dict[str, list[str]] = {}
    tried = 0
    for name in templates():
        one = dialogue(name)
        if not one.profile.form.native_calls or one.profile.shape.syntax is None:
            continue
        for case, calls in CASES.items():
            if case == "two" and not one.profile.form.parallel_calls:
                continue
            tried += 1
            parser = OutputParser(one.profile.shape, TOOLS)
            found = [value for kind, value in fed(parser, begun(one) + written(one, calls)) if kind == "call"]
            if found != calls:
                wrong.setdefault(name, []).append(case)
    print(f"read {tried - sum(map(len, wrong.values()))} of {tried}; wrong: {wrong}")
    assert wrong.keys() <= AMBIGUOUS, "quotation marks in quotation marks, not escaped: nobody can read that"


KEYS = [key for schema in TOOLS.values() for key in schema["properties"]]


def test_required_calls_of_every_template_are_read() -> None:
    """What its grammar lets a model write behind its prompt is a call to its parser; harmony's, too."""
    for name in templates():
        turn = Turn([{"role": "user", "content": "Go."}], tools=DEFINITIONS, choice="required", parallel=False)
        prompt = dialogue(name).prompt(turn)
        assert prompt.constraint is not None and prompt.constraint.grammar is not None
        thought = f"hm{prompt.think_end}" if prompt.constraint.start_after else ""
        body = prompt.shape.syntax and prompt.shape.syntax.body
        endings = [Pattern(body.close).fill(key=key) for key in KEYS] if isinstance(body, Tagged) else ENDINGS
        text = thought + walk(prompt.constraint.grammar, 1, limit=2000, endings=endings)
        events = [event for event in fed(prompt.parser(), text, range(1, len(text))) if event[0] != "thought"]
        assert events and all(kind == "call" for kind, _ in events), (name, text, events)
        for _, (called, arguments) in events:
            assert set(TOOLS[called].get("required", ())) <= set(arguments) <= set(TOOLS[called]["properties"]), name
