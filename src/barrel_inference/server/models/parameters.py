"""Ollama's option names (Modelfile PARAMETERs and a request's ``options``) to ours. Pure.

What decides how a model is loaded goes one way, what decides how the next token is chosen the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from barrel_inference.aio.params import RequestOptions
from barrel_inference.errors import InvalidRequestError
from barrel_inference.registry.modelfile.parameters import beyond
from barrel_inference.types import Sampling

# Ollama's defaults, where they differ from ours.
OLLAMA_DEFAULTS: dict[str, Any] = {"top_p": 0.9, "min_p": 0.0}

MIN_CONTEXT = 4  # Ollama's; nothing is served with less
_MAX_FLOAT32 = 3.4028235e38


class Parameters(NamedTuple):
    """``request``: of aio.params. ``load``: nested options of load_model. ``ignored``: names nobody knows."""

    request: dict[str, Any]
    load: dict[str, Any]
    n_ctx: int | None = None
    num_keep: int | None = None
    ignored: tuple[str, ...] = ()


def _integer(name: str, value: Any) -> int:
    """Floats are cut, as in Ollama."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) > 2**63:
        raise _wrong(name, "integer")
    return int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MAX_FLOAT32:
        raise _wrong(name, "float32")
    return float(value)


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "boolean")
    return value


def _strings(name: str, value: Any) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not all(isinstance(each, str) for each in values):
        raise _wrong(name, "array", "an array of strings")
    return [each for each in values if each]


def biases(name: str, value: Any) -> dict[int, float]:
    """Token ids are text in JSON."""
    wrong = InvalidRequestError(f"{name} maps token ids to numbers", option=name)
    if not isinstance(value, Mapping):
        raise wrong
    try:
        return {int(token): _number(name, bias) for token, bias in value.items()}
    except (ValueError, InvalidRequestError):
        raise wrong from None


def _any(name: str, value: Any) -> Any:
    return value


def _wrong(name: str, kind: str, words: str | None = None) -> InvalidRequestError:
    return InvalidRequestError(f'option "{name}" must be of type {words or kind}', option=name)


Read = Callable[[str, Any], Any]
_TYPES: dict[type, Read] = {int: _integer, float: _number, bool: _boolean}
_DEFAULTS = {name: getattr(Sampling(), name) for name in Sampling.__struct_fields__}
# What the server says itself: where a prompt may be cut, what else would change the form of an answer.
_OURS = {"n", "boundaries", "trace", "start_after", "outside", "on_full", "shift_keep", "add_special", "parse_special"}
# Ollama's name: how it is read
_REQUEST: dict[str, Read] = {
    **{name: _TYPES.get(type(default), _any) for name, default in _DEFAULTS.items()},
    **dict.fromkeys(sorted(set(RequestOptions.__struct_fields__) - _OURS), _any),
    "seed": _integer,
    "stop": _strings,
    "num_predict": _integer,
    "max_tokens": _integer,
    "logit_bias": biases,
}
_LOAD: dict[str, tuple[str, str, Read]] = {
    "num_batch": ("context_opts", "n_batch", _integer),
    "num_thread": ("context_opts", "n_threads", _integer),
    "num_gpu": ("model_opts", "n_gpu_layers", _integer),
    "main_gpu": ("model_opts", "main_gpu", _integer),
    "use_mmap": ("model_opts", "use_mmap", _boolean),
    "use_mlock": ("model_opts", "use_mlock", _boolean),
    "weight_residency": ("model_opts", "weight_residency", _any),
}
_AUTOMATIC = {"num_batch": 0, "num_thread": 0, "num_gpu": -1}  # values that leave the choice to us


def translate(options: Mapping[str, Any]) -> Parameters:
    """Raises InvalidRequestError naming the option and what it wants. ``null`` is as if it was not given.

    Load options are checked here to the end: a model that is loaded already never looks at them.
    """
    request: dict[str, Any] = {}
    load: dict[str, Any] = {}
    special: dict[str, int] = {}
    ignored = []
    for name, value in options.items():
        if value is None:
            continue
        if name in ("num_ctx", "num_keep"):
            special[name] = _integer(name, value)
        elif name in _LOAD:
            _put_load(load, name, value)
        elif name in _REQUEST:
            _put_request(request, name, _REQUEST[name](name, value))
        else:
            ignored.append(name)
    wanted = special.get("num_ctx", 0)
    n_ctx = max(wanted, MIN_CONTEXT) if wanted else None
    return Parameters(request, load, n_ctx, special.get("num_keep"), tuple(ignored))


def _put_load(load: dict[str, Any], name: str, value: Any) -> None:
    group, option, read = _LOAD[name]
    checked = read(name, value)
    if _AUTOMATIC.get(name) == checked:
        return
    if words := beyond(name, checked):
        raise InvalidRequestError(f'option "{name}" must be {words}', option=name)
    load.setdefault(group, {})[option] = checked


def _put_request(request: dict[str, Any], name: str, value: Any) -> None:
    if name == "num_predict":
        if value >= 0:  # -1 and -2: until the context is full
            request["max_tokens"] = value
    elif name == "seed" and value < 0:
        pass  # a new one each time
    else:
        request[name] = value


def merged(first: Parameters, second: Parameters) -> Parameters:
    """``second`` over ``first``."""
    return Parameters(
        first.request | second.request,
        merge(first.load, second.load),
        first.n_ctx if second.n_ctx is None else second.n_ctx,
        first.num_keep if second.num_keep is None else second.num_keep,
        first.ignored + second.ignored,
    )


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Groups are merged option by option."""
    both = {name: merge(first[name], second[name]) for name in first if _groups(first[name], second.get(name))}
    return {**first, **second, **both}


def _groups(first: Any, second: Any) -> bool:
    return isinstance(first, Mapping) and isinstance(second, Mapping)
