"""The models, as Anthropic's clients list and describe them; OpenAI's see the same path in their own form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barrel_inference.errors import InvalidRequestError
from barrel_inference.server.anthropic import wire
from barrel_inference.server.anthropic.models import page
from tests.server.harness import RunningServer

VERSION = {"anthropic_version": "2023-06-01"}


def models(*ids: str) -> list[wire.Model]:
    return [wire.Model(id=each, display_name=each, created_at="2026-01-01T00:00:00Z") for each in ids]


@pytest.mark.parametrize(
    ("asked", "ids", "has_more"),
    [
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "c"}, "de", False),
        ({"after_id": "e"}, "", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"limit": "2", "before_id": "c"}, "ab", False),
    ],
)
def test_pages(asked: dict[str, str], ids: str, has_more: bool) -> None:
    found = page(models(*"abcde"), asked)
    assert ("".join(model.id for model in found.data), found.has_more) == (ids, has_more)
    assert (found.first_id, found.last_id) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize(
    "asked",
    [{"limit": "0"}, {"limit": "1001"}, {"limit": "-1"}, {"limit": "x"}, {"limit": "9" * 5000}, {"after_id": "z"}],
)
def test_pages_that_there_are_not(asked: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        page(models(*"abcde"), asked)


def test_list_and_retrieve(client: Any) -> None:
    found = client.models.list(limit=2)
    assert len(found.data) == 2 and found.has_more
    everything = list(client.models.list(limit=2))  # page after page
    assert {each.id for each in everything} == {"stub:latest", "thinker:latest", "slow:latest"}
    one = client.models.retrieve("stub")
    assert (one.type, one.id, one.display_name, one.max_input_tokens) == ("model", "stub:latest", "stub:latest", 4096)
    assert one.created_at.tzinfo is not None


def test_a_model_that_there_is_not(client: Any) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("nobody/knows")
    assert isinstance(caught.value.body, dict) and caught.value.body["error"]["type"] == "not_found_error"


async def test_asynchronous(server: RunningServer) -> None:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any") as client:
        assert [each.id async for each in client.models.list(limit=1)]


def test_without_the_header_it_is_openais(server: RunningServer) -> None:
    status, found = server.request("GET", "/v1/models")
    assert (status, found["object"]) == (200, "list")
    status, found = server.request("GET", "/v1/models?limit=1", **VERSION)
    assert (status, found["has_more"]) == (200, True)
    assert server.request("GET", "/v1/models/nobody")[1]["error"]["code"] == "model_not_found"
    assert server.request("GET", "/v1/models/nobody", **VERSION)[1]["type"] == "error"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/nothing", 404, "not_found_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("DELETE", "/v1/models", 405, "invalid_request_error"),
        ("GET", "/v1/models/nothing", 404, "not_found_error"),
    ],
)
def test_what_there_is_not(server: RunningServer, method: str, path: str, status: int, kind: str) -> None:
    got, body = server.request(method, path, **VERSION)
    assert (got, body["type"], body["error"]["type"]) == (status, "error", kind)
    if "messages" not in path:  # to OpenAI's clients in their form
        assert "type" not in server.request(method, path)[1]


def test_who_may_not_ask_is_told_in_the_form_that_the_header_names(tmp_path: Path) -> None:
    with RunningServer(tmp_path, api_keys=("secret-key",)) as server:
        status, body = server.request("GET", "/v1/models", **VERSION)
        assert (status, body["type"], body["error"]["type"]) == (401, "error", "authentication_error")
        status, body = server.request("GET", "/v1/models")
        assert (status, "type" in body) == (401, False)
