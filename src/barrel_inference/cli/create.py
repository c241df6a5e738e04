"""``barrel-inference create``: a model of one's own from a Modelfile."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from barrel_inference.cli import remote
from barrel_inference.cli.client import Client
from barrel_inference.cli.installed import registry
from barrel_inference.cli.progress import Display, display, follow
from barrel_inference.cli.pull import Json, JsonLines
from barrel_inference.errors import ModelfileError, os_reason
from barrel_inference.registry.create import CreateRequest, local_files
from barrel_inference.registry.modelfile import parse, render


def register(app: typer.Typer) -> None:
    app.command()(create)


def create(
    name: Annotated[str, typer.Argument(help="The new model's name.")],
    file: Annotated[Path, typer.Option("--file", "-f", help="The Modelfile; - reads standard input.")] = Path(
        "Modelfile"
    ),
    base: Annotated[str | None, typer.Option("--from", help="A model, GGUF or spec, instead of a Modelfile.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow http:// when FROM must be fetched.")] = False,
    json: Json = False,
) -> None:
    """Make a model of your own from a Modelfile.

    It can have another system message, other parameters, an adapter, or weights of your own.

    Example: barrel-inference create pirate -f Modelfile

    Example: barrel-inference create mine --from ./weights.gguf
    """
    modelfile = None if base is not None else _read(file)
    directory = Path.cwd() if base is not None or str(file) == "-" else file.absolute().parent
    shown = JsonLines() if json else display()
    if (server := remote.named()) is not None:
        uploads = Uploads(server, directory, shown)
        body = uploads.of_base(base) if modelfile is None else uploads.of_modelfile(modelfile)
        remote.follow(server, "/api/create", {"model": name, **body}, shown)
        return
    request = CreateRequest(from_=base, modelfile=modelfile, directory=str(directory), insecure=insecure)
    asyncio.run(follow(registry().create(name, request), shown))


class Uploads:
    """What to ask a server for, with the files of this machine sent there first."""

    def __init__(self, server: Client, directory: Path, shown: Display) -> None:
        self._server, self._directory, self._shown = server, directory, shown

    def of_base(self, base: str | None) -> dict[str, Any]:
        files = local_files(base or "", self._directory)
        return {"files": {path.name: self._send(path) for path in files}} if files else {"from": base}

    def of_modelfile(self, content: bytes) -> dict[str, Any]:
        """As it is, but for paths."""
        said = parse(content)
        sent = msgspec.structs.replace(said, sources=self._sent(said.sources), adapters=self._sent(said.adapters))
        return {"modelfile": content.decode(errors="replace") if sent == said else render(sent)}

    def _sent(self, sources: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for source in sources for name in self._names(source))

    def _names(self, source: str) -> list[str]:
        return [f"@{self._send(path)}" for path in local_files(source, self._directory)] or [source]

    def _send(self, path: Path) -> str:
        """Its digest, once the server has it."""
        self._shown.show({"status": f"hashing {path.name}"})
        with path.open("rb") as content:
            digest = f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
        if not self._server.has_blob(digest):
            self._shown.show({"status": f"uploading {path.name}"})
            self._server.upload(f"/api/blobs/{digest}", path)
        return digest


def _read(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelfileError(f"{file}: {os_reason(error)}; name it with -f, or use --from") from None
