"""``barrel-inference``: one file per command, imported only when it is the one asked for, or for the help.

Every command file has ``register(app)`` and imports nothing heavy at its top. Owns the exit code and the last line of
every failure.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import typer

from barrel_inference.cli.descriptors import open_standard
from barrel_inference.cli.report import EXIT_FAILED, EXIT_INTERRUPTED, exit_code, one_line, printable
from barrel_inference.errors import BarrelError, os_reason

# The file of a command has its name.
_SERVING = ("serve", "run", "stop", "ps")
_MODELS = ("pull", "push", "list", "show", "create", "cp", "rm", "edit", "search", "verify", "gc")
_REST = ("embed", "demo", "bench", "doctor", "version", "cache", "config")
COMMANDS = (*_SERVING, *_MODELS, *_REST)

HELP = "Run large language models from GGUF files on this machine, and never read a prompt twice."


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application with the one command that ``arguments`` ask for, or with all of them when they ask for help."""
    app = typer.Typer(
        name="barrel-inference",
        help=HELP,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help is three times faster to show, and reads the same in a pipe
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_callback)
    asked = arguments[0] if arguments else ""
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        importlib.import_module(f"barrel_inference.cli.{name}").register(app)
    return app


def _callback() -> None:
    """Makes the application a group even when a single command is registered."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    open_standard()
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["help"]
    help_as_data = arguments[0] == "help" and "--json" in arguments
    if arguments[0] == "help":
        arguments = arguments[1:] if help_as_data else [*arguments[1:], "--help"]
    elif arguments[0] in ("--version", "-v"):
        arguments[0] = "version"
    try:
        if help_as_data:
            return _describe(arguments)
        return build(arguments)(arguments, standalone_mode=False) or 0
    except typer.TyperException as error:  # wrong usage
        sys.stderr.write(f"error: {error.format_message()}  (see barrel-inference {_asked(error)}--help)\n")
        return error.exit_code
    except BarrelError as error:
        sys.stderr.write(f"error: {one_line(error)}\n")
        return exit_code(error)
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        _drop_output()
        return 1
    except OSError as error:  # of a disk, more often than not the one that our output goes to
        _drop_output()
        place = error.filename or "output"
        sys.stderr.write(f"error: {printable(f'{place}: {os_reason(error)}')}\n")
        return EXIT_FAILED
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED


def _describe(arguments: Sequence[str]) -> int:
    """``help … --json``."""
    from barrel_inference.cli.help import describe

    words = [word for word in arguments if word != "--json"]
    describe(build(words), words)
    return 0


def _drop_output() -> None:
    """What could not be written is not tried again at the end of the process, which would complain."""
    with suppress(OSError):  # where standard output is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _asked(error: typer.TyperException) -> str:
    """The command whose usage was wrong, with its group: ``cache lookup``."""
    words, context = "", getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        words, context = f"{context.info_name} {words}", context.parent
    return words


if __name__ == "__main__":
    sys.exit(main())
