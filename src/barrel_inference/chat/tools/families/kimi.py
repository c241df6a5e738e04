"""Kimi K2: numbered calls in a section of their own."""

from barrel_inference.chat.tools.json_calls import JsonArguments
from barrel_inference.chat.tools.syntax import Syntax

MARKERS = (("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),)
SYNTAX = Syntax(
    "kimi",
    JsonArguments(),
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    header="<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>",
    footer="<|tool_call_end|>",
)
