"""Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5: a tag for the function and one for each argument."""

from barrel_inference.chat.tools.syntax import Syntax
from barrel_inference.chat.tools.tagged import Tagged

MARKERS = (("<tool_call>", "<function=", "<parameter="),)
SYNTAX = Syntax(
    "qwen_coder",
    Tagged("<parameter={key}>\n", "\n</parameter>\n", end="</function>"),
    header="<tool_call>\n<function={name}>\n",
    footer="</function>\n</tool_call>\n",
)
