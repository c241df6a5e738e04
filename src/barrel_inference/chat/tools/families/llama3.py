"""Llama 3.1 to 3.3: the whole answer is a JSON object."""

from barrel_inference.chat.tools.json_calls import JsonCall
from barrel_inference.chat.tools.syntax import Syntax

MARKERS = (("<|start_header_id|>", "<|eom_id|>"), ("<|start_header_id|>", "ipython", '"parameters"'))
SYNTAX = Syntax("llama3", JsonCall(arguments_key="parameters", known_only=True), separator="; ", only_at_start=True)
