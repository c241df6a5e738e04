"""The soak in short: a fixed number of questions on stub models, everything else as in half an hour of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.__main__ import table
from tests.soak.soak import Plan, run


@pytest.mark.slow
async def test_nothing_is_unanswered_different_or_left_behind(tmp_path: Path) -> None:
    plan = Plan(
        seed=1,
        warm_up=lambda: lambda count: count < 15,
        main=lambda: lambda count: count < 30,
        n_clients=4,
        n_questions=12,
    )
    result = await run(plan, tmp_path)
    assert result.good, table(result)
    counts = result.tally.counts
    for what in ("workers killed", "models unloaded", "models pulled", "garbage collected", "embeddings made"):
        assert counts[what], table(result)
