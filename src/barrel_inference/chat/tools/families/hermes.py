"""Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4 and many more: a JSON object between ``<tool_call>`` tags."""

from barrel_inference.chat.tools.json_calls import JsonCall
from barrel_inference.chat.tools.syntax import Syntax

MARKERS = (("<tool_call>", '"arguments"'), ("<tool_call>", "'arguments'"))
SYNTAX = Syntax("hermes", JsonCall(), header="<tool_call>\n", footer="\n</tool_call>\n")
