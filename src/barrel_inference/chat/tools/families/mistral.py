"""Mistral: ``[TOOL_CALLS]`` before a JSON array (Nemo, Small 3.1 and older) or before the name of every call."""

from barrel_inference.chat.tools.json_calls import JsonArguments, JsonCall
from barrel_inference.chat.tools.syntax import Syntax

MARKERS = (("[TOOL_CALLS]", "[ARGS]"),)
SYNTAX = Syntax("mistral", JsonArguments(), header="[TOOL_CALLS]{name}[ARGS]")

ID_MARKERS = (("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),)
ID_SYNTAX = Syntax("mistral_id", JsonArguments(), header="[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]")

ARRAY_MARKERS = (("[TOOL_CALLS]",),)
ARRAY_SYNTAX = Syntax("mistral_array", JsonCall(id_key="id"), section=("[TOOL_CALLS][", "]"), separator=", ")
