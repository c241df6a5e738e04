"""From what people write (keyword arguments, a TOML file, the environment, flags) to the frozen values of config.py.

One function checks every value against its annotation; an error names the option, the value and what is allowed. Pure
but for reading the file.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from barrel_inference.errors import BarrelError, ConfigError

T = TypeVar("T", bound=msgspec.Struct)

ENV_PREFIX = "BARREL_INFERENCE_"
ENV_ELSEWHERE = frozenset(ENV_PREFIX + name for name in ("CONFIG", "HOST", "API_KEY"))  # no fields of a configuration
SECRETS = frozenset({"api_keys", "hf_token", "registry_credentials"})  # shown to nobody, not in an error either


def build(
    base: T,
    values: Mapping[str, Any],
    *,
    prefix: str = "",
    strict: bool = True,
    error: type[BarrelError] = ConfigError,
) -> T:
    """``base`` with ``values`` in place of its own; groups are merged field by field. Raises ``error``.

    ``strict=False`` also reads numbers and booleans from text, as the environment gives them.
    """
    fields = {field.name: field for field in msgspec.structs.fields(type(base))}
    changes: dict[str, Any] = {}
    for key, value in values.items():
        option = f"{prefix}{key}"
        if key not in fields:
            raise error(f"unknown option {option!r}{nearest(key, fields)}", option=option)
        changes[key] = _convert(getattr(base, key), fields[key].type, option, value, strict, error)
    return msgspec.structs.replace(base, **changes)


def nearest(key: object, known: Iterable[str]) -> str:
    """``; did you mean …?``, or the known keys when none is near; nothing when there are none."""
    names = sorted(known)
    if close := difflib.get_close_matches(str(key), names, n=1):
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


def _convert(current: Any, wanted: Any, option: str, value: Any, strict: bool, error: type[BarrelError]) -> Any:
    if isinstance(current, msgspec.Struct):
        if isinstance(value, type(current)):
            value = msgspec.structs.asdict(value)
        if isinstance(value, Mapping):
            return build(current, value, prefix=f"{option}.", strict=strict, error=error)
        raise error(f"{option}={value!r}: expected a table of options", option=option, value=repr(value))
    try:
        converted = msgspec.convert(value, wanted, strict=strict)
        msgspec.msgpack.encode(converted)  # finds lone surrogates, huge integers and objects, which reach no worker
        return converted
    except (msgspec.ValidationError, TypeError, UnicodeError, OverflowError, RecursionError) as problem:
        allowed = describe(inspect.type_info(wanted))
        shown = "***" if option.rpartition(".")[2] in SECRETS else _shown(value)
        raise error(
            f"{option}={shown} is not allowed: expected {allowed}{_beyond(problem)}",
            option=option,
            value=shown,
            allowed=allowed,
        ) from None


def _beyond(problem: Exception) -> str:
    """What the allowed values do not say: where in a list or table it is wrong, or why text cannot be sent."""
    if not isinstance(problem, msgspec.ValidationError):
        return f" ({problem})"
    _, inside, place = str(problem).partition(" - at ")
    return f" ({problem})" if inside and place else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def describe(kind: inspect.Type) -> str:
    """What a type allows, in words."""
    match kind:
        case inspect.UnionType(types=types):
            return " or ".join(describe(each) for each in types)
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(repr(value) for value in values)
        case inspect.IntType() | inspect.FloatType():
            return ("an integer" if isinstance(kind, inspect.IntType) else "a number") + _bounds(kind)
        case inspect.StrType() if kind.pattern or kind.min_length or kind.max_length:
            return f"text like {kind.pattern}" if kind.pattern else "text" + _length(kind, " long")
        case inspect.VarTupleType(item_type=item):
            return "a list of " + describe(item) + _length(kind)
        case inspect.TupleType(item_types=items):
            return "(" + ", ".join(describe(item) for item in items) + ")"
        case inspect.StructType(fields=fields):
            return "a table of " + ", ".join(field.name for field in fields)
        case _:
            words = {"BoolType": "true or false", "StrType": "text", "NoneType": "None", "DictType": "a table"}
            return words.get(type(kind).__name__, type(kind).__name__)


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    limits = {">=": kind.ge, ">": kind.gt, "<=": kind.le, "<": kind.lt}
    parts = [f"{sign} {_number(limit)}" for sign, limit in limits.items() if limit is not None]
    return " " + " and ".join(parts) if parts else ""


def _number(value: float) -> str:
    """Whole numbers with all their digits, so that a limit is what may be written."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def _length(kind: inspect.StrType | inspect.VarTupleType, unit: str = "") -> str:
    limits = {"at least": kind.min_length, "at most": kind.max_length}
    parts = [f"{word} {limit}{unit}" for word, limit in limits.items() if limit]
    return ", " + " and ".join(parts) if parts else ""


def layered(base: T, *, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> T:
    """``base`` (the defaults) < TOML file < environment < flags. Flags that are None were not given."""
    if file is not None:
        base = _from_file(base, file)
    base = build(base, _from_environment(base, environ), strict=False)
    return build(base, {key: value for key, value in flags.items() if value is not None})


def _from_file(base: T, file: Path) -> T:
    try:
        return build(base, read_toml(file))
    except ConfigError as error:
        raise ConfigError(f"configuration file {file}: {error}", **error.details, file=str(file)) from None


def read_toml(file: Path) -> dict[str, Any]:
    """Raises ConfigError for a file that cannot be read or parsed."""
    import tomllib  # not for those who only import the package

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(reason) from error


def config_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file that BARREL_INFERENCE_CONFIG names, else the user's own if there is one."""
    import platformdirs

    if named := environ.get("BARREL_INFERENCE_CONFIG"):
        return Path(named)
    default = platformdirs.user_config_path("barrel_inference") / "config.toml"
    return default if default.is_file() else None


def users_own(base: T) -> T:
    """``base`` < the file of ``config_file`` < the environment."""
    return layered(base, file=config_file(), environ=os.environ, flags={})


def _from_environment(base: msgspec.Struct, environ: Mapping[str, str]) -> dict[str, Any]:
    """The nested values that variables such as BARREL_INFERENCE_CONTEXT_OPTS_N_CTX set."""
    known = {ENV_PREFIX + "_".join(path).upper(): path for path in _leaves(base)}
    values: dict[str, Any] = {}
    for name in environ:
        if not name.startswith(ENV_PREFIX) or name in ENV_ELSEWHERE:
            continue
        if name not in known:
            raise ConfigError(f"unknown environment variable {name}{nearest(name, known)}", option=name)
        _put(values, known[name], _literal(environ[name]))
    return values


def _leaves(base: msgspec.Struct, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in base.__struct_fields__:
        value = getattr(base, name)
        if isinstance(value, msgspec.Struct):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _literal(text: str) -> Any:
    """Lists and tables are written as JSON; everything else is left to the conversion."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
