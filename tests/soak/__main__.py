"""``scripts/soak [--minutes 30] [--seed 1]``: prints what happened and what the server held before and after.

Exits 1 when something was left unanswered, wrong, different from its solo run, or has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.soak.soak import Plan, Result, for_seconds, run
from tests.soak.usage import MIB, Row
from tests.support.models import smollm2

WARM_UP_SHARE = 0.2


def main() -> int:
    options = _options()
    seconds = options.minutes * 60
    plan = Plan(
        seed=options.seed,
        warm_up=partial(for_seconds, WARM_UP_SHARE * seconds),
        main=partial(for_seconds, (1 - WARM_UP_SHARE) * seconds),
        n_clients=options.clients,
        real=None if options.stub_only else smollm2(),
        pace_s=options.pace,
        real_pace_s=3.0,
    )
    with tempfile.TemporaryDirectory(prefix="barrel-soak-") as folder:
        result = asyncio.run(run(plan, Path(folder)))
    print(table(result))
    return 0 if result.good else 1


def table(result: Result) -> str:
    counts = [f"{count:8d}  {what}" for what, count in sorted(result.tally.counts.items())]
    head = f"{'':20} {'warm':>12} {'end':>12} {'at most':>12}"
    verdict = "all is well" if result.good else "SOMETHING IS WRONG"
    return "\n".join([*counts, "", head, *map(_line, result.rows), "", *result.tally.faults, verdict])


def _line(row: Row) -> str:
    shown = [f"{number / MIB:.1f} MiB" if number > MIB else str(number) for number in row[1:]]
    return (
        f"{row.name.replace('_', ' '):20} {shown[0]:>12} {shown[1]:>12} {shown[2]:>12}{'' if row.flat else '  GROWN'}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds between the questions of a client")
    parser.add_argument("--stub-only", action="store_true", help="without the real model")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
