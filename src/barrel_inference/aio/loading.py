"""From the keywords of ``load_model`` to the LoadOptions that a worker gets. Owns nothing.

Everything that can be wrong with the options of a load is found here, before any process starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from barrel_inference.config import (
    BACKEND_GROUP,
    BACKENDS,
    ContextOpts,
    LoadArguments,
    LoadOptions,
    ModelOpts,
    Policy,
    RuntimeConfig,
)
from barrel_inference.errors import ConfigError, InvalidModelError, os_reason
from barrel_inference.fingerprint import Fingerprints, identity
from barrel_inference.kvcache import policy
from barrel_inference.options import build, nearest
from barrel_inference.registry import Registry, gguf

_GROUPS = {
    "context_opts": ContextOpts.__struct_fields__,
    "model_opts": ModelOpts.__struct_fields__,
    "policy": Policy.__struct_fields__,
}
_FULL_PRECISION = ("f16", "f32", "bf16")


def parse(options: Mapping[str, Any], config: RuntimeConfig, model_id: str | None = None) -> LoadArguments:
    """Check every option by itself and against the others. Raises ConfigError. ``model_id`` is for its words alone."""
    _check_groups(options)
    base = LoadArguments(
        model_opts=config.model_opts,
        context_opts=config.context_opts,
        policy=config.policy,
        fingerprint_mode=config.fingerprint_mode,
        exact=config.exact,
    )
    arguments = build(base, {name: _loose(name, value) for name, value in options.items()})
    _check_backend(arguments, model_id)
    _check_context(arguments)
    policy.check(arguments.policy)
    return arguments


def _check_groups(options: Mapping[str, Any]) -> None:
    """What belongs into a table is not looked for beside it."""
    for name, value in options.items():
        group = next((group for group, known in _GROUPS.items() if name in known), None)
        if group is not None and name not in LoadArguments.__struct_fields__:
            raise ConfigError(
                f"unknown option {name!r}; it belongs to {group}: {group}={{{name!r}: {value!r:.80}}}", option=name
            )


def _loose(name: str, value: Any) -> Any:
    """The other forms that values come in: paths, and digests as bytes."""
    if name == "model_path":
        return text(value)
    if name == "lora" and isinstance(value, list | tuple):
        return [[text(each[0]), *each[1:]] if isinstance(each, list | tuple) and each else each for each in value]
    if name in ("fingerprint", "ctx_params_hash") and value is not None:
        return _digest(name, value)
    return value


def text(path: Any) -> Any:
    """A path as text; what is none is left to the check of the options."""
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _digest(name: str, value: Any) -> str:
    try:
        raw = value if isinstance(value, bytes) else bytes.fromhex(value)
    except (TypeError, ValueError):
        raw = b""
    if len(raw) != 32:
        raise _refused(name, value, "32 bytes or 64 hex digits")
    return raw.hex()


def _refused(option: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(
        f"{option}={value!r} is not allowed: expected {allowed}", option=option, value=repr(value), allowed=allowed
    )


def _check_backend(arguments: LoadArguments, model_id: str | None) -> None:
    name = arguments.backend
    if name not in BACKENDS:
        from importlib.metadata import entry_points  # slow to import, and rarely needed

        known = [*BACKENDS, *(entry.name for entry in entry_points(group=BACKEND_GROUP))]
        if name not in known:
            raise ConfigError(
                f"unknown backend {name!r}{nearest(name, known)}", option="backend", value=name, allowed=known
            )
    if name == "llama" and arguments.model_path is None:
        raise _without_path(model_id)
    if arguments.fingerprint_mode == "fast_unsafe" and arguments.fingerprint is None:
        raise _refused("fingerprint", None, "32 bytes or 64 hex digits, with fingerprint_mode='fast_unsafe'")


def _without_path(model_id: str | None) -> ConfigError:
    expected = "model_path: the path of a GGUF file, or the name of an installed model"
    if model_id is None:
        text = f"nothing says what to load: expected {expected}"
    else:
        text = (
            f"nothing says what to load: {model_id!r:.200}, which comes first, is the id that the loaded model gets; "
            f"expected {expected}, as in load_model(model_path={model_id!r:.200})"
        )
    return ConfigError(text, option="model_path", value="None", allowed=expected)


def _check_context(arguments: LoadArguments) -> None:
    context = arguments.context_opts
    if context.n_ubatch is not None and context.n_ubatch > context.n_batch:
        raise _refused("context_opts.n_ubatch", context.n_ubatch, f"at most n_batch={context.n_batch}")
    if context.n_batch < context.n_seq_max:
        raise _refused("context_opts.n_batch", context.n_batch, f"at least n_seq_max={context.n_seq_max}")
    if context.type_v not in _FULL_PRECISION and context.flash_attn is False:
        allowed = ", ".join(_FULL_PRECISION)
        raise _refused("context_opts.type_v", context.type_v, f"{allowed}: a quantised V needs flash_attn")
    if arguments.context_size is not None and arguments.context_size > context.n_ctx:
        raise _refused("context_size", arguments.context_size, f"at most n_ctx={context.n_ctx}")


def absolute(path: str) -> Path:
    """Against the working directory of this moment. Raises ConfigError for what cannot be a path."""
    try:
        if b"\0" not in path.encode():
            return Path(path).expanduser().absolute()
    except (UnicodeEncodeError, RuntimeError):  # RuntimeError: ~ of a user who does not exist
        pass
    raise _refused("path", path, "a path")


def locate(model: str, registry: Registry) -> Path:
    """The file to load: a path, or what a name or spec of an installed model stands for. Raises ConfigError,
    ModelNotFoundError or InvalidModelError."""
    if "\0" not in model:  # which no name holds either
        absolute(model)
    try:
        return registry.locate(model).path
    except OSError as error:  # a name too long, a folder that may not be entered
        raise InvalidModelError(f"{model:.80}: {os_reason(error)}") from error


def resolve(model_id: str, arguments: LoadArguments, cwd_path: Path | None, fingerprints: Fingerprints) -> LoadOptions:
    """All but the tiers. Reads files, perhaps all of them, so it is not for an event loop. Raises InvalidModelError or
    ConfigError."""
    lora = [(absolute(path), scale) for path, scale in arguments.lora]
    shards = () if cwd_path is None else gguf.read(cwd_path).shards
    paths = [*shards, *(path for path, _scale in lora)]
    files = tuple((str(path), identity(path)) for path in paths)  # before they are read for their fingerprints
    if shards:
        fingerprint = fingerprints.of_model(shards, arguments.fingerprint_mode, arguments.fingerprint)
    else:
        fingerprint = (
            arguments.fingerprint or sha256(f"{arguments.backend} {arguments.stub.get('model')}".encode()).hexdigest()
        )
    if arguments.backend == "llama":
        for path, _scale in lora:
            _check_adapter(path)
    return LoadOptions(
        id=model_id,
        backend=arguments.backend,
        model_path=None if cwd_path is None else str(cwd_path),
        model_opts=arguments.model_opts,
        context_opts=arguments.context_opts,
        fingerprint=fingerprint,
        files=files,
        quant_type=arguments.quant_type,
        quant_bits=arguments.quant_bits,
        ctx_params_hash=arguments.ctx_params_hash,
        context_size=arguments.context_size,
        policy=arguments.policy,
        lora=tuple((str(path), scale, fingerprints.of_file(path)) for path, scale in lora),
        exact=arguments.exact,
        cache=arguments.cache,
        tool_call_markers=arguments.tool_call_markers,
        thinking_markers=arguments.thinking_markers,
        stub=arguments.stub,
    )


def _check_adapter(path: Path) -> None:
    """Before llama.cpp sees it: as bounded a look as at the model itself."""
    header, _size = gguf.read_file(path)
    if header.metadata.get("general.type") != "adapter" or header.metadata.get("adapter.type") != "lora":
        raise InvalidModelError(f"{path.name}: a GGUF, but no LoRA adapter", path=str(path))
