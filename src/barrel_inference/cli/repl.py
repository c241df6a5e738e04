"""``barrel-inference run MODEL`` on a terminal: a conversation, line by line. Owns the terminal while it runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from barrel_inference.cli.private import check_loading, server
from barrel_inference.cli.remote import follow
from barrel_inference.cli.report import one_line
from barrel_inference.cli.session import Session, limited, summary
from barrel_inference.cli.wishes import NO_WISHES, Wishes
from barrel_inference.errors import BarrelError

PROMPT, CONTINUED = ">>> ", "... "
FENCE = '"""'
HISTORY_LINES = 1000

Read = Callable[[str], str]
Write = Callable[[str], Any]


def converse(
    model: str,
    *,
    system: str | None = None,
    options: dict[str, Any] | None = None,
    cache: bool = True,
    verbose: bool = False,
    wishes: Wishes = NO_WISHES,
) -> None:
    """Until /bye or Ctrl-D. With no server running that knows the model a private one is started, and stopped at the
    end. ``options``: of every request; ``cache``: whether saved state is used and made; ``wishes``: until
    /set says otherwise. Raises UnsupportedError."""
    _note(f"loading {model} …")
    with server(model) as (client, name):
        check_loading(client, name, options or {})
        _pull_if_unknown(client, name)
        loaded = client.ask("POST", "/api/generate", {"model": name, "prompt": "", "options": options or {}})
        _note(f"{note}\n" if (note := limited(loaded)) else "")
        session = Session(client, name, system, options, cache=cache, wishes=wishes)
        session.verbose = verbose
        with _line_editing(session):
            loop(session, input, _write)


def _pull_if_unknown(client: Any, name: str) -> None:
    try:
        client.ask("POST", "/api/show", {"model": name})
    except BarrelError as error:
        if error.code != "model_not_found":
            raise
        _note("")
        follow(client, "/api/pull", {"model": name})


def _note(text: str) -> None:
    """On the line that the next note replaces."""
    sys.stderr.write(f"\r\033[K{text}")
    sys.stderr.flush()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def loop(session: Session, read: Read, write: Write) -> None:
    """One message or command after the other; no failure of one ends the conversation."""
    write("/? for help\n")
    while True:
        try:
            text = message(read)
        except EOFError:
            write("\n")
            return
        except KeyboardInterrupt:
            write("\nCtrl-D or /bye to leave\n")
            continue
        if text.strip() in ("/bye", "/exit"):
            return
        try:
            _turn(session, text, write)
        except BarrelError as error:
            write(f"error: {one_line(error)}\n")
        except KeyboardInterrupt:
            write("\n")


def message(read: Read) -> str:
    """One line, a paste of several, or what stands between two fences. Raises EOFError, KeyboardInterrupt."""
    line = read(PROMPT).rstrip("\n")
    if not line.startswith(FENCE):
        return line
    lines = [line.removeprefix(FENCE)]
    while not lines[-1].rstrip().endswith(FENCE):
        lines.append(read(CONTINUED))
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip("\n")


def _turn(session: Session, text: str, write: Write) -> None:
    if not text.strip():
        return
    if text.startswith("/"):
        write(session.command(text) + "\n")
        return
    with contextlib.closing(session.answer(text)) as pieces:  # closes the connection, which ends the work
        final = _tell(pieces, write)
    if session.verbose:
        write(summary(final) + "\n")


def _tell(pieces: Iterator[dict[str, Any]], write: Write) -> dict[str, Any]:
    """Write the answer as it comes; its last piece."""
    thinking = False
    piece: dict[str, Any] = {}
    for piece in pieces:
        said = piece["message"]
        if said.get("thinking"):
            write(said["thinking"] if thinking else "Thinking...\n" + said["thinking"])
            thinking = True
        if said.get("content"):
            write("\n...done thinking.\n\n" * thinking + said["content"])
            thinking = False
        for call in said.get("tool_calls") or ():
            write(f"\n[calls {call['function']['name']}({call['function']['arguments']})]")
    if piece.get("truncated_messages"):
        write(f"\n[the {piece['truncated_messages']} oldest messages no longer fit]")
    if gone := piece.get("truncated_tokens", 0) + piece.get("shifted_tokens", 0):
        write(f"\n[the context is full: {gone} tokens of what was said are no longer known]")
    write("\n")
    return piece


@contextlib.contextmanager
def _line_editing(session: Session) -> Iterator[None]:
    """Arrow keys, a history that lasts, and pastes of several lines as one message, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    import platformdirs

    file = Path(platformdirs.user_state_dir("barrel_inference")) / "history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(HISTORY_LINES)
    readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off
    try:
        yield
    finally:
        if session.history:
            with contextlib.suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(file)
