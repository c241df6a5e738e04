"""Functionary: ``<function=name>{…}</function>`` (3.1) or ``>>>name`` and the arguments on the next line (3.2)."""

from barrel_inference.chat.tools.json_calls import JsonArguments
from barrel_inference.chat.tools.syntax import Syntax

MARKERS = (("<function=", "{", "</function>"),)
SYNTAX = Syntax("functionary", JsonArguments(), header="<function={name}>", footer="</function>")

RECIPIENT_MARKERS = ((">>>all", ">>>"),)
RECIPIENT_SYNTAX = Syntax("functionary_v32", JsonArguments(), header=">>>{name}\n")
