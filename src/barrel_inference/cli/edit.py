"""``barrel-inference edit``: change a model's parameters in place."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from barrel_inference.cli import remote
from barrel_inference.cli.installed import registry
from barrel_inference.cli.report import Json, print_json
from barrel_inference.errors import ConfigError
from barrel_inference.registry.modelfile.parameters import cap_note, parameter_lines, parse_parameter


def register(app: typer.Typer) -> None:
    app.command()(edit)


def edit(
    model: Annotated[str, typer.Argument(help="An installed model.")],
    changes: Annotated[list[str] | None, typer.Argument(help="name=value; stop may be given several times.")] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="<str>", help="A parameter to drop; repeatable.")
    ] = None,
    system: Annotated[str | None, typer.Option(help='Another system message; "" removes it.')] = None,
    template: Annotated[str | None, typer.Option(help='Another template; "" goes back to the model\'s own.')] = None,
    json: Json = False,
) -> None:
    """Change an installed model in place.

    Example: barrel-inference edit smollm2:135m temperature=0.2 num_ctx=8192
    """
    wanted: dict[str, Any] = {
        "parameters": _parse(changes or []),
        "unset": unset or [],
        "system": system,
        "template": template,
    }
    if (server := remote.named()) is not None:
        edited: dict[str, Any] = server.ask("POST", "/api/edit", {"model": model, **wanted})
        warning = edited.get("warning")
    else:
        models = registry()
        edited = msgspec.to_builtins(models.edit(model, **wanted))
        warning = cap_note(wanted["parameters"], models.options.max_context_size)
    if warning:
        typer.echo(warning, err=True)
    if json:
        print_json(edited)
    else:
        typer.echo(parameter_lines(edited.get("parameters", {})) or f"{model} has no parameters of its own")


def _parse(changes: list[str]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ConfigError(f"{change!r} is not of the form name=value", option="changes", value=change)
        value = parse_parameter(name, text)
        parameters[name] = [*parameters.get("stop", []), value] if name == "stop" else value
    return parameters
