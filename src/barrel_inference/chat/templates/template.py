"""A model's chat template: conversations to prompt text. Pure; a Template is immutable and may be used from any thread.

Template(source, bos_token=…, eos_token=…).render([{"role": "user", "content": "Hello"}]).text
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import jinja2.meta

from barrel_inference.chat.templates.budget import DEFAULT_LIMITS, Limits
from barrel_inference.chat.templates.environment import MAX_SOURCE_CHARS, ChatEnvironment, render
from barrel_inference.chat.templates.fallbacks import TEMPLATES
from barrel_inference.chat.tools.scan import common_prefix
from barrel_inference.errors import InvalidRequestError, TemplateError

Messages = Sequence[Mapping[str, Any]]

_LAST = 2  # messages at the end of a long conversation whose ends are looked for: each costs a rendering
_FEW = 8  # messages; of so few all ends are
_CUT = "\ue000\ue001\ue000"  # private-use characters: no template strips, escapes or writes them


class Rendered(NamedTuple):
    """``boundaries``: character offsets at which messages end, ascending; of long conversations only the first and the
    last ones. ``opening``: where the messages end and what opens the answer begins."""

    text: str
    boundaries: tuple[int, ...] = ()
    opening: int = 0


class ChatTemplate(ABC):
    """What turns conversations into prompts. ``name`` and ``source`` say which one it is; ``variables`` are the
    keywords that it understands."""

    name: str
    source: str
    variables: frozenset[str]
    eos_token: str = ""

    @abstractmethod
    def text(self, messages: Messages, **values: Any) -> str:
        """One rendering, just as the template has it. Raises TemplateError."""

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> Rendered:
        """The prompt. Other keywords go to the template (enable_thinking, reasoning_effort, …).

        ``continue_final_message``: the prompt ends inside the last message, which the model continues.
        """
        if not messages:
            raise InvalidRequestError("a conversation needs at least one message")
        values = {"tools": tools, "documents": documents, **kwargs}
        if continue_final_message:
            text = self._open_ended(messages, values)
        else:
            text = self.text(messages, add_generation_prompt=add_generation_prompt, **values)
        said = self.text(messages, **values)
        ends = self._ends(text, messages[:-1], values) + [len(said)] * text.startswith(said)
        return Rendered(text, tuple(sorted({end for end in ends if end})), len(common_prefix(said, text)))

    def _open_ended(self, messages: Messages, values: Mapping[str, Any]) -> str:
        last = messages[-1]
        content = last.get("content")
        if not isinstance(content, str):
            raise InvalidRequestError("only a message with text content can be continued")
        text = self.text([*messages[:-1], {**last, "content": content + _CUT}], **values)
        head, cut, _ = text.rpartition(_CUT)
        if not cut:
            raise TemplateError("the chat template leaves out the message that is to be continued")
        return head.replace(_CUT, "")

    def _ends(self, text: str, messages: Messages, values: Mapping[str, Any]) -> list[int]:
        """Where these messages end in ``text``; of many only the first and some of the last."""
        counts = list(range(1, len(messages) + 1))
        if len(counts) > _FEW:
            counts = [1, *counts[-_LAST + 1 :]]
        return [self._end(text, messages[:count], values) for count in counts]

    def _end(self, text: str, head: Messages, values: Mapping[str, Any]) -> int:
        """Where ``head`` ends in ``text``; 0 when it is no prefix of it, or the template refuses it alone."""
        try:
            prefix = self.text(head, **values)
        except TemplateError:
            return 0
        return len(prefix) if text.startswith(prefix) else 0


class Template(ChatTemplate):
    """``source`` is Jinja text, or the name of a built-in template (``fallbacks.TEMPLATES``). ``name`` says which one
    it is: a built-in's name, or "model". Raises TemplateError when it does not compile."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        limits: Limits = DEFAULT_LIMITS,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.name = source if source in TEMPLATES else "model"
        self.source = TEMPLATES.get(source, source)
        self.eos_token = eos_token
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token, "pad_token": eos_token, "unk_token": ""}
        self._limits = limits
        self._clock = clock
        if len(self.source) > MAX_SOURCE_CHARS:
            raise TemplateError(f"the chat template is longer than {MAX_SOURCE_CHARS} characters")
        environment = ChatEnvironment(now)
        try:
            self._compiled = environment.from_string(self.source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(self.source)))
        except Exception as error:  # Python's own compiler has many
            raise TemplateError(f"the chat template does not compile: {error}") from error

    def text(self, messages: Messages, **values: Any) -> str:
        context = {
            **self._tokens,
            "tools": None,
            "documents": None,
            "add_generation_prompt": False,
            **copy.deepcopy(values),  # a template may change what it gets
            "messages": copy.deepcopy(list(messages)),
        }
        return render(self._compiled, context, self._limits, self._clock)
