"""Ollama's environment variables, and addresses as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from barrel_inference.config import RuntimeConfig, ServerOptions
from barrel_inference.errors import ConfigError
from barrel_inference.server.environment import address, configuration, url


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1", "127.0.0.1", 8080),
        ("127.0.0.1:99", "127.0.0.1", 99),
        (":99", "127.0.0.1", 99),
        ("http://example.com", "example.com", 80),
        ("https://example.com", "example.com", 443),
        ("https://example.com:1234/path", "example.com", 1234),
        ("[::1]:99", "::1", 99),
        ("::1", "::1", 8080),
        ("localhost", "localhost", 8080),
    ],
)
def test_address(text: str, host: str, port: int) -> None:
    assert address(text) == (host, port)


@pytest.mark.parametrize("text", ["host:port", "host:99999", "[::1", "ftp://host"])
def test_no_address(text: str) -> None:
    with pytest.raises(ConfigError):
        address(text)


def test_url_of_every_interface_is_this_machine() -> None:
    assert url("0.0.0.0:99") == "http://127.0.0.1:99"
    assert url("[::]:99") == "http://[::1]:99"
    assert url("https://far.example") == "https://far.example:443"


def test_ollamas_variables() -> None:
    environ = {
        "BARREL_INFERENCE_CONFIG": "/dev/null",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_NUM_PARALLEL": " 3 ",
        "OLLAMA_MAX_QUEUE": '"7"',
        "OLLAMA_MAX_LOADED_MODELS": "",
        "OLLAMA_ORIGINS": "https://a.example, app://b",
        "OLLAMA_CONTEXT_LENGTH": "16384",
        "OLLAMA_KV_CACHE_TYPE": "q8_0",
        "OLLAMA_FLASH_ATTENTION": "1",
    }
    config = configuration(environ, {})
    server = config.server
    assert (server.keep_alive_default_ms, server.num_parallel, server.max_queue) == (-1, 3, 7)
    assert server.origins == ("https://a.example", "app://b")
    assert config.registry.max_context_size == server.context_size == 16384
    assert (config.context_opts.type_k, config.context_opts.flash_attn) == ("q8_0", True)


def test_ours_go_over_ollamas_and_flags_over_both() -> None:
    environ = {
        "BARREL_INFERENCE_CONFIG": "/dev/null",
        "OLLAMA_NUM_PARALLEL": "3",
        "BARREL_INFERENCE_SERVER_NUM_PARALLEL": "5",
        "BARREL_INFERENCE_HOST": "0.0.0.0:99",
    }
    assert configuration(environ, {}).server.num_parallel == 5
    assert configuration(environ, {"server": {"num_parallel": 6}}).server.num_parallel == 6
    assert (configuration(environ, {}).server.host, configuration(environ, {}).server.port) == ("0.0.0.0", 99)


def test_a_wrong_number() -> None:
    with pytest.raises(ConfigError, match="OLLAMA_NUM_PARALLEL"):
        configuration({"BARREL_INFERENCE_CONFIG": "/dev/null", "OLLAMA_NUM_PARALLEL": "many"}, {})


def configured(tmp_path: Path, text: str, **environ: str) -> RuntimeConfig:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return configuration({"BARREL_INFERENCE_CONFIG": str(file), **environ}, {})


@pytest.mark.parametrize(
    ("text", "size", "most"),
    [
        ("", None, 4096),
        ("[context_opts]\nn_ctx = 2048", 2048, 4096),  # also where it is load_model's default
        ("[context_opts]\nn_ctx = 8192", 8192, 8192),
        ("[context_opts]\nn_ctx = 8192\n[server]\ncontext_size = 1024", 1024, 4096),
        ("[server]\ncontext_size = 8192", 8192, 8192),
        ("[context_opts]\nn_ctx = 8192\n[registry]\nmax_context_size = 4096", 8192, 4096),
    ],
)
def test_two_options_may_say_how_long_a_context_is(tmp_path: Path, text: str, size: int | None, most: int) -> None:
    config = configured(tmp_path, text)
    assert (config.server.context_size, config.registry.max_context_size) == (size, most)


def test_and_two_how_many_requests_share_it(tmp_path: Path) -> None:
    assert configured(tmp_path, "").server.num_parallel == 4
    assert configured(tmp_path, "[context_opts]\nn_seq_max = 2").server.num_parallel == 2
    both = "[context_opts]\nn_seq_max = 2\n[server]\nnum_parallel = 4"
    assert configured(tmp_path, both).server.num_parallel == 4
    assert configured(tmp_path, "", OLLAMA_NUM_PARALLEL="7").server.num_parallel == 7
    assert configured(tmp_path, "", OLLAMA_NUM_PARALLEL="0").server.num_parallel == ServerOptions().num_parallel


def test_what_nobody_sets_is_the_default(tmp_path: Path) -> None:
    assert configured(tmp_path, "") == RuntimeConfig()
    with pytest.raises(ConfigError, match="n_ctx=0"):
        configured(tmp_path, "[context_opts]\nn_ctx = 0")
