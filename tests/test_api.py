"""The blocking API against real workers with the stub backend, and what a program around it may be: a script without a
main guard, threads, a running event loop, a forked child."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import barrel_inference as bi
from barrel_inference.errors import (
    AlreadyLoadedError,
    ConfigError,
    InvalidModelError,
    InvalidNameError,
    InvalidRequestError,
    NotLoadedError,
    NoWeightsError,
    TierUnknownError,
    UnsupportedError,
)
from tests.support.waiting import until


@pytest.fixture(scope="module")
def runtime() -> Iterator[bi.Runtime]:
    with bi.Runtime() as one:
        yield one


@pytest.fixture(scope="module")
def model(runtime: bi.Runtime) -> bi.Model:
    return runtime.load_model("stub", backend="stub", context_opts={"n_seq_max": 4})


def run_script(body: str, timeout_s: float = 120.0) -> str:
    """Run a program; fails when it fails."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(body)], capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_complete_and_stream_agree(model: bi.Model) -> None:
    done = model.complete("Once upon a time", max_tokens=16, seed=1)
    chunks = list(model.stream("Once upon a time", max_tokens=16, seed=1))
    assert "".join(chunk.text for chunk in chunks) == done.text
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.tokens == done.tokens
    assert len(done.tokens) == done.usage.completion_tokens <= 16
    assert done.seed == 1


def test_everything_can_be_asked_of_a_model_by_its_id() -> None:
    run_script(
        """
        import barrel_inference as bi
        bi.load_model("tiny", backend="stub")
        model = bi.model("tiny")
        assert isinstance(model, bi.Model) and model.id == "tiny"
        assert model.detokenize(model.tokenize("hello", add_special=False)) == "hello"
        assert bi.model("tiny").chat([{"role": "user", "content": "hi"}], max_tokens=3).completion.tokens
        text = "word " * 100
        bi.model("tiny").prefill(text)
        assert bi.model("tiny").pin(text) > 0 and bi.model("tiny").unpin(text)
        bi.unload("tiny")
        try:
            bi.model("tiny")
        except bi.errors.NotLoadedError:
            print("not loaded")
        """
    )


def test_a_model_is_found_by_its_id(runtime: bi.Runtime, model: bi.Model) -> None:
    assert runtime.model("stub").complete("x", max_tokens=3, seed=1) is not None
    assert [info.id for info in runtime.models()] == ["stub"]
    assert runtime.model("stub").info().phase == "ready"
    with pytest.raises(NotLoadedError, match="'stbu' is not loaded; did you mean 'stub'"):
        runtime.model("stbu")


def test_a_load_that_fails_uses_up_no_id(tmp_path: Path) -> None:
    with bi.Runtime(bi.RuntimeConfig(ram_dir=str(tmp_path))) as one:
        for options in (
            {"backend": "stub", "lora": [("/dev/zero", 1.0)]},
            {"backend": "stub", "stub": {"fail_load": "no"}},
        ):
            with pytest.raises(bi.errors.BarrelError):
                one.load_model(**options)
        first = one.load_model(backend="stub")
        one.load_model("barrel_inference_model_2", backend="stub")
        first.unload()
        assert (first.id, one.load_model(backend="stub").id) == ("barrel_inference_model_1", "barrel_inference_model_3")


def test_loading_twice_and_unloading_twice(runtime: bi.Runtime, model: bi.Model) -> None:
    with pytest.raises(AlreadyLoadedError):
        runtime.load_model("stub", backend="stub")
    first, second = runtime.load_model(backend="stub"), runtime.load_model(backend="stub")
    assert first.id != second.id and first.id.startswith("barrel_inference_model_")
    first.unload()
    second.unload()
    for use in (first.unload, lambda: first.complete("x")):
        with pytest.raises(NotLoadedError, match="is not loaded"):
            use()


@pytest.mark.parametrize("bad", ["", "x" * 300, "new\nline"])
def test_an_id_is_printable_and_short(runtime: bi.Runtime, bad: str) -> None:
    with pytest.raises(ConfigError):
        runtime.load_model(bad, backend="stub")


def test_wrong_options_fail_before_any_process_starts(runtime: bi.Runtime, tmp_path: Path) -> None:
    children = psutil.Process().children()
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "text.gguf").write_text("no model" * 100)
    cases: list[tuple[dict[str, object], type[Exception]]] = [
        ({"backend": "nonsense"}, ConfigError),
        ({"backend": "llama"}, ConfigError),
        ({"backend": "stub", "context_opts": {"n_ctx": -1}}, ConfigError),
        ({"backend": "stub", "context_opts": {"n_batch": 8, "n_ubatch": 9}}, ConfigError),
        ({"backend": "stub", "context_opts": {"type_v": "q8_0", "flash_attn": False}}, ConfigError),
        ({"backend": "stub", "context_size": 4096, "context_opts": {"n_ctx": 2048}}, ConfigError),
        ({"backend": "stub", "policy": {"boundary_align_tokens": 100}}, ConfigError),
        ({"backend": "stub", "fingerprint": "abc"}, ConfigError),
        ({"backend": "stub", "fingerprint_mode": "fast_unsafe"}, ConfigError),
        ({"backend": "stub", "tier": "disk", "tier_srv": "none"}, TierUnknownError),
        ({"model_path": "/tmp/" + "x/" * 3000}, InvalidModelError),
        ({"model_path": "~no-such-user/x.gguf"}, ConfigError),
        ({"backend": "stub", "lora": [(5, 1.0)]}, ConfigError),
        ({"backend": "stub", "lora": [("/dev/zero", 1.0)]}, InvalidModelError),
        ({"model_path": tmp_path / "absent.gguf"}, InvalidModelError),
        ({"model_path": tmp_path}, InvalidModelError),
        ({"model_path": tmp_path / "empty.gguf"}, InvalidModelError),
        ({"model_path": tmp_path / "text.gguf"}, InvalidModelError),
        ({"model_path": "a\0b"}, InvalidNameError),
        ({"model_path": "a\ud800b"}, ConfigError),
    ]
    for options, error in cases:
        with pytest.raises(error):
            runtime.load_model("bad", **options)
    assert psutil.Process().children() == children
    with pytest.raises(NotLoadedError):
        runtime.model("bad")


@pytest.mark.parametrize("prompt", [[], [10**6], "a\ud800", ["\ud800"]])
def test_bad_prompts_are_one_typed_error_each(model: bi.Model, prompt: str | list[int]) -> None:
    with pytest.raises(InvalidRequestError):
        model.complete(prompt, max_tokens=1)


@pytest.mark.parametrize("wrong", [None, 5, b"x", object()])
def test_what_is_neither_text_nor_a_sequence_is_one_typed_error(model: bi.Model, wrong: Any) -> None:
    asked: list[Callable[[Any], object]] = [
        model.complete,
        model.tokenize,
        model.detokenize,
        model.embed,
        model.chat,
        model.lookup,
        model.end_session,
        lambda value: model.lookup("x", salt=value),
    ]
    asked += [lambda value: model.tokenize("x", add_special=value), lambda value: model.detokenize([1], special=value)]
    for ask in [*asked, lambda _: model.tokenize([1]), lambda _: model.detokenize("text")]:  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError):
            ask(wrong)


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "x"])
def test_wrong_times_change_nothing(runtime: bi.Runtime, model: bi.Model, wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="drain_s"):
        model.unload(drain_s=wrong)
    with pytest.raises(InvalidRequestError, match="older_than_s"):
        runtime.cache.clear(older_than_s=wrong)
    assert model.info().phase == "ready"


def test_nul_bytes_are_text(model: bi.Model) -> None:
    assert model.complete("a\0b", max_tokens=2).usage.prompt_tokens > 0


def test_tokens_and_text(model: bi.Model) -> None:
    tokens = model.tokenize("hello world", add_special=False)
    assert model.detokenize(tokens) == "hello world"
    with pytest.raises(InvalidRequestError, match="not in the vocabulary"):
        model.detokenize([10**6])


def test_what_a_model_cannot_do_is_a_typed_error(runtime: bi.Runtime) -> None:
    words = runtime.load_model(backend="stub", model_opts={"vocab_only": True})
    assert words.detokenize(words.tokenize("hello", add_special=False)) == "hello"
    with pytest.raises(NoWeightsError):
        words.complete("x")
    words.unload()
    vectors = runtime.load_model(backend="stub", context_opts={"embeddings": True})
    assert len(vectors.embed(["a", "b"]).vectors) == 2
    with pytest.raises(UnsupportedError):
        vectors.complete("x")
    vectors.unload()


def test_n_completions_of_one_prompt(model: bi.Model) -> None:
    done = model.complete("Once upon a time", max_tokens=8, n=3, seed=1)
    assert [done.index, *(other.index for other in done.others)] == [0, 1, 2]
    alone = model.complete("Once upon a time", max_tokens=8, seed=1)
    assert done.tokens == alone.tokens
    indices = {chunk.index for chunk in model.stream("Once", max_tokens=4, n=2)}
    assert indices == {0, 1}


def test_closing_or_dropping_a_stream_frees_its_sequence(runtime: bi.Runtime) -> None:
    one = runtime.load_model(backend="stub", stub={"delay_ms": 5}, context_opts={"n_ctx": 100_000})
    with one.stream("x", max_tokens=50_000, ignore_eos=True) as chunks:
        next(chunks)
    assert one.complete("y", max_tokens=1, on_full="queue", timeout_s=60).finish_reason == "length"
    next(one.stream("x", max_tokens=50_000, ignore_eos=True))
    assert one.complete("y", max_tokens=1, timeout_s=60).finish_reason == "length"
    stream = one.stream("x", max_tokens=50_000, ignore_eos=True)
    next(stream)
    stream.cancel()
    assert stream.result().finish_reason == "cancelled"
    one.unload()


def test_a_stream_may_be_closed_by_another_thread_than_the_one_that_waits_for_it(runtime: bi.Runtime) -> None:
    one = runtime.load_model(backend="stub", stub={"delay_ms": 5}, context_opts={"n_ctx": 100_000, "n_seq_max": 2})
    for n in (1, 2):
        stream = one.stream("x", max_tokens=50_000, ignore_eos=True, n=n)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(stream.result)
            until(lambda: one.info().running == n)  # noqa: B023 - within the round
            stream.close()
            assert waiting.result(60).finish_reason == "cancelled"
    one.unload()


def test_a_stream_closed_before_its_end_has_no_result(model: bi.Model) -> None:
    for stream in (model.stream("x"), model.stream("x", n=2), model.chat_stream([{"role": "user", "content": "x"}])):
        stream.close()
        assert list(stream) == []
        with pytest.raises(InvalidRequestError, match="closed before its end"):
            stream.result()


def test_many_threads_use_one_model(model: bi.Model) -> None:
    alone = [model.complete(f"prompt {i}", max_tokens=12, seed=i, cache="off").text for i in range(8)]
    texts: list[str] = [""] * 8

    def work(index: int) -> None:
        texts[index] = model.complete(f"prompt {index}", max_tokens=12, seed=index, cache="off").text

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == alone


async def test_it_works_inside_a_running_event_loop(model: bi.Model) -> None:
    blocking = model.complete("x", max_tokens=2, seed=1)
    assert blocking.text == (await asyncio.to_thread(model.complete, "x", max_tokens=2, seed=1)).text


def test_a_script_without_a_main_guard_ends_cleanly() -> None:
    output = run_script(
        """
        import barrel_inference as bi
        model = bi.load_model("tiny", backend="stub")
        print(bi.complete("tiny", "hello", max_tokens=3).finish_reason)
        for chunk in bi.stream("tiny", "hello", max_tokens=3): pass
        print([info.id for info in bi.models()])
        print(model.info().worker_pid)
        """
    )
    first, ids, pid = output.splitlines()
    assert (first, ids) == ("length", "['tiny']")
    assert not psutil.pid_exists(int(pid))


def test_a_script_may_end_in_the_middle_of_a_stream_or_by_an_error() -> None:
    output = run_script(
        """
        import barrel_inference as bi, sys
        model = bi.load_model(backend="stub", stub={"delay_ms": 5}, context_opts={"n_ctx": 100_000})
        stream = model.stream("hello", max_tokens=50_000, ignore_eos=True)
        next(stream)
        print(model.info().worker_pid)
        sys.exit(0)
        """
    )
    assert not psutil.pid_exists(int(output))


def test_a_forked_child_has_a_runtime_of_its_own() -> None:
    output = run_script(
        """
        import barrel_inference as bi, os
        model = bi.load_model("tiny", backend="stub")
        pid = os.fork()
        if pid == 0:
            print("child", bi.models(), flush=True)
            raise SystemExit(0)
        os.waitpid(pid, 0)
        print("parent", model.complete("x", max_tokens=2).finish_reason)
        """
    )
    assert output.splitlines() == ["child []", "parent length"]


def test_handles_of_a_closed_runtime_and_in_a_forked_child_are_refused_not_waited_for() -> None:
    out = run_script("""
        import os
        import barrel_inference as bi
        from barrel_inference.errors import NotLoadedError

        def refused(model, stream):
            for use in (lambda: model.complete("x"), model.info, lambda: next(stream)):
                try:
                    use()
                except NotLoadedError:
                    continue
                return False
            return True

        runtime = bi.Runtime()
        model = runtime.load_model(backend="stub")
        stream = model.stream("x", max_tokens=1000)
        next(stream)
        if (child := os.fork()) == 0:
            fine = refused(model, stream)
            runtime.close()
            os._exit(0 if fine else 1)
        print(os.waitpid(child, 0)[1], model.complete("x", max_tokens=2).finish_reason)
        runtime.close()
        runtime.close()
        stream.close()
        print(refused(model, stream))
    """)
    assert out == "0 length\nTrue\n"


def test_closing_a_runtime_ends_what_other_threads_wait_for(tmp_path: Path) -> None:
    children = psutil.Process().children()
    runtime = bi.Runtime(bi.RuntimeConfig(ram_dir=str(tmp_path)))
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(runtime.load_model, backend="stub", stub={"load_s": 600})
        until(lambda: psutil.Process().children() != children)
        runtime.close()
        with pytest.raises(NotLoadedError):
            loading.result(60)
    assert psutil.Process().children() == children
    assert list(tmp_path.glob("*/*")) == []


def test_what_was_interrupted_can_be_begun_again_at_once() -> None:
    run_script("""
        import os, signal, threading, time
        import psutil
        import barrel_inference as bi

        def interrupt():
            while not psutil.Process().children():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            bi.load_model("m", backend="stub", stub={"load_s": 600})
        except KeyboardInterrupt:
            assert not psutil.Process().children()
            assert bi.load_model("m", backend="stub").complete("x", max_tokens=1).text
        else:
            raise AssertionError("it was not interrupted")
    """)


def test_what_nobody_closed_is_closed_at_exit(tmp_path: Path) -> None:
    run_script(f"""
        import barrel_inference as bi
        bi.runtime().close()
        bi.load_model(backend="stub")  # the default runtime is made anew
        runtime = bi.Runtime(bi.RuntimeConfig(ram_dir={str(tmp_path)!r}))
        stream = runtime.load_model(backend="stub").stream("x", max_tokens=1000)
        next(stream)
    """)
    assert list(tmp_path.glob("*/*")) == []


def test_everything_public_says_what_it_does() -> None:
    classes = [each for name in bi.__all__ if inspect.isclass(each := getattr(bi, name))] + [type(bi.cache)]
    methods = [member for each in classes for name, member in inspect.getmembers(each) if name[0] != "_"]
    public = [*classes, *(getattr(bi, name) for name in bi.__all__), *methods]
    of_ours = [each for each in public if callable(each) or isinstance(each, property)]
    assert len(of_ours) > 60
    assert [each for each in of_ours if not each.__doc__] == []


def test_importing_starts_nothing_and_stays_light() -> None:
    output = run_script(
        """
        import sys, threading
        import barrel_inference
        heavy = {"numpy", "llama_cpp", "llguidance", "jinja2", "aiohttp", "barrel_inference.engine"}
        print(sorted(heavy & set(sys.modules)), threading.active_count())
        """
    )
    assert output == "[] 1\n"


def test_importing_is_fast() -> None:
    """150 ms on an idle machine of the development kind, where asyncio and msgspec alone take 65. A ratio of processor
    times, each the best of several, so that other load does not decide."""

    def best(program: str) -> float:
        clock = "import resource; r = resource.getrusage(resource.RUSAGE_SELF); print(r.ru_utime + r.ru_stime)"
        return min(float(run_script(program + clock)) for _ in range(6))

    bare = best("")
    reference = best("import asyncio, msgspec, logging, subprocess;") - bare
    assert best("import barrel_inference;") - bare < 150 / 65 * reference


def test_a_blocking_call_from_the_runtimes_own_loop_is_refused(runtime: bi.Runtime) -> None:
    seen: list[BaseException] = []

    def on_progress(stage: str, fraction: float) -> None:
        try:
            runtime.models()
        except RuntimeError as error:
            seen.append(error)

    runtime.load_model(backend="stub", on_progress=on_progress).unload()
    assert seen and "never return" in str(seen[0])
