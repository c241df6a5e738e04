"""When models come and go beside requests that need them: at the start, by a pull, by the wish of a /v1 request."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from barrel_inference.config import ServerOptions
from barrel_inference.errors import ModelNotFoundError, PullError
from barrel_inference.server.models.catalog import Entry
from barrel_inference.server.models.parameters import translate
from barrel_inference.server.models.pool import Pool
from barrel_inference.server.service import ModelService
from tests.registry.weights import model
from tests.server.fakes import FakeRuntime, FakeTimers
from tests.server.harness import STUB, RunningServer
from tests.support.memory import FakeMemory
from tests.support.waiting import until

CHAT = {"model": "stub", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def loaded(server: RunningServer) -> set[str]:
    return {model["name"] for model in server.request("GET", "/api/ps")[1]["models"]}


def test_preload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model that cannot be loaded keeps neither the others nor the server; one that is not here is told."""
    models = {"stub": STUB, "gone": {"model_path": "nowhere"}}
    with RunningServer(tmp_path, preload=["nobody", "stub"], models=models) as server:
        until(lambda: server.request("GET", "/health/ready")[0] == 200)
        assert loaded(server) == {"stub:latest"}
    assert "model 'gone:latest': nowhere is neither a file nor an installed model" in caplog.messages


@pytest.mark.parametrize("switch", [False, True])
def test_keep_alive_of_v1_requests_has_an_effect_only_when_wanted(tmp_path: Path, switch: bool) -> None:
    with RunningServer(tmp_path, v1_keep_alive=switch) as server:
        assert server.post("/v1/chat/completions", {**CHAT, "keep_alive": 0})[0] == 200
        until(lambda: loaded(server) == (set() if switch else {"stub:latest"}))
        assert server.post("/v1/messages", {**CHAT, "keep_alive": "1h"})[0] == 200
        assert loaded(server) == {"stub:latest"}


class Shelf:
    """A catalog to which pulls bring models."""

    def __init__(self) -> None:
        self.pulled: list[str] = []

    def resolve(self, name: str) -> Entry:
        if name not in self.pulled:
            raise ModelNotFoundError(f"model {name!r} not found")
        return Entry(name=name, path="/x")

    def list(self) -> list[Entry]:
        return []

    async def pull(self, name: str) -> None:
        if name in ("missing", "broken"):
            raise PullError("no", status=404 if name == "missing" else 500)
        self.pulled.append(name)


async def test_an_unknown_model_is_pulled_only_when_wanted() -> None:
    shelf, pool = Shelf(), None
    service: Any = ModelService(shelf, pool, ServerOptions())  # type: ignore[arg-type]
    with pytest.raises(ModelNotFoundError):
        await service.find("new")
    service = ModelService(shelf, pool, ServerOptions(), shelf.pull)  # type: ignore[arg-type]
    assert [(await service.find("new")).name, (await service.find("new")).name] == ["new", "new"]
    assert shelf.pulled == ["new"]
    with pytest.raises(ModelNotFoundError):
        await service.find("missing")
    with pytest.raises(PullError):
        await service.find("broken")


class One:
    """A catalogue of one model."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry

    def resolve(self, name: str) -> Entry:
        return self.entry

    def list(self) -> list[Entry]:
        return [self.entry]


async def test_load_options_of_a_request_leave_the_models_own_as_they_are() -> None:
    parameters = {"num_gpu": 99, "num_thread": 2, "use_mmap": False}
    runtime, memory = FakeRuntime(), FakeMemory(total=64 << 30, available=64 << 30)
    pool = Pool(runtime, ServerOptions(), memory=memory, timers=FakeTimers(), max_context=4096)
    service = ModelService(One(Entry(name="a:latest", parameters=parameters)), pool, ServerOptions())
    await service.load("a", translate({"num_thread": 3, "num_batch": 64}))
    ((_, options),) = runtime.loads
    assert options["model_opts"] == {"n_gpu_layers": 99, "use_mmap": False}
    context = options["context_opts"]
    assert (context["n_threads"], context["n_batch"]) == (3, 64)


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages"])
def test_a_worker_killed_while_it_loads_is_worth_another_try(tmp_path: Path, path: str) -> None:
    models = {"stub": {**STUB, "stub": {"load_s": 60.0}}}
    before = set(psutil.Process().children())
    with RunningServer(tmp_path, models=models) as server, ThreadPoolExecutor(2) as clients:
        asked = [clients.submit(server.exchange, "POST", path, CHAT) for _ in range(2)]
        until(lambda: len(set(psutil.Process().children()) - before) == 1)
        until(lambda: server.ask(lambda inside: sum(slot.gate.running for slot in inside.pool.slots())) == 2)
        for worker in set(psutil.Process().children()) - before:
            worker.kill()
        for status, text, headers in [each.result() for each in asked]:
            assert (status, headers["retry-after"]) == (503, "1")
            assert "the worker died while loading (killed by signal 9" in text


def test_so_is_a_load_that_takes_too_long(tmp_path: Path) -> None:
    models = {"stub": {**STUB, "stub": {"load_s": 60.0}}}
    with RunningServer(tmp_path, models=models, runtime={"ready_timeout_s": 0.2}) as server:
        status, text, headers = server.exchange("POST", "/api/chat", CHAT)
        assert (status, text) == (503, '{"error":"the worker showed no progress for 0.2 s"}')
        assert headers["retry-after"] == "1"


def test_a_load_that_the_worker_refuses_is_not(tmp_path: Path) -> None:
    models = {"stub": {**STUB, "stub": {"fail_load": "no such thing"}}}
    with RunningServer(tmp_path, models=models) as server:
        status, text, headers = server.exchange("POST", "/api/chat", CHAT)
        assert (status, text) == (500, '{"error":"no such thing"}')
        assert "retry-after" not in headers


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_files_of_an_installed_model_that_are_no_more_are_not_the_requests_fault(tmp_path: Path, damage: str) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(model(5000))
    with RunningServer(tmp_path) as server:
        assert server.post("/api/pull", {"model": str(own), "stream": False})[0] == 200
        (blob,) = (tmp_path / "models" / "blobs").iterdir()
        blob.unlink() if damage == "missing" else blob.write_bytes(own.read_bytes()[:100])
        asked = {**CHAT, "model": "own"}
        told = {path: server.post(path, asked) for path in ("/api/chat", "/v1/chat/completions", "/v1/messages")}
        told["/api/show"] = server.post("/api/show", {"model": "own"})
    words = "the files of model 'own:latest' are missing or damaged ("
    for path, (status, body) in told.items():
        message = body["error"]["message"] if path.startswith("/v1") else body["error"]
        assert (status, message[: len(words)]) == (500, words)
        assert message.endswith("pull it again, or see what is wrong: barrel-inference verify own:latest")
        assert str(tmp_path) not in message
    assert told["/v1/chat/completions"][1]["error"]["code"] == "model_damaged"
    assert told["/v1/messages"][1]["error"]["type"] == "api_error"


def test_so_is_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(model(5000))
    with RunningServer(tmp_path) as server:
        assert server.post("/api/pull", {"model": str(own), "stream": False})[0] == 200
        (tmp_path / "models" / "manifests" / "own" / "latest.json").write_text("{")
        status, body = server.post("/v1/chat/completions", {**CHAT, "model": "own"})
    assert (status, body["error"]["code"]) == (500, "invalid_manifest")
    assert body["error"]["message"].endswith("; pull it again")


def test_a_file_that_the_request_brings_is_its_fault(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"no model")
    with RunningServer(tmp_path) as server:
        assert server.post("/api/pull", {"model": str(own), "stream": False})[0] == 400


def test_a_file_that_the_configuration_names_is_not(tmp_path: Path) -> None:
    models = {"mine": {"model_path": str(tmp_path / "none.gguf")}}
    with RunningServer(tmp_path, models=models) as server:
        status, body = server.post("/api/chat", {**CHAT, "model": "mine"})
    assert status == 500 and body["error"].endswith("; the configuration of the server names them")


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages"])
def test_a_system_without_another_thread_is_worth_another_try(tmp_path: Path, path: str) -> None:
    with RunningServer(tmp_path) as server:
        assert server.post(path, {**CHAT, "model": "slow"})[0] == 200
        before = threading.stack_size(1 << 47)  # as large as all addresses
        try:
            status, text, headers = server.exchange("POST", path, CHAT)
        finally:
            threading.stack_size(before)
        assert (status, headers["retry-after"]) == (503, "5")
        assert "can't start new thread" in text
        assert server.post(path, CHAT)[0] == 200
