"""What speaks Ollama for others: LangChain, LiteLLM and llm, each as a program of its own against a real server."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.server.harness import RunningServer


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None, reason=f"{module} is not installed (the frameworks extra)"
    )


def run(server: RunningServer, tmp_path: Path, code: str) -> str:
    """The program's output. Its home is empty, so that nothing of the user's is read or written."""
    environ = {**os.environ, "URL": server.url, "OLLAMA_HOST": server.url, "HOME": str(tmp_path)}
    environ |= {"LLM_USER_PATH": str(tmp_path / "llm"), "LITELLM_LOCAL_MODEL_COST_MAP": "true"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs("langchain_ollama")
def test_langchain(server: RunningServer, tmp_path: Path) -> None:
    code = """
        import os
        from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM

        url = os.environ["URL"]
        model = ChatOllama(
            model="stub", base_url=url, num_predict=12, seed=1, temperature=0, validate_model_on_init=True
        )
        whole = model.invoke([("system", "Be brief."), ("human", "Hello")])
        assert whole.usage_metadata["output_tokens"] == 12, whole
        assert whole.response_metadata["done_reason"] == "length"
        parts = "".join(part.content for part in model.stream([("system", "Be brief."), ("human", "Hello")]))
        assert parts == whole.content, (parts, whole.content)
        assert OllamaLLM(model="stub", base_url=url, num_predict=5).invoke("Once")
        assert len(OllamaEmbeddings(model="stub", base_url=url).embed_documents(["a", "b"])) == 2
        schema = {"title": "A", "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        schema["additionalProperties"] = False
        answer = ChatOllama(model="stub", base_url=url, num_predict=200).with_structured_output(
            schema, method="json_schema"
        ).invoke("Hello")
        assert answer["ok"] in (True, False)
        print("held")
    """
    assert run(server, tmp_path, code) == "held"


@needs("litellm")
def test_litellm(server: RunningServer, tmp_path: Path) -> None:
    code = """
        import os
        import litellm

        url, messages = os.environ["URL"], [{"role": "user", "content": "Hello"}]
        asked = {"model": "ollama_chat/stub", "api_base": url, "messages": messages}
        asked |= {"max_tokens": 12, "temperature": 0, "seed": 1}
        whole = litellm.completion(**asked)
        assert whole.choices[0].message.content, whole
        assert whole.usage.completion_tokens == 12, whole
        parts = [part.choices[0].delta.content or "" for part in litellm.completion(**asked, stream=True)]
        assert "".join(parts) == whole.choices[0].message.content, (parts, whole)
        found = litellm.embedding(model="ollama/stub", api_base=url, input=["a", "b"])
        assert len(found.data) == 2
        print("held")
    """
    assert run(server, tmp_path, code).endswith("held")


@needs("llm_ollama")
def test_llm_with_its_ollama_plugin(server: RunningServer, tmp_path: Path) -> None:
    code = """
        import llm

        model = llm.get_model("ollama/stub")
        answer = model.prompt("Hello", num_predict=12, seed=1, temperature=0.0, stream=False)
        assert answer.text()
        streamed = model.prompt("Hello", num_predict=12, seed=1, temperature=0.0)
        assert "".join(streamed) == answer.text()
        print("held")
    """
    assert run(server, tmp_path, code) == "held"
