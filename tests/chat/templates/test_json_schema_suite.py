"""How much of JSON Schema can be enforced: the public test suite, against the grammars that schemas become."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from llguidance import LLMatcher

from barrel_inference.chat import schema
from barrel_inference.errors import SchemaError
from tests.chat.tools.test_families import TOKENIZER
from tests.support.json_schema_suite import groups

pytestmark = pytest.mark.slow


def matcher(given: Any) -> LLMatcher | str:
    """Or why the schema is refused."""
    try:
        usable = schema.usable(given)
    except SchemaError as error:
        return error.message
    made = LLMatcher(TOKENIZER, LLMatcher.grammar_from_json_schema(usable), log_level=0)
    return made.get_error() if made.is_error() else made


def allows(made: LLMatcher, value: Any) -> bool:
    data = list(json.dumps(value, ensure_ascii=False).encode())
    trial = made.deep_copy()
    return bool(trial.validate_tokens(data) == len(data) and trial.consume_tokens(data) and trial.is_accepting())


def judged(made: LLMatcher | str, case: dict[str, Any]) -> str:
    if isinstance(made, str):
        return "refused by name"
    allowed = allows(made, case["data"])
    return "right" if allowed == case["valid"] else "too strict" if case["valid"] else "too loose"


@pytest.mark.parametrize("draft", ["draft2020-12", "draft7"])
def test_the_suite(draft: str) -> None:
    counts: Counter[str] = Counter()
    by_keyword: dict[str, Counter[str]] = {}
    too_much: list[str] = []
    for stem, group in groups(draft):
        made = matcher(group["schema"])
        for case in group["tests"]:
            verdict = judged(made, case)
            counts[verdict] += 1
            by_keyword.setdefault(stem, Counter())[verdict] += 1
            if verdict == "too loose":
                too_much.append(f"{stem}: {group['description']}: {case['description']}")
    total = sum(counts.values())
    for stem, verdicts in sorted(by_keyword.items()):
        print(f"  {stem}: {dict(verdicts)}")
    print(f"{draft}: {dict(counts)} of {total}; too loose: {too_much}")
    assert total > 300
    assert not too_much, "what the schema forbids may be written"
    assert counts["right"] >= total * 0.6
