"""Granite 3: a JSON array after ``<|tool_call|>``. Granite 4 writes like Hermes."""

from barrel_inference.chat.tools.json_calls import JsonCall
from barrel_inference.chat.tools.syntax import Syntax

MARKERS = (("<|tool_call|>", "<|start_of_role|>"),)
SYNTAX = Syntax("granite", JsonCall(), section=("<|tool_call|>[", "]"), separator=", ")
