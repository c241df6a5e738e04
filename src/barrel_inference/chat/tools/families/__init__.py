"""The known syntaxes, one file a family. A family's ``MARKERS`` are alternatives: it is at home in a template that
holds every string of one of them."""

from __future__ import annotations

from barrel_inference.chat.tools import gemma, pythonic
from barrel_inference.chat.tools.families import (
    command,
    deepseek,
    functionary,
    glm,
    granite,
    hermes,
    kimi,
    llama3,
    mistral,
    qwen_coder,
)
from barrel_inference.chat.tools.syntax import Syntax

Markers = tuple[tuple[str, ...], ...]

FAMILIES: tuple[tuple[Markers, Syntax], ...] = (  # the more particular first
    (qwen_coder.MARKERS, qwen_coder.SYNTAX),
    (glm.MARKERS, glm.SYNTAX),
    (kimi.MARKERS, kimi.SYNTAX),
    (deepseek.DSML_MARKERS, deepseek.DSML_SYNTAX),
    (deepseek.DSML4_MARKERS, deepseek.DSML4_SYNTAX),
    (deepseek.FENCED_MARKERS, deepseek.FENCED_SYNTAX),
    (deepseek.MARKERS, deepseek.SYNTAX),
    (gemma.MARKERS, gemma.SYNTAX),
    (gemma.FUNCTION_MARKERS, gemma.FUNCTION_SYNTAX),
    (mistral.ID_MARKERS, mistral.ID_SYNTAX),
    (mistral.MARKERS, mistral.SYNTAX),
    (mistral.ARRAY_MARKERS, mistral.ARRAY_SYNTAX),
    (command.MARKERS, command.SYNTAX),
    (command.FENCED_MARKERS, command.FENCED_SYNTAX),
    (pythonic.MARKERS, pythonic.SYNTAX),
    (granite.MARKERS, granite.SYNTAX),
    (functionary.RECIPIENT_MARKERS, functionary.RECIPIENT_SYNTAX),
    (functionary.MARKERS, functionary.SYNTAX),
    (llama3.MARKERS, llama3.SYNTAX),
    (hermes.MARKERS, hermes.SYNTAX),
)


def candidates(template: str) -> list[Syntax]:
    """The syntaxes whose markers are in a template's text."""
    return [
        syntax
        for alternatives, syntax in FAMILIES
        if any(all(marker in template for marker in markers) for markers in alternatives)
    ]
