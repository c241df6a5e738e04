"""Cohere Command: a JSON array, between action markers (R7B, A) or fenced after ``Action:`` (R+)."""

from barrel_inference.chat.tools.json_calls import JsonCall
from barrel_inference.chat.tools.syntax import Syntax

MARKERS = (("<|START_ACTION|>", "<|END_ACTION|>"),)
SYNTAX = Syntax(
    "command",
    JsonCall("tool_name", "parameters", id_key="tool_call_id", id_first=True),
    section=("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"),
    separator=",\n    ",
)

FENCED_MARKERS = (("Action:", "```json", "tool_name"),)
FENCED_SYNTAX = Syntax(
    "command_r_plus",
    JsonCall("tool_name", "parameters"),
    section=("Action:\n```json\n[\n", "\n]```"),
    separator=",\n",
)
