"""PARAMETER names, their types, and what each becomes: a loader option or a sampling one. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

from barrel_inference.config import KvType, WeightResidency
from barrel_inference.errors import ModelfileError


class Parameter(NamedTuple):
    kind: str  # int, float, bool, str, or the choices joined by |
    loader: str | None = None  # the manifest loader key it sets; None: it belongs to requests


_KV_TYPES = "|".join(get_args(KvType))
PARAMETERS: dict[str, Parameter] = {
    "num_ctx": Parameter("int", "n_ctx"),
    "num_batch": Parameter("int", "n_batch"),
    "num_gpu": Parameter("int", "n_gpu_layers"),
    "main_gpu": Parameter("int", "main_gpu"),
    "num_thread": Parameter("int", "n_threads"),
    "use_mmap": Parameter("bool", "use_mmap"),
    "use_mlock": Parameter("bool", "use_mlock"),
    "weight_residency": Parameter("|".join(get_args(WeightResidency)), "weight_residency"),
    "num_parallel": Parameter("int", "n_seq_max"),
    "flash_attn": Parameter("bool", "flash_attn"),
    "type_k": Parameter(_KV_TYPES, "type_k"),
    "type_v": Parameter(_KV_TYPES, "type_v"),
    "num_keep": Parameter("int"),
    "seed": Parameter("int"),
    "num_predict": Parameter("int"),
    "draft_num_predict": Parameter("int"),
    "top_k": Parameter("int"),
    "top_p": Parameter("float"),
    "min_p": Parameter("float"),
    "typical_p": Parameter("float"),
    "repeat_last_n": Parameter("int"),
    "temperature": Parameter("float"),
    "repeat_penalty": Parameter("float"),
    "presence_penalty": Parameter("float"),
    "frequency_penalty": Parameter("float"),
    "mirostat": Parameter("int"),
    "mirostat_tau": Parameter("float"),
    "mirostat_eta": Parameter("float"),
    "stop": Parameter("str"),
}
# Accepted for the sake of old Modelfiles, and without effect in Ollama as well.
IGNORED = ("penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only")
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


def parse_parameter(name: str, text: str) -> Any:
    """The typed value of one PARAMETER line; ``ModelfileError`` for an unknown name or a wrong value."""
    kind = known(name).kind
    try:
        return _PARSERS[kind](text) if kind in _PARSERS else check_parameter(name, text)
    except ValueError:
        raise ModelfileError(f"invalid {kind} value [{text}] for {name}", parameter=name) from None


def check_parameter(name: str, value: Any) -> Any:
    """The same for values that come as JSON. ``stop`` may be a list; whole numbers may stand for floats."""
    kind = known(name).kind
    if name == "stop":
        values = [value] if isinstance(value, str) else value
        if isinstance(values, (list, tuple)) and all(isinstance(item, str) for item in values):
            return list(values)
    elif kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif kind == "int" and isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value):
        return int(value)
    elif (kind == "bool" and isinstance(value, bool)) or ("|" in kind and value in kind.split("|")):
        return value
    allowed = kind.replace("|", ", ") if "|" in kind else {"stop": "an array of strings"}.get(name, f"of type {kind}")
    raise ModelfileError(f"parameter {name} must be {'one of ' if '|' in kind else ''}{allowed}", parameter=name)


def check_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """All of them, without the ones that have no effect any more."""
    return {name: check_parameter(name, value) for name, value in values.items() if name not in IGNORED}


def known(name: str) -> Parameter:
    if name in PARAMETERS:
        return PARAMETERS[name]
    near = difflib.get_close_matches(name, PARAMETERS, 1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(PARAMETERS))}"
    raise ModelfileError(f"unknown parameter {name!r}{hint}", parameter=name)


def loader_options(parameters: Mapping[str, Any], max_context: int) -> dict[str, Any]:
    """What load-time parameters set in the loader; the context is capped at ``max_context``."""
    options = {PARAMETERS[name].loader or "": value for name, value in parameters.items() if name in PARAMETERS}
    options.pop("", None)
    if options.get("n_ctx", 0) > 0:
        options["n_ctx"] = min(options["n_ctx"], max_context)
    elif "n_ctx" in options:
        del options["n_ctx"]  # 0: the default
    if options.get("n_gpu_layers", 0) < 0:
        options["n_gpu_layers"] = 0 if options["n_gpu_layers"] < -1 else 99  # -1: as many as fit
    return {key: value for key, value in options.items() if not (key == "n_threads" and value <= 0)}


def cap_note(parameters: Mapping[str, Any], max_context: int) -> str | None:
    """What to tell whoever sets a larger context than the server allows."""
    wanted = parameters.get("num_ctx", 0)
    return f"num_ctx {wanted} is capped at {max_context} (max_context_size)" if wanted > max_context else None


def format_parameter(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _parse_bool(text: str) -> bool:
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError


def _parse_float(text: str) -> float:
    value = float(text)
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError
    return value


_PARSERS: dict[str, Callable[[str], Any]] = {"int": int, "float": _parse_float, "bool": _parse_bool, "str": str}
