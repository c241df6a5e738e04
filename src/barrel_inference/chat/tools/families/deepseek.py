"""DeepSeek: marked sections with JSON arguments (R1, V3, V3.1) or typed tags (V3.2, V4)."""

from barrel_inference.chat.tools.json_calls import JsonArguments
from barrel_inference.chat.tools.syntax import Syntax
from barrel_inference.chat.tools.tagged import Tagged

_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

MARKERS = (("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),)
SYNTAX = Syntax(
    "deepseek",
    JsonArguments(),
    section=_SECTION,
    header="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
    footer="<｜tool▁call▁end｜>",
)

FENCED_MARKERS = (("<｜tool▁calls▁begin｜>", "```json"),)
FENCED_SYNTAX = Syntax(
    "deepseek_r1",
    JsonArguments(),
    section=_SECTION,
    header="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
    footer="\n```<｜tool▁call▁end｜>\n",
)


def _dsml(name: str, section: str) -> Syntax:
    parameter = '<｜DSML｜parameter name="{key}" string="%s">'
    return Syntax(
        name,
        Tagged(
            parameter % "false",
            "</｜DSML｜parameter>\n",
            end="</｜DSML｜invoke>",
            opens={"string": parameter % "true", "": parameter % "false"},
        ),
        section=(f"<｜DSML｜{section}>\n", f"</｜DSML｜{section}>"),
        header='<｜DSML｜invoke name="{name}">\n',
        footer="</｜DSML｜invoke>\n",
    )


DSML_MARKERS = (("｜DSML｜", "invoke", "function_calls"),)
DSML_SYNTAX = _dsml("deepseek_v32", "function_calls")

DSML4_MARKERS = (("｜DSML｜", "invoke", "tool_calls"),)
DSML4_SYNTAX = _dsml("deepseek_v4", "tool_calls")
