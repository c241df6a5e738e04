"""LangChain, LiteLLM and instructor on a real model: what is built on the two SDKs works as they do."""

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


@needs("langchain_openai")
def test_langchain_over_openai(server: RunningServer, tmp_path: Path) -> None:
    code = """
        from langchain_openai import ChatOpenAI
        from pydantic import create_model

        model = ChatOpenAI(base_url=f"{URL}/v1", api_key="any", model=MODEL, max_tokens=40, temperature=0)
        whole = model.invoke("Say hello.").content
        assert whole and "".join(chunk.content for chunk in model.stream("Say hello.")) == whole
        parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
        tool = {"type": "function", "function": {"name": "add", "description": "d", "parameters": parameters}}
        (call,) = model.bind_tools([tool], tool_choice="add").invoke("Say hello.").tool_calls
        assert call["name"] == "add"
        person = create_model("Person", name=(str, ...), age=(int, ...))
        assert model.with_structured_output(person, method="json_schema").invoke("Ada is 36.").age is not None
    """
    held(server, tmp_path, code)


@needs("langchain_anthropic")
def test_langchain_over_anthropic(server: RunningServer, tmp_path: Path) -> None:
    code = """
        from langchain_anthropic import ChatAnthropic

        model = ChatAnthropic(base_url=URL, api_key="any", model=MODEL, max_tokens=20)
        assert model.invoke("Say hello.").content
        assert len(list(model.stream("Say hello."))) > 1
    """
    held(server, tmp_path, code)


@needs("litellm")
def test_litellm(server: RunningServer, tmp_path: Path) -> None:
    code = """
        import litellm

        messages = [{"role": "user", "content": "Say hello."}]
        for model, base in {f"openai/{MODEL}": f"{URL}/v1", f"anthropic/{MODEL}": URL}.items():
            asked = {"model": model, "api_base": base, "api_key": "any", "messages": messages, "max_tokens": 10}
            assert litellm.completion(**asked).choices[0].message.content
            assert len(list(litellm.completion(**asked, stream=True))) > 1
        found = litellm.embedding(model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="any", input=["a"])
        assert len(found.data) == 1
    """
    held(server, tmp_path, code)


@needs("instructor")
def test_instructor(server: RunningServer, tmp_path: Path) -> None:
    code = """
        import instructor
        import openai
        from pydantic import create_model

        person = create_model("Person", name=(str, ...), age=(int, ...))
        ask = {"model": MODEL, "response_model": person, "max_tokens": 100, "temperature": 0}
        ask["messages"] = [{"role": "user", "content": "Ada is 36 years old."}]
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            client = instructor.from_openai(openai.OpenAI(base_url=f"{URL}/v1", api_key="any"), mode=mode)
            assert isinstance(client.chat.completions.create(**ask).age, int)
    """
    held(server, tmp_path, code)
