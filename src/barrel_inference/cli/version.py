"""``barrel-inference version``: what is installed, without loading any of it."""

from __future__ import annotations

import platform
from importlib.metadata import version as installed

import typer

from barrel_inference.cli.report import Json, print_json


def register(app: typer.Typer) -> None:
    app.command()(version)


def version(json: Json = False) -> None:
    """Show the versions of Barrel Inference, llama.cpp and Python.

    Example: barrel-inference version --json
    """
    facts = {
        "version": installed("barrel-inference"),
        "llama_cpp_python": installed("llama-cpp-python"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    if json:
        print_json(facts)
    else:
        typer.echo("barrel-inference {version}  (llama-cpp-python {llama_cpp_python}, ".format_map(facts), nl=False)
        typer.echo("Python {python}, {platform})".format_map(facts))
