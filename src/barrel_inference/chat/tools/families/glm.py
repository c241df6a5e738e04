"""GLM 4.5 to 4.7, Ling 3, Laguna: the name, then a pair of tags for each argument."""

from barrel_inference.chat.tools.syntax import Syntax
from barrel_inference.chat.tools.tagged import Tagged

MARKERS = (("<tool_call>", "<arg_key>", "<arg_value>"),)
SYNTAX = Syntax(
    "glm",
    Tagged("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n", end="</tool_call>"),
    header="<tool_call>{name}\n",
    footer="</tool_call>\n",
)
