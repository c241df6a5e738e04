"""``barrel-inference show``: everything about one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from barrel_inference.cli import remote
from barrel_inference.cli.client import Client
from barrel_inference.cli.installed import configured, registry
from barrel_inference.cli.report import Json, human_bytes, print_json, printable
from barrel_inference.errors import ConfigError
from barrel_inference.registry import Manifest
from barrel_inference.registry.gguf import GgufInfo, Skipped
from barrel_inference.registry.modelfile.parameters import format_parameter, parameter_lines
from barrel_inference.registry.names import tagged

VALUE_WIDTH = 70


def register(app: typer.Typer) -> None:
    app.command()(show)


def show(
    model: Annotated[str, typer.Argument(help="A model; see barrel-inference list.")],
    modelfile: Annotated[bool, typer.Option("--modelfile", help="Only the Modelfile.")] = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="Only the parameters.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Only the template.")] = False,
    system: Annotated[bool, typer.Option("--system", help="Only the system message.")] = False,
    license: Annotated[bool, typer.Option("--license", help="Only the licence.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also metadata and tensors.")] = False,
    json: Json = False,
) -> None:
    """Show everything about one model.

    Example: barrel-inference show smollm2:135m
    """
    flags = {"modelfile": modelfile, "parameters": parameters, "template": template, "system": system}
    only = [name for name, wanted in (flags | {"license": license}).items() if wanted]
    if len(only) > 1:
        raise ConfigError("only one of --modelfile, --parameters, --template, --system, --license", option="show")
    server = remote.named()
    shown = _here(model, verbose) if server is None else _there(server, model, verbose)
    if json:
        print_json(shown.data)
    elif only:
        typer.echo(shown.parts.get(only[0], "").removesuffix("\n"))
    else:
        typer.echo(_page(shown.facts, shown.sections))


class Shown(NamedTuple):
    """A model as a server or the files of this machine have it."""

    data: dict[str, Any]
    parts: dict[str, str]  # by the flag that asks for one alone
    facts: dict[str, Any]
    sections: dict[str, list[str]]


def _there(server: Client, model: str, verbose: bool) -> Shown:
    found = server.ask("POST", "/api/show", {"model": model, "verbose": verbose})
    details, tensors = found["details"], found.get("tensors")
    facts = {
        "architecture": details["family"],
        "parameters": details["parameter_size"],
        "context length": details.get("context_length", ""),
        "embedding length": details.get("embedding_length", ""),
        "quantization": details["quantization_level"],
    }
    parts = {name: text for name, text in found.items() if isinstance(text, str)}
    sections = {
        "Capabilities": found["capabilities"],
        **_beginnings(parts),
        "Metadata": [] if tensors is None else metadata_lines(found["model_info"]),
        "Tensors": [_tensor_line(each["name"], each["type"], each["shape"]) for each in tensors or ()],
    }
    return Shown(found, parts, facts, sections)


def _here(model: str, verbose: bool) -> Shown:
    models = registry()
    described = next((m for m in configured() if str(m.model_name) == tagged(model)), None)
    manifest = described or models.resolve(model)
    where = manifest.blob_path if described else str(manifest.model_name)
    info = models.info(where) if verbose and where else None
    facts = {
        "architecture": manifest.architecture,
        "parameters": manifest.parameter_size,
        "context length": manifest.context_size or "",
        "embedding length": manifest.embedding_length or "",
        "quantization": manifest.quantization.upper(),
        "size": human_bytes(manifest.total_bytes),
        "digest": manifest.digest,
        "from": manifest.spec,
    }
    parts = {
        "modelfile": models.modelfile(manifest),
        "parameters": parameter_lines(manifest.parameters),
        "template": manifest.template or manifest.chat_template or "",
        "system": manifest.system or "",
        "license": "\n".join(manifest.license),
    }
    sections = {
        "Capabilities": list(manifest.capabilities),
        "Projector": [human_bytes(manifest.projector.size_bytes)] if manifest.projector else [],
        **_beginnings(parts),
        "Metadata": metadata_lines(info.metadata) if info else [],
        "Tensors": [_tensor_line(each.name, each.type, each.shape) for each in info.tensors] if info else [],
    }
    return Shown(_as_json(manifest, info), parts, facts, sections)


def _beginnings(parts: Mapping[str, str]) -> dict[str, list[str]]:
    return {
        "Parameters": parts.get("parameters", "").splitlines(),
        "System": _beginning(parts.get("system", "")),
        "License": _beginning(parts.get("license", "")),
    }


def metadata_lines(metadata: Mapping[str, Any]) -> list[str]:
    return [f"{key:<44} {_short(value)}" for key, value in metadata.items()]


def _short(value: Any) -> str:
    """On one line of a terminal, which nothing in it can steer; a long list by its length."""
    match value:
        case Skipped():
            return f"({value.n_items:,} values)"
        case None:  # how a server tells of one
            return "(a long list)"
        case bool() | int() | float():
            return format_parameter(value)
        case _:
            text = repr(str(value))[1:-1]
            return text if len(text) <= VALUE_WIDTH else text[: VALUE_WIDTH - 1] + "…"


def _as_json(manifest: Manifest, info: GgufInfo | None) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(manifest) | {"capabilities": manifest.capabilities}
    if info:
        value["metadata"] = info.metadata
        value["tensors"] = [tensor._asdict() for tensor in info.tensors]
    return value


def _tensor_line(name: str, kind: str, shape: Iterable[int]) -> str:
    return f"{name:<40} {kind:<8} {list(shape)}"


def _beginning(text: str) -> list[str]:
    """Two lines of it."""
    lines = text.splitlines()
    return lines[:2] + ["…"] * (len(lines) > 2)


def _page(facts: Mapping[str, Any], sections: Mapping[str, Iterable[str]]) -> str:
    """A section without lines is left out."""
    model = [f"{name:<20} {value}" for name, value in facts.items()]
    shown = {"Model": model, **sections}
    return "\n\n".join("\n    ".join([f"  {title}", *map(printable, lines)]) for title, lines in shown.items() if lines)
