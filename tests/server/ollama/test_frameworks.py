"""What speaks Ollama for others: LangChain, LiteLLM and llm, on a real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import RunningServer
from tests.server.programs import held, needs, real_server

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    yield from real_server(tmp_path_factory.mktemp("frameworks"))


@needs("langchain_ollama")
def test_langchain(server: RunningServer, tmp_path: Path) -> None:
    code = """
        from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM

        ask = [("system", "Be brief."), ("human", "Tell me a long story.")]
        options = {"num_predict": 12, "seed": 1, "temperature": 0}
        model = ChatOllama(model=MODEL, base_url=URL, validate_model_on_init=True, **options)
        whole = model.invoke(ask)
        assert whole.usage_metadata["output_tokens"] == 12, whole
        assert whole.response_metadata["done_reason"] == "length"
        parts = "".join(part.content for part in model.stream(ask))
        assert parts == whole.content, (parts, whole.content)
        assert OllamaLLM(model=MODEL, base_url=URL, num_predict=5).invoke("Once")
        assert len(OllamaEmbeddings(model=MODEL, base_url=URL).embed_documents(["a", "b"])) == 2
        schema = {"title": "A", "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        schema["additionalProperties"] = False
        structured = ChatOllama(model=MODEL, base_url=URL, num_predict=200).with_structured_output(
            schema, method="json_schema"
        )
        assert structured.invoke("Hello")["ok"] in (True, False)
    """
    held(server, tmp_path, code)


@needs("litellm")
def test_litellm(server: RunningServer, tmp_path: Path) -> None:
    code = """
        import litellm

        asked = {"model": f"ollama_chat/{MODEL}", "api_base": URL, "max_tokens": 12, "temperature": 0, "seed": 1}
        asked["messages"] = [{"role": "user", "content": "Tell me a long story."}]
        whole = litellm.completion(**asked)
        assert whole.choices[0].message.content, whole
        assert whole.usage.completion_tokens == 12, whole
        parts = [part.choices[0].delta.content or "" for part in litellm.completion(**asked, stream=True)]
        assert "".join(parts) == whole.choices[0].message.content, (parts, whole)
        assert len(litellm.embedding(model=f"ollama/{MODEL}", api_base=URL, input=["a", "b"]).data) == 2
    """
    held(server, tmp_path, code)


@needs("llm_ollama")
def test_llm_with_its_ollama_plugin(server: RunningServer, tmp_path: Path) -> None:
    code = """
        import llm

        model = llm.get_model(f"ollama/{MODEL}")
        answer = model.prompt("Hello", num_predict=12, seed=1, temperature=0.0, stream=False)
        assert answer.text()
        streamed = model.prompt("Hello", num_predict=12, seed=1, temperature=0.0)
        assert "".join(streamed) == answer.text()
    """
    held(server, tmp_path, code)
