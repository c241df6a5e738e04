"""Schemathesis against our own description: what it allows is asked, and every answer must be one that it tells of.

The same examples each time. The registry's endpoints are a hub on loopback that has nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, CheckContext, CheckFunction, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.server.harness import STUB, RunningServer
from tests.support.hub import Hub

MODELS = {"stub": {**STUB, "stub": {"eog_every": 8}}}
# What a plain request has; examples change some of it. Without it the first refusal would hide all others.
USUAL = {
    "model": "stub",
    "prompt": "Hi",
    "input": "Hi",
    "content": "Hi",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 8,
    "tokens": [104, 105],
}
EXAMPLES = settings(
    max_examples=10,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with Hub() as hub:
        hub.serve("/api/models", b"[]", content_type="application/json")
        runtime = {"registry": {"ollama_endpoint": hub.url, "hf_endpoint": hub.url, "max_attempts": 1}}
        with RunningServer(tmp_path_factory.mktemp("server"), models=MODELS, runtime=runtime) as running:
            yield running


class Described:
    """The document, and what came back so far."""

    def __init__(self, server: RunningServer) -> None:
        self._document = server.request("GET", "/openapi.json")[1]
        self._url = server.url
        self.statuses: Counter[tuple[str, int]] = Counter()

    def operations(self) -> list[APIOperation[Any, Any, Any, Any]]:
        found = schemathesis.openapi.from_dict(self._document).get_all_operations()
        return [each.ok() for each in found]  # type: ignore[union-attr]

    def failure_of(self, operation: APIOperation[Any, Any, Any, Any]) -> str:
        """What is wrong with its answers to a few examples; empty when nothing is."""
        usual = self._usual(operation)

        @EXAMPLES
        @given(operation.as_strategy(), st.integers(0, 3))
        def ask(case: Case[Any], n_odd: int) -> None:
            if isinstance(case.body, dict):
                case.body = usual | dict(list(case.body.items())[:n_odd])
            response = case.call(base_url=self._url, timeout=120.0)
            self.statuses[operation.label, response.status_code] += 1
            case.validate_response(response, checks=self._checks())

        try:
            ask()
        except Exception as error:
            return f"{operation.label}: {error}"
        return ""

    def _usual(self, operation: APIOperation[Any, Any, Any, Any]) -> dict[str, Any]:
        """A plain body for it."""
        described = self._document["paths"][operation.path][operation.method.lower()]
        content = described.get("requestBody", {}).get("content", {}).get("application/json", {})
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        fields = set(self._document["components"]["schemas"].get(name, {}).get("properties", {}))
        asked = [field for field in ("input", "prompt", "messages") if field in fields]
        fields -= set(asked[1:])  # one of them: the others are refused beside it
        return {field: value for field, value in USUAL.items() if field in fields}

    def _checks(self) -> list[CheckFunction]:
        standard = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
        return [*standard, self._pieces_conform]

    def _pieces_conform(self, context: CheckContext, response: Response, case: Case[Any]) -> None:
        """Of streams, which schemathesis does not look into so far."""
        lines = response.content.splitlines()
        described = self._document["paths"][case.operation.path][case.operation.method.lower()]["responses"]["200"]
        match response.headers.get("content-type", [""])[0].partition(";")[0]:
            case "application/x-ndjson" as kind:
                piece = described["content"][kind]["schema"]
            case "text/event-stream" as kind:
                piece = described["content"][kind]["schema"]["properties"]["data"]["contentSchema"]
                lines = [line[6:] for line in lines if line.startswith(b"data: ") and line != b"data: [DONE]"]
            case _:
                return
        validator = jsonschema_rs.validator_for({**piece, "components": self._document["components"]})
        for line in lines:
            validator.validate(json.loads(line))


def test_every_answer_is_one_that_the_document_tells_of(server: RunningServer) -> None:
    described = Described(server)
    operations = described.operations()
    failures = [failure for each in operations if (failure := described.failure_of(each))]
    assert not failures, "\n\n".join(failures)
    answered = {label for label, status in described.statuses if status < 400}
    generating = ("/api/chat", "/api/generate", "/v1/chat/completions", "/v1/responses", "/v1/messages")
    assert answered >= {f"POST {path}" for path in generating}, "the examples reach no further than the first check"
