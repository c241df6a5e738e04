"""LangChain, LiteLLM and instructor on a real model: what is built on the two SDKs works as they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.harness import RunningServer
from tests.support.models import smollm2

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # theirs are not ours to mend

ASK = "Say hello."
REASON = "the frameworks extra is not installed"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = {"smollm2": {"model_path": str(smollm2()), "context_opts": {"n_ctx": 2048}}}
    with RunningServer(tmp_path_factory.mktemp("frameworks"), models=models) as running:
        yield running


def person() -> Any:
    pydantic = pytest.importorskip("pydantic", reason=REASON)
    return pydantic.create_model("Person", name=(str, ...), age=(int, ...))


def test_langchain_over_openai(server: RunningServer) -> None:
    langchain = pytest.importorskip("langchain_openai", reason=REASON)
    model = langchain.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="any", model="smollm2", max_tokens=40, temperature=0
    )
    whole = model.invoke(ASK).content
    assert whole and "".join(chunk.content for chunk in model.stream(ASK)) == whole
    tool = {
        "name": "add",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    }
    (call,) = model.bind_tools([{"type": "function", "function": tool}], tool_choice="add").invoke(ASK).tool_calls
    assert call["name"] == "add"
    assert model.with_structured_output(person(), method="json_schema").invoke("Ada is 36.").age is not None


def test_langchain_over_anthropic(server: RunningServer) -> None:
    langchain = pytest.importorskip("langchain_anthropic", reason=REASON)
    model = langchain.ChatAnthropic(base_url=server.url, api_key="any", model="smollm2", max_tokens=20)
    assert model.invoke(ASK).content
    assert len(list(model.stream(ASK))) > 1


def test_litellm(server: RunningServer) -> None:
    litellm = pytest.importorskip("litellm", reason=REASON)
    messages = [{"role": "user", "content": ASK}]
    places = {"openai/smollm2": f"{server.url}/v1", "anthropic/smollm2": server.url}
    for model, base in places.items():
        asked: dict[str, Any] = {"model": model, "api_base": base, "api_key": "any", "messages": messages}
        assert litellm.completion(**asked, max_tokens=10).choices[0].message.content
        assert len(list(litellm.completion(**asked, max_tokens=10, stream=True))) > 1
    vectors = litellm.embedding(model="openai/smollm2", api_base=places["openai/smollm2"], api_key="any", input=["a"])
    assert len(vectors.data) == 1


def test_instructor(server: RunningServer) -> None:
    instructor = pytest.importorskip("instructor", reason=REASON)
    openai = pytest.importorskip("openai", reason=REASON)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as plain:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            client = instructor.from_openai(plain, mode=mode)
            found = client.chat.completions.create(
                model="smollm2",
                response_model=person(),
                messages=[{"role": "user", "content": "Ada is 36 years old."}],
                max_tokens=100,
                temperature=0,
            )
            assert isinstance(found.age, int)
