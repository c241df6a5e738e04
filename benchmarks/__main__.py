"""Runs the benchmarks named, or all of them, and writes ``benchmarks/results/``.

python -m benchmarks throughput stall --rounds 5
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import signal
import tempfile
from pathlib import Path

from barrel_inference.cli.local import find
from benchmarks import report
from benchmarks.setting import setting

ALL = (
    "throughput",
    "ttft",
    "save_cost",
    "write_amplification",
    "stall",
    "shared_head",
    "edits",
    "store_scale",
    "registry",
    "server",
)


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers that were started are stopped then too
    folder = Path(tempfile.gettempdir()) / "barrel-bench-quick" if options.quick else report.RESULTS
    path = asyncio.run(find(options.model)).path or ""
    rounds = 1 if options.quick else options.rounds
    wishes = {"lengths": tuple(options.lengths), "only": options.only, "llama_server": options.llama_server}
    with setting(path, rounds, options.quick, **wishes) as chosen:
        for name in options.names or ALL:
            benchmark = importlib.import_module(f"benchmarks.{name}")
            for table in asyncio.run(benchmark.measure(chosen)):
                print(report.save(table, folder))
    print(f"written to {folder}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ALL, []], metavar="NAME", help=", ".join(ALL))
    parser.add_argument("--model", default="smollm2:135m", help="a GGUF path or a registry name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=[], metavar="TOKENS", help="prompt lengths for ttft")
    parser.add_argument("--only", type=_names, default=(), metavar="FIGURE,…", help="figures of server")
    parser.add_argument("--llama-server", metavar="PATH", help="whom server is measured beside; found on the PATH")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, results to a temporary folder")
    return parser.parse_args()


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
