"""Ollama's environment variables, where they mean the same here, as values of our configuration. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from barrel_inference.config import ContextOpts, RegistryOpts, RuntimeConfig, ServerOptions
from barrel_inference.errors import ConfigError
from barrel_inference.options import config_file, layered
from barrel_inference.server.models.keepalive import parse_environment

DEFAULT_PORT = 8080
ENV_HOST = "BARREL_INFERENCE_HOST"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FALSE = ("0", "f", "F", "false", "FALSE", "False")
# Nobody can write 0 there: what still has it in the end was set by nobody.
_UNSET = RuntimeConfig(
    context_opts=ContextOpts(n_ctx=0, n_seq_max=0),
    server=ServerOptions(num_parallel=0),
    registry=RegistryOpts(max_context_size=0),
)


def configuration(environ: Mapping[str, str], flags: Mapping[str, Any]) -> RuntimeConfig:
    """Defaults < file < Ollama's variables < ours < flags."""
    config = layered(_UNSET, file=config_file(environ), environ={}, flags={})
    config = layered(config, file=None, environ={}, flags=ollama(environ))
    return _settled(layered(config, file=None, environ=environ, flags=_with_address(environ, flags)))


def _settled(config: RuntimeConfig) -> RuntimeConfig:
    """Two options may say how long a context is, and two how many requests share it: the server's own comes first,
    then the one of every context, then the default. A context that was wished for is not above the default limit."""
    server, context, registry = config.server, config.context_opts, config.registry
    size = server.context_size or context.n_ctx or None
    parallel = server.num_parallel or context.n_seq_max or ServerOptions().num_parallel
    most = registry.max_context_size or max(RegistryOpts().max_context_size, size or 0)
    n_ctx, n_seq_max = context.n_ctx or ContextOpts().n_ctx, context.n_seq_max or ContextOpts().n_seq_max
    return msgspec.structs.replace(
        config,
        server=msgspec.structs.replace(server, context_size=size, num_parallel=parallel),
        context_opts=msgspec.structs.replace(context, n_ctx=n_ctx, n_seq_max=n_seq_max),
        registry=msgspec.structs.replace(registry, max_context_size=most),
    )


def ollama(environ: Mapping[str, str]) -> dict[str, Any]:
    """Nested values; what is empty is as if it was not set. Raises ConfigError naming the variable."""
    given = {name: value.strip().strip("\"'") for name, value in environ.items()}
    given = {name: value for name, value in given.items() if value}
    server: dict[str, Any] = {}
    for name, option in _NUMBERS.items():
        if name in given:
            server[option] = _number(name, given[name])
    if server.get("num_parallel") == 0:  # as many as seem right
        del server["num_parallel"]
    if "OLLAMA_KEEP_ALIVE" in given:
        seconds = parse_environment(given["OLLAMA_KEEP_ALIVE"], 300.0)
        server["keep_alive_default_ms"] = -1 if seconds == math.inf else round(seconds * 1000)
    if "OLLAMA_ORIGINS" in given:
        server["origins"] = [origin.strip() for origin in given["OLLAMA_ORIGINS"].split(",") if origin.strip()]
    values: dict[str, Any] = {"server": server}
    if kind := given.get("OLLAMA_KV_CACHE_TYPE"):
        values["context_opts"] = {"type_k": kind, "type_v": kind}
    if flash := given.get("OLLAMA_FLASH_ATTENTION"):
        values.setdefault("context_opts", {})["flash_attn"] = flash not in _FALSE
    if n_ctx := server.pop("context_length", 0):
        server["context_size"] = n_ctx
        values["registry"] = {"max_context_size": n_ctx}
    return values


_NUMBERS = {
    "OLLAMA_NUM_PARALLEL": "num_parallel",
    "OLLAMA_MAX_QUEUE": "max_queue",
    "OLLAMA_MAX_LOADED_MODELS": "max_loaded_models",
    "OLLAMA_CONTEXT_LENGTH": "context_length",
}


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{name}={text!r} is not allowed: expected a whole number", option=name, value=text)
    return int(text)


def _with_address(environ: Mapping[str, str], flags: Mapping[str, Any]) -> dict[str, Any]:
    """BARREL_INFERENCE_HOST is where to listen, for the server, and whom to ask, for the commands."""
    values = dict(flags)
    if text := environ.get(ENV_HOST, "").strip():
        host, port = address(text)
        server = {"host": host, "port": port} | dict(values.get("server") or {})
        values["server"] = server
    return values


def address(text: str) -> tuple[str, int]:
    """``[scheme://]host[:port]``; as in Ollama a scheme without a port means the scheme's own. Raises ConfigError."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme.lower() not in _DEFAULT_PORTS:
        raise ConfigError(f"{text!r} is not an address: write http:// or https://", option=ENV_HOST, value=text)
    try:
        parts = urlsplit(f"//{rest if separator else _bracketed(text)}")
        default = _DEFAULT_PORTS[scheme.lower()] if separator else DEFAULT_PORT
        port = default if parts.port is None else parts.port
    except ValueError as error:
        raise ConfigError(f"{text!r} is not an address: {error}", option=ENV_HOST, value=text) from None
    return parts.hostname or "127.0.0.1", port


def url(text: str) -> str:
    """Whom a client asks: an address that means every interface means this machine."""
    scheme, separator, _ = text.partition("://")
    host, port = address(text)
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    name = f"[{host}]" if ":" in host else host
    return f"{scheme if separator else 'http'}://{name}:{port}"


def _bracketed(text: str) -> str:
    """A bare IPv6 address."""
    return f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text
