"""Whom a command asks, and with which key."""

from __future__ import annotations

from pathlib import Path

import pytest

from barrel_inference.cli.client import Client

KEYS = ("first-good-key", "another-good-key")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """With a configuration of this machine's server."""
    file = tmp_path / "config.toml"
    file.write_text(f'[server]\nhost = "::"\nport = 8081\napi_keys = {list(KEYS)}\n')
    return {"BARREL_INFERENCE_CONFIG": str(file)}


def asked(environ: dict[str, str]) -> tuple[str, str | None]:
    client = Client(environ=environ)
    return client.url, client._key


def test_without_any_word_the_usual_address() -> None:
    assert asked({"BARREL_INFERENCE_CONFIG": "/dev/null"}) == ("http://127.0.0.1:8080", None)


def test_the_server_that_the_configuration_makes(environ: dict[str, str]) -> None:
    assert asked(environ) == ("http://[::1]:8081", KEYS[0])
    assert asked({**environ, "BARREL_INFERENCE_API_KEY": "mine"})[1] == "mine"


def test_its_keys_are_for_no_other_server(environ: dict[str, str]) -> None:
    assert asked({**environ, "BARREL_INFERENCE_HOST": "https://far.example"}) == ("https://far.example:443", None)
