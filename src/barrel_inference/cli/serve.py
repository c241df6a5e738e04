"""``barrel-inference serve``: the server, until it is told to stop. Owns nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from typing import Annotated, Any, Literal

import msgspec
import typer

from barrel_inference.cli import local
from barrel_inference.cli.client import Client
from barrel_inference.cli.log import STDERR, OneLine, Patient
from barrel_inference.cli.private import weights_file
from barrel_inference.cli.wishes import keep_s
from barrel_inference.config import RuntimeConfig, ServerOptions
from barrel_inference.errors import ConfigError, ListenError
from barrel_inference.registry.names import name_of, tagged
from barrel_inference.server.environment import address

_log = logging.getLogger(__name__)

Level = Literal["debug", "info", "warning", "error"]


def register(app: typer.Typer) -> None:
    app.command()(serve)
    app.command("start", hidden=True)(serve)


def serve(
    host: Annotated[str | None, typer.Option(help="Where to listen, as host[:port]. [default: 127.0.0.1:8080]")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on.")] = None,
    parallel: Annotated[int | None, typer.Option(help="Requests that one model answers at a time.")] = None,
    ctx: Annotated[
        int | None, typer.Option(help="Context length, in tokens, and the most a request may ask for.")
    ] = None,
    keep_alive: Annotated[str | None, typer.Option(help="How long an idle model stays loaded: 10m, 1h, -1.")] = None,
    preload: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="Load this model or GGUF file at the start; repeatable.")
    ] = None,
    insecure_no_auth: Annotated[
        bool, typer.Option("--insecure-no-auth", help="Let other machines connect without an API key.")
    ] = False,
    log_level: Annotated[Level, typer.Option(help="How much to log to standard error.")] = "info",
    json: Annotated[bool, typer.Option("--json", help="Print the address as a line of JSON.")] = False,
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> None:
    """Serve Ollama's, OpenAI's and Anthropic's API on this machine.

    Example: barrel-inference serve

    Example: barrel-inference serve --host 0.0.0.0:11434 --parallel 8

    Example: barrel-inference serve --preload ./model.gguf --ctx 8192
    """
    flags: dict[str, Any] = {
        "port": port,
        "num_parallel": parallel,
        "context_size": ctx,
        "preload": preload,
        "insecure_no_auth": insecure_no_auth or None,
        "keep_alive_default_ms": None if keep_alive is None else _milliseconds(keep_s("--keep-alive", keep_alive)),
    }
    if host is not None:
        flags["host"], flags["port"] = address(host if port is None else f"{host}:{port}")
    config = local.configuration(server=_given(flags), registry=_given({"max_context_size": ctx}))
    _log_to_stderr(log_level)
    if until_eof:
        threading.Thread(target=_end_at_eof, name="until eof", daemon=True).start()
    try:
        run(_with_files(config), json)
    except ListenError as error:
        raise _taken(error, config.server) from None


def _end_at_eof() -> None:
    """Whoever has started us holds the other end of standard input, and is gone when that closes."""
    while sys.stdin.buffer.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _with_files(config: RuntimeConfig) -> RuntimeConfig:
    """A file that is to be loaded from the start is one of the server's models, by the name that ``run`` gives it.
    Raises ConfigError for a name that is taken."""
    models, names = dict(config.server.models), []
    known = {tagged(name): options.get("model_path") for name, options in models.items()}
    for wanted in config.server.preload:
        file = None if tagged(wanted) in known else weights_file(wanted)
        name = wanted if file is None else name_of(file).name
        names.append(name)
        if file is None:
            continue
        if known.setdefault(tagged(name), file) != file:
            raise ConfigError(f"--preload {wanted}: another model is called {name} (server.models)", option="preload")
        models.setdefault(name, {"model_path": file})
        _log.info("%s is called %s here", file, name)
    server = msgspec.structs.replace(config.server, models=models, preload=tuple(names))
    return msgspec.structs.replace(config, server=server)


def _taken(error: ListenError, options: ServerOptions) -> ListenError:
    """Also says so where it is another one of us that listens there."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    if not Client(f"{host}:{options.port}").is_ours():
        return error
    return ListenError(f"{error.message}: a barrel-inference server runs there already")


def run(config: RuntimeConfig, json: bool = False) -> None:
    from barrel_inference.server.serving import serve  # uvicorn and starlette, for this command only

    def listening(url: str) -> None:
        typer.echo(f'{{"url": "{url}"}}' if json else f"listening on {url}")
        sys.stdout.flush()

    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(config, listening=listening))
    else:
        uvloop.run(serve(config, listening=listening))


def _milliseconds(seconds: float) -> int:
    return -1 if seconds < 0 else round(seconds * 1000)


def _log_to_stderr(level: Level) -> None:
    handler = Patient(STDERR)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
