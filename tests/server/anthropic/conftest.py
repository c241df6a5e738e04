"""A server with a stub that has room for tools and a stub that thinks; Anthropic's own clients for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.harness import RunningServer

THINKING_TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif %}{% endif %}"""
MODELS = {
    "stub": {"backend": "stub", "context_opts": {"n_ctx": 4096}},
    "thinker": {"backend": "stub", "context_opts": {"n_ctx": 4096}, "template": THINKING_TEMPLATE},
    "slow": {"backend": "stub", "context_opts": {"n_ctx": 512}, "stub": {"delay_ms": 60.0, "model": "slow"}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server"), models=MODELS, ping_s=0.02) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Any]:
    anthropic = pytest.importorskip("anthropic", reason="the clients extra is not installed")
    with anthropic.Anthropic(base_url=server.url, api_key="any key will do", max_retries=0) as one:
        yield one
