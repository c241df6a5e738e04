"""``barrel-inference cache …``: seeing and steering the KV store on disk without a server, or that of the server which
BARREL_INFERENCE_HOST names. What concerns a prompt loads the model, since only it knows the tokens. Owns nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

import msgspec
import typer

from barrel_inference.aio import AsyncModel, AsyncRuntime
from barrel_inference.cli import installed, local, remote
from barrel_inference.cli.client import Client
from barrel_inference.cli.private import made_known
from barrel_inference.cli.report import EXIT_FAILED, Json, counted, human_bytes, print_json, printable, table
from barrel_inference.errors import BarrelError, ConfigError
from barrel_inference.kvcache.admin.archive import Moved
from barrel_inference.kvcache.admin.content import Removed, Scrubbed
from barrel_inference.server.native.wire import EXPORTED
from barrel_inference.types import CacheLookup

T = TypeVar("T")

# Fields of ns.json, but for what follows from others
_TOLD = ("fingerprint", "quant_type", "type_k", "type_v", "flash_attn", "lora", "ctx_params_hash", "rope", "build")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Model = Annotated[str, typer.Argument(help="A GGUF file, or a name.")]
Prompt = Annotated[str | None, typer.Argument(help="The prompt, as for run. Piped input comes before it.")]
Raw = Annotated[bool, typer.Option("--raw", help="Take the text as it is, without the chat template.")]
Tier = Annotated[str | None, typer.Option(help="Only the tier of this name.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Show and manage the prompts that are kept.", rich_markup_mode=None)
    for command in (stats, lookup, pin, unpin, clear, verify, export):
        group.command()(command)
    group.command("import")(import_)
    app.add_typer(group, name="cache")


def stats(json: Json = False) -> None:
    """Show what each model keeps in each tier, and the counters.

    Counters are those of a server, since its start; without BARREL_INFERENCE_HOST of the one that runs on this machine.

    Example: barrel-inference cache stats
    """
    if (server := remote.named()) is not None:
        found = server.ask("GET", "/api/cache")
        names = {model["digest"]: model["name"] for model in server.ask("GET", "/api/tags")["models"]}
    else:
        found = asyncio.run(_with_runtime(_kept)) | _counted_here()
        names = installed.names_by_digest()
    if json:
        print_json(found)
    else:
        typer.echo(stats_text(msgspec.to_builtins(found), names))


async def _kept(runtime: AsyncRuntime) -> dict[str, Any]:
    return {"tiers": (await runtime.cache.stats()).tiers, "namespaces": await runtime.cache.namespaces()}


def _counted_here() -> dict[str, Any]:
    """By the server that runs on this machine; this process has served nobody."""
    here, counters = Client(), {}
    if here.is_ours():
        with suppress(BarrelError):
            counters = here.ask("GET", "/api/cache")
    return {name: counters.get(name, {}) for name in ("counters", "by_model")}


def stats_text(found: dict[str, Any], names: dict[str, str]) -> str:
    """``found``: as the server tells it; ``names``: of models, by the digest of their weights."""
    lines = []
    for tier in found["tiers"]:
        used = f"{human_bytes(tier.get('used_bytes', 0))} of {human_bytes(tier['quota_bytes'])}"
        objects = counted(tier.get("objects", 0), "object")
        lines.append(f"{tier['name']} ({tier['kind']})  {objects}, {used}  {tier.get('path', '')}".rstrip())
        held = [each for each in found["namespaces"] if each["tier"] == tier["name"]]
        labels = _labels([each["about"] for each in held], names)
        for each, label in zip(held, labels, strict=True):
            amount = f"{each['objects']:>7} objects  {human_bytes(each['bytes']):>10}"
            lines.append(f"  {each['namespace'][:12]}  {amount}  {printable(label)}")
    rows = [(name, _amount(name, value)) for name, value in sorted(found["counters"].items()) if value]
    return "\n".join([*lines, "", table([("COUNTER", "SINCE START"), *rows], numbers=[1])] if rows else lines)


def _labels(abouts: list[dict[str, Any]], names: dict[str, str]) -> list[str]:
    """A model's name, and where it has several namespaces in what it was loaded otherwise."""
    labels = []
    for about in abouts:
        kind = f"{about.get('architecture', '')} {about.get('quant_type', '')}"  # of a file without a name
        labels.append(names.get(about.get("fingerprint", "")) or kind.strip())
    told = []
    for label, about in zip(labels, abouts, strict=True):
        others = [other for name, other in zip(labels, abouts, strict=True) if name == label]
        differs = [field for field in _TOLD if len({str(other.get(field)) for other in others}) > 1]
        parts = ", ".join(f"{field}={about.get(field) or 'no'!s:.60}" for field in differs)
        told.append(f"{label} ({parts})" if parts else label)
    return told


def _amount(name: str, value: float) -> str:
    """A counter's name says its unit."""
    if name.endswith("_bytes"):
        return human_bytes(value)
    return f"{value:,.3f} s" if name.endswith("_s") or "_s_" in name else f"{value:,.0f}"


def lookup(model: Model, prompt: Prompt = None, raw: Raw = False, json: Json = False) -> None:
    """Show how much of a prompt would be restored.

    Example: barrel-inference cache lookup smollm2:135m < prompt.txt
    """

    async def work(runtime: AsyncRuntime, loaded: AsyncModel, text: str) -> Any:
        return await runtime.cache.lookup(loaded.id, text)

    found = _of_prompt("lookup", model, prompt, raw, work, CacheLookup)
    where = ", ".join(f"{tokens:,} in {name}" for name, tokens in found.by_tier.items())
    _tell(found, f"{found.cached_tokens:,} of {found.prompt_tokens:,} tokens" + (f": {where}" if where else ""), json)


def pin(model: Model, prompt: Prompt = None, raw: Raw = False, json: Json = False) -> None:
    """Keep what is stored of a prompt longer than anything else.

    Example: barrel-inference cache pin smollm2:135m < prompt.txt
    """

    async def work(runtime: AsyncRuntime, loaded: AsyncModel, text: str) -> dict[str, int]:
        return {"tokens": await runtime.cache.pin(loaded.id, text)}

    tokens = _of_prompt("pin", model, prompt, raw, work, dict[str, int])["tokens"]
    _tell({"pinned_tokens": tokens}, f"{tokens:,} tokens pinned", json)


def unpin(model: Model, prompt: Prompt = None, raw: Raw = False, json: Json = False) -> None:
    """Let a pinned prompt be evicted again. Exits 1 when it was not pinned.

    Example: barrel-inference cache unpin smollm2:135m < prompt.txt
    """

    async def work(runtime: AsyncRuntime, loaded: AsyncModel, text: str) -> dict[str, bool]:
        return {"was_pinned": await runtime.cache.unpin(loaded.id, text)}

    found = _of_prompt("unpin", model, prompt, raw, work, dict[str, bool])
    _tell(found, "unpinned" if found["was_pinned"] else "it was not pinned", json)
    if not found["was_pinned"]:
        raise typer.Exit(EXIT_FAILED)


def clear(
    namespace: Annotated[
        str | None, typer.Option(help="Only this namespace: 8 or more of its hex digits, from stats.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only what has not been used for this long: 90m, 12h, 30d.")
    ] = None,
    tier: Tier = None,
    json: Json = False,
) -> None:
    """Remove what is kept: everything, or what the options select. Running requests see misses.

    Example: barrel-inference cache clear --older-than 30d
    """
    older_than_s = None if older_than is None else seconds(older_than)

    async def work(runtime: AsyncRuntime) -> Any:
        return await runtime.cache.clear(namespace=namespace, older_than_s=older_than_s, tier=tier)

    body = {"namespace": namespace, "older_than_s": older_than_s, "tier": tier}
    removed = _of_store("clear", body, work, Removed)
    _tell(removed, f"{counted(removed.objects, 'object')} removed, {human_bytes(removed.bytes)}", json)


def verify(tier: Tier = None, json: Json = False) -> None:
    """Read and check every object; damaged ones go to quarantine. Exits 1 when there were any.

    Example: barrel-inference cache verify
    """

    async def work(runtime: AsyncRuntime) -> Any:
        return await runtime.cache.verify(tier=tier)

    found = _of_store("verify", {"tier": tier}, work, Scrubbed)
    _tell(found, f"{counted(found.objects, 'object')}, {human_bytes(found.bytes)}, {found.corrupt} damaged", json)
    if found.corrupt:
        raise typer.Exit(EXIT_FAILED)


def export(
    model: Model,
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    prompt: Prompt = None,
    raw: Raw = False,
    json: Json = False,
) -> None:
    """Write what is stored of a prompt to a file, for another machine.

    Example: barrel-inference cache export smollm2:135m warm.tar < prompt.txt
    """

    async def work(runtime: AsyncRuntime, loaded: AsyncModel, text: str) -> Any:
        return await runtime.cache.export(loaded.id, text, file)

    if (server := remote.named()) is not None:
        headers = server.download("/api/cache/export", _asked(server, model, prompt, raw), file)
        moved = msgspec.json.decode(headers[EXPORTED], type=Moved)
    else:
        moved = asyncio.run(_with_model(model, prompt, raw, work))
    _tell(moved, f"{counted(moved.objects, 'object')} written to {file}, {human_bytes(moved.bytes)}", json)


def import_(
    file: Annotated[Path, typer.Argument(help="A file written by export.")],
    tier: Annotated[str | None, typer.Option(help="Where to put them. Default: the first tier.")] = None,
    json: Json = False,
) -> None:
    """Put an exported file's objects into the store.

    Example: barrel-inference cache import warm.tar
    """

    source = file.absolute()

    async def work(runtime: AsyncRuntime) -> Any:
        return await runtime.cache.import_(source, tier=tier or local.first_tier(runtime.config))

    if (server := remote.named()) is not None:
        query = f"?{urlencode({'tier': tier})}" if tier else ""
        moved = msgspec.convert(server.upload(f"/api/cache/import{query}", file), Moved)
    else:
        moved = asyncio.run(_with_runtime(work))
    more = {"already there": moved.present, "refused": moved.refused}
    others = "".join(f", {number:,} {what}" for what, number in more.items() if number)
    _tell(moved, f"{counted(moved.objects, 'object')} imported, {human_bytes(moved.bytes)}{others}", json)


def seconds(text: str) -> float:
    """'90m', '12h', '30d'. Raises ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip().lower())
    if match is None:
        raise ConfigError(f"{text!r} is not a time; write 90m, 12h or 30d", option="older_than", value=text)
    return float(match[1]) * _UNITS[match[2]]


def _tell(value: Any, text: str, json: bool) -> None:
    if json:
        print_json(value)
    else:
        typer.echo(text)


def _of_store(what: str, body: dict[str, Any], work: Callable[[AsyncRuntime], Awaitable[T]], kind: type[T]) -> T:
    """Of the server that is named, or of this machine's."""
    if (server := remote.named()) is not None:
        return msgspec.convert(server.ask("POST", f"/api/cache/{what}", body), kind)
    return asyncio.run(_with_runtime(work))


def _of_prompt(
    what: str,
    model: str,
    prompt: str | None,
    raw: bool,
    work: Callable[[AsyncRuntime, AsyncModel, str], Awaitable[T]],
    kind: type[T],
) -> T:
    """The same about the prompt as ``run`` would send it."""
    if (server := remote.named()) is None:
        return asyncio.run(_with_model(model, prompt, raw, work))
    return msgspec.convert(server.ask("POST", f"/api/cache/{what}", _asked(server, model, prompt, raw)), kind)


def _asked(server: Client, model: str, prompt: str | None, raw: bool) -> dict[str, str]:
    text, name = local.question(prompt), made_known(server, model)
    if not raw:  # the server knows what a model's own Modelfile puts around it
        turn = {"model": name, "messages": [{"role": "user", "content": text}], "truncate": False, "stream": False}
        shown = server.ask("POST", "/api/chat", turn | {"_debug_render_only": True})
        text = shown["_debug_info"]["rendered_template"]
    return {"model": name, "prompt": text}


async def _with_runtime(work: Callable[[AsyncRuntime], Awaitable[T]]) -> T:
    async with AsyncRuntime(local.configuration()) as runtime:
        return await work(runtime)


async def _with_model(
    name: str, prompt: str | None, raw: bool, work: Callable[[AsyncRuntime, AsyncModel, str], Awaitable[T]]
) -> T:
    """The prompt as ``run`` would send it."""
    text = local.question(prompt)
    entry = await local.find(name)
    async with AsyncRuntime(local.configuration()) as runtime:
        loaded = await local.load(runtime, entry)
        own = local.template(entry)
        if not raw and (own or loaded.info().chat_template is not None):
            text = await loaded.apply_template(local.conversation(entry, text), **own)
        return await work(runtime, loaded, text)
