"""PARAMETER names, their types, and what each becomes: a loader option or a sampling one. Pure."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from barrel_inference.config import MAX_DEVICES, MAX_SEQUENCES, KvType, WeightResidency
from barrel_inference.errors import ModelfileError


class Parameter(NamedTuple):
    kind: str  # int, float, bool, str, or the choices joined by |
    loader: str | None = None  # the manifest loader key it sets; None: it belongs to requests
    least: int | None = None  # these two as the loader's own option has them
    most: int | None = None


_KV_TYPES = "|".join(get_args(KvType))
PARAMETERS: dict[str, Parameter] = {
    "num_ctx": Parameter("int", "n_ctx"),
    "num_batch": Parameter("int", "n_batch", least=1, most=1 << 20),
    "num_gpu": Parameter("int", "n_gpu_layers", least=-1, most=100_000),
    "main_gpu": Parameter("int", "main_gpu", least=0, most=MAX_DEVICES - 1),
    "num_thread": Parameter("int", "n_threads", least=0, most=512),
    "use_mmap": Parameter("bool", "use_mmap"),
    "use_mlock": Parameter("bool", "use_mlock"),
    "weight_residency": Parameter("|".join(get_args(WeightResidency)), "weight_residency"),
    "num_parallel": Parameter("int", "n_seq_max", least=1, most=MAX_SEQUENCES),
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
MAX_FLOAT = sys.float_info.max
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


def parse_parameter(name: str, text: str) -> Any:
    """The typed value of one PARAMETER line; ``ModelfileError`` for an unknown name or a wrong value."""
    kind = known(name).kind
    if kind not in _PARSERS:
        value = check_parameter(name, text)
        return text if name == "stop" else value
    try:
        return check_parameter(name, _PARSERS[kind](text))
    except (ValueError, ModelfileError):
        raise ModelfileError(f"invalid {kind} value [{text[:80]}] for {name}", parameter=name) from None


def check_parameter(name: str, value: Any) -> Any:
    """The same for values that come as JSON. ``stop`` may be a list; whole numbers may stand for floats."""
    kind = known(name).kind
    if name == "stop":
        values = [value] if isinstance(value, str) else value
        if isinstance(values, (list, tuple)) and all(isinstance(item, str) and is_unicode(item) for item in values):
            return list(values)
    elif kind in ("float", "int") and isinstance(value, (int, float)) and not isinstance(value, bool):
        if kind == "float" and abs(value) <= MAX_FLOAT:
            return float(value)
        if kind == "int" and -(1 << 63) <= value < 1 << 63 and value == int(value):
            return _bounded(name, int(value))
    elif kind == "bool" and isinstance(value, bool):
        return value
    elif "|" in kind:
        return _bounded(name, value)
    allowed = {"stop": "an array of strings"}.get(name, f"of type {kind}")
    raise ModelfileError(f"parameter {name} must be {allowed}", parameter=name)


def _bounded(name: str, value: Any) -> Any:
    if words := beyond(name, value):
        raise ModelfileError(f"parameter {name} must be {words}", parameter=name)
    return value


def beyond(name: str, value: Any) -> str | None:
    """What a known parameter's value of the right type must be, in words; None: what it is."""
    kind, _, least, most = known(name)
    if "|" in kind and value not in kind.split("|"):
        return f"one of {kind.replace('|', ', ')}"
    if least is not None and value < least:
        return f"at least {least}"
    if most is not None and value > most:
        return f"at most {most}"
    return None


def is_unicode(text: str) -> bool:
    """Whether it can be written down: JSON escapes and bad file names also make halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
    if wanted <= max_context:
        return None
    return (
        f"num_ctx {wanted} is capped at {max_context}: raise registry.max_context_size, as serve --ctx {wanted} or "
        f"OLLAMA_CONTEXT_LENGTH={wanted} do"
    )


def format_parameter(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def parameter_lines(parameters: Mapping[str, Any]) -> str:
    """One a line, the value in column 31; texts in quotes. Clients read this."""
    lines = []
    for name, value in sorted(parameters.items()):
        values = value if isinstance(value, list | tuple) else [value]
        lines += [f"{name:<30} {_literal(each)}" for each in values]
    return "\n".join(lines)


def _literal(value: Any) -> str:
    return msgspec.json.encode(value).decode() if isinstance(value, str) else format_parameter(value)


def _parse_bool(text: str) -> bool:
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError


def _number_as(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """As Go reads numbers: no underscores, no digits of other scripts."""

    def parse(text: str) -> Any:
        if "_" in text or not text.isascii():
            raise ValueError
        return kind(text)

    return parse


_PARSERS: dict[str, Callable[[str], Any]] = {
    "int": _number_as(int),
    "float": _number_as(float),
    "bool": _parse_bool,
}
