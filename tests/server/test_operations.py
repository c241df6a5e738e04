"""What those who run the server see: health, metrics, the API's description, log lines, and its cost."""

from __future__ import annotations

import http.client
import json
import logging
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from barrel_inference.server.app import Server, log_line
from barrel_inference.server.http import openapi
from barrel_inference.server.http.record import Record
from tests.registry.weights import model as weights
from tests.server.harness import RunningServer
from tests.support.waiting import until

ASK = {"model": "stub", "prompt": "Hello", "stream": False, "options": {"num_predict": 4, "seed": 1}}


def test_health(server: RunningServer) -> None:
    assert server.request("GET", "/health")[1]["status"] == "ok"
    assert server.request("GET", "/health/ready")[0] == 200


def test_who_asks_how_many_are_active_is_none_of_them(server: RunningServer) -> None:
    until(lambda: server.request("GET", "/health")[1]["requests_active"] == 0)
    until(lambda: samples(server)["barrel_requests_active", ()] == 0)


def test_metrics_count_requests_tokens_and_the_cache(server: RunningServer) -> None:
    before = samples(server)
    assert server.post("/api/generate", ASK)[0] == 200
    assert server.post("/api/generate", {**ASK, "model": "made-up-name"})[0] == 404
    now = samples(server)
    route = ("method=POST", "route=/api/generate", "status=200")
    assert now["barrel_requests_total", route] == before.get(("barrel_requests_total", route), 0) + 1
    tokens = ("kind=completion", "model=stub:latest")
    assert now["barrel_tokens_total", tokens] == before.get(("barrel_tokens_total", tokens), 0) + 4
    assert now["barrel_model_loaded", ("model=stub:latest",)] == 1
    until(lambda: samples(server)["barrel_kv_lookups_total", ("model=stub:latest",)] >= 1)  # workers report a bit later
    assert ("barrel_kv_saves_cold_total", ("model=stub:latest", "tier=store")) in samples(server)
    assert any(name == "barrel_tier_used_bytes" for name, _ in now)
    assert not any("made-up-name" in label for _, labels in now for label in labels)


def test_metrics_count_pulls_and_the_process(server: RunningServer, tmp_path: Path) -> None:
    before = samples(server)
    file = tmp_path / "tiny.gguf"
    file.write_bytes(weights())
    assert server.post("/api/pull", {"model": str(file), "stream": False})[0] == 200
    assert server.post("/api/pull", {"model": "https://127.0.0.1:9/x.gguf", "stream": False})[0] == 502
    now = samples(server)
    for outcome in ("succeeded", "failed"):
        pulls = ("barrel_pulls_total", (f"outcome={outcome}",))
        assert now[pulls] == before[pulls] + 1
    assert now["barrel_pulls_running", ()] == 0
    assert now["process_resident_memory_bytes", ()] > 0


@pytest.mark.parametrize("name", ["stub", "stub:latest"])
def test_a_configured_model_is_here_whatever_pulls_it(server: RunningServer, name: str) -> None:
    """Codex pulls a model whose exact name is not listed."""
    assert server.post("/api/pull", {"model": name, "stream": False}) == (200, {"status": "success"})


def samples(server: RunningServer) -> dict[tuple[str, tuple[str, ...]], float]:
    _, text = server.request("GET", "/metrics")
    return {
        (sample.name, tuple(sorted(f"{key}={value}" for key, value in sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_description_lists_every_route_and_no_other(server: RunningServer) -> None:
    _, document = server.request("GET", "/openapi.json")
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    routed = server.ask(lambda inside: {(each.method, openapi.template(each.path)) for each in inside.operations})
    assert described == routed
    assert len(routed) == server.ask(lambda inside: len(inside.operations)), "no route twice"


def test_every_described_route_answers(server: RunningServer) -> None:
    """With something that is neither 404 nor 405 of the router."""
    for method, path in server.ask(lambda inside: [(each.method, each.path) for each in inside.operations]):
        concrete = re.sub(r"{[^}]*}", "x", path)
        status, body = server.request(method, concrete, None if method in ("GET", "HEAD") else b"")
        assert body not in ("404 page not found", "405 method not allowed"), (method, path)
        assert status < 500 or path == "/api/search", (method, path, body)


def test_the_description_is_whole(server: RunningServer) -> None:
    _, document = server.request("GET", "/openapi.json")
    assert document["openapi"] == "3.1.0"
    schemas = document["components"]["schemas"]
    for reference in re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document)):
        assert reference in schemas
    ids = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(ids) == len(set(ids))


def test_docs(server: RunningServer) -> None:
    status, text = server.request("GET", "/docs")
    assert status == 200
    paths = server.request("GET", "/openapi.json")[1]["paths"]
    assert [path for path in paths if f"<code>{path}</code>" not in text] == []
    assert "<td>HEAD</td><td><code>/api/blobs/{digest}</code></td>" in text


def test_every_request_is_one_line(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "barrel_inference.requests"):
        server.exchange("POST", "/api/generate", ASK, x_request_id="the-one")
        line = _logged(caplog, "the-one")
    assert (line["status"], line["model"], line["completion_tokens"]) == (200, "stub:latest", 4)
    assert line["prompt_tokens"] > 0
    assert line["s"] > 0


@pytest.mark.parametrize(
    ("model", "status", "named"), [("nope", 404, "nope"), ("https://h/m.gguf?key=1", 404, "https://h/m.gguf")]
)
def test_the_line_of_what_failed_says_for_which_model(
    server: RunningServer, caplog: pytest.LogCaptureFixture, model: str, status: int, named: str
) -> None:
    with caplog.at_level(logging.INFO, "barrel_inference.requests"):
        server.exchange("POST", "/api/generate", {"model": model, "prompt": "x"}, x_request_id=f"for-{status}")
        line = _logged(caplog, f"for-{status}")
    assert (line["status"], line["model"]) == (status, named)


def test_the_line_of_a_prompt_that_is_too_long_says_by_how_much(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"model": "stub", "messages": [{"role": "user", "content": "word " * 2000}]}
    with caplog.at_level(logging.INFO, "barrel_inference.requests"):
        assert server.exchange("POST", "/v1/chat/completions", body, x_request_id="too-long")[0] == 400
        line = _logged(caplog, "too-long")
    assert (line["error"], line["n_ctx"]) == ("context_exceeded", 512)
    assert line["prompt_tokens"] > 2000


def _logged(caplog: pytest.LogCaptureFixture, request_id: str) -> dict[str, Any]:
    """It is written when the answer has gone out."""

    def found() -> list[str]:
        lines = [each.getMessage() for each in caplog.records if each.name == "barrel_inference.requests"]
        return [line for line in lines if request_id in line]

    until(found)
    line: dict[str, Any] = json.loads(found()[0])
    return line


def test_a_log_line_is_one_line_whatever_was_asked() -> None:
    line = log_line(Record(id="x", path="/a\nb\r" + "c" * 1000, model="m\n"))
    assert "\n" not in line
    assert len(line) < 1000


def test_tokens_there_and_back(server: RunningServer) -> None:
    _, tokenized = server.post("/api/tokenize", {"model": "stub", "content": "Hello there"})
    assert tokenized["count"] == len(tokenized["tokens"])
    _, text = server.post("/api/detokenize", {"model": "stub", "tokens": tokenized["tokens"]})
    assert text["content"] == "Hello there"
    assert server.post("/api/detokenize", {"model": "stub", "tokens": [10**9]})[0] == 400


def test_the_cache_can_be_seen_and_steered(server: RunningServer) -> None:
    prompt = {"model": "stub", "prompt": "word " * 40}
    status, report = server.post("/api/cache/prefill", prompt)
    assert status == 200
    assert report["prefilled_tokens"] > 0 or report["restored_tokens"] > 0
    status, found = server.post("/api/cache/lookup", {"model": "stub", "messages": [{"role": "user", "content": "x"}]})
    assert (status, found["prompt_tokens"] > 0) == (200, True)
    until(lambda: server.request("GET", "/api/cache")[1]["counters"]["lookups"] > 0)
    assert "path" not in json.dumps(server.request("GET", "/api/cache")[1]["tiers"])
    assert server.post("/api/cache/verify", b"")[1]["corrupt"] == 0
    assert server.post("/api/cache/clear", {})[0] == 200
    assert server.post("/api/cache/lookup", {"model": "stub"})[0] == 400


def test_gc_says_what_would_go(server: RunningServer) -> None:
    assert server.post("/api/gc", {"dry_run": True})[1] == {"removed": [], "freed_bytes": 0, "dry_run": True}
    assert server.post("/api/edit", {"model": "nope"})[0] == 404


def test_what_our_layer_costs(server: RunningServer) -> None:
    """Nothing out of proportion, of this process's own time and at best: the client's part is in it. The figure itself
    is the benchmark's, which has the machine to itself."""
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    body = json.dumps({**ASK, "options": {"num_predict": 1}, "raw": True})

    def over_http() -> None:
        connection.request("POST", "/api/generate", body)
        assert json.loads(connection.getresponse().read())["done"]

    async def direct(inside: Server) -> None:
        (slot,) = [each for each in inside.pool.loaded() if each.id == "stub:latest"]
        assert slot.model is not None
        await slot.model.complete("Hello", max_tokens=1)

    over_http()
    added = [_median_s(over_http) - _median_s(lambda: server.run(direct)) for _ in range(5)]
    connection.close()
    assert min(added) < 0.010


def _median_s(work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(30):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


def test_an_idle_daemon_is_small_and_loads_little_before_it_listens(tmp_path: Path) -> None:
    """By its processor time at best of three. The second on the clock is the benchmark's, as above."""
    environ = {
        "PATH": "/usr/bin:/bin",
        "BARREL_INFERENCE_MODEL_CACHE_DIR": str(tmp_path / "models"),
        "XDG_CACHE_HOME": str(tmp_path),
        "HOME": str(tmp_path),
    }
    command = [sys.executable, "-m", "barrel_inference.cli.main", "serve", "--port", "0", "--json"]
    assert min(_started_s(command, environ) for _ in range(3)) < 3.0


def _started_s(command: list[str], environ: dict[str, str]) -> float:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ, text=True
    ) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            watched = psutil.Process(process.pid)
            times = watched.cpu_times()
            assert url.startswith("http://127.0.0.1:")
            assert watched.memory_info().rss < 120 << 20
        finally:
            process.terminate()
    assert process.returncode == 0, "that was a good end"
    return times.user + times.system
