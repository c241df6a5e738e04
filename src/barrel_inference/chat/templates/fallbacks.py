"""Named chat templates for models that bring none. Pure."""

from __future__ import annotations

_ROLE_BLOCKS = """\
{%%- for message in messages -%%}
%s
{%%- endfor -%%}
{%%- if add_generation_prompt -%%}%s{%%- endif -%%}"""

TEMPLATES: dict[str, str] = {
    "chatml": _ROLE_BLOCKS
    % (
        "{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' -}}",
        "{{- '<|im_start|>assistant\\n' -}}",
    ),
    "llama2": "{{- bos_token -}}"
    + _ROLE_BLOCKS
    % (
        "{%- if message.role == 'system' -%}{{- '[INST] <<SYS>>\\n' ~ message.content ~ '\\n<</SYS>>\\n\\n' -}}"
        "{%- elif message.role == 'assistant' -%}{{- ' ' ~ message.content ~ ' ' ~ eos_token -}}"
        "{%- elif loop.index0 > 0 and loop.previtem.role == 'system' -%}{{- message.content ~ ' [/INST]' -}}"
        "{%- else -%}{{- '[INST] ' ~ message.content ~ ' [/INST]' -}}{%- endif -%}",
        "",
    ),
    "llama3": "{{- bos_token -}}"
    + _ROLE_BLOCKS
    % (
        "{{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' ~ message.content ~ '<|eot_id|>' -}}",
        "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}",
    ),
    "gemma": "{{- bos_token -}}"
    + _ROLE_BLOCKS
    % (
        "{{- '<start_of_turn>' ~ ('model' if message.role == 'assistant' else 'user') ~ '\\n' ~ message.content"
        " ~ '<end_of_turn>\\n' -}}",
        "{{- '<start_of_turn>model\\n' -}}",
    ),
    "zephyr": _ROLE_BLOCKS
    % (
        "{{- '<|' ~ message.role ~ '|>\\n' ~ message.content ~ eos_token ~ '\\n' -}}",
        "{{- '<|assistant|>\\n' -}}",
    ),
    "plain": _ROLE_BLOCKS
    % (
        "{{- message.role | capitalize ~ ': ' ~ message.content ~ '\\n' -}}",
        "{{- 'Assistant:' -}}",
    ),
}


_MARKS = (
    ("chatml", "<|im_start|>", "<|im_end|>"),
    ("llama3", "<|start_header_id|>", "<|eot_id|>"),
    ("gemma", "<start_of_turn>", "<end_of_turn>"),
)


def pick(source: str | None, special_tokens: frozenset[str]) -> str:
    """The template of a model: its own, or the name of the built-in whose markers are among its special tokens."""
    if source:
        return source
    return next((name for name, *marks in _MARKS if special_tokens.intersection(marks)), "plain")
