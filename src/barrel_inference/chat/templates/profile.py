"""What a template can express, found out by rendering small conversations and looking for what became of them. Pure.

Templates lose things silently: text beside a tool call, the second of two calls, messages of a role they do not know.
What is known to be lost, ``messages.conform`` says in another way.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from barrel_inference.chat import reasoning
from barrel_inference.chat.events import CallArguments, CallStarted, Piece
from barrel_inference.chat.messages import Form, Message, conform
from barrel_inference.chat.output import OutputParser, Shape, Thinking
from barrel_inference.chat.templates.template import ChatTemplate
from barrel_inference.chat.tools import families, learned
from barrel_inference.chat.tools.learned import FIRST, SECOND, Probe
from barrel_inference.chat.tools.scan import common_prefix, common_suffix
from barrel_inference.chat.tools.syntax import Syntax, parameters
from barrel_inference.errors import TemplateError

MAX_STUDY_S = 15.0  # of all renderings together; one that is meant well takes milliseconds


class Profile(NamedTuple):
    """What a template can express, and what the answers of its model may be made of."""

    form: Form
    shape: Shape


def _tool(probe: Probe) -> dict[str, Any]:
    properties = {
        "zqtext": {"type": "string", "description": "zq"},
        "zqcount": {"type": "integer", "description": "zq"},
    }
    schema = {"type": "object", "properties": properties, "required": ["zqtext"]}
    function = {"name": probe.name, "description": f"about {probe.name}", "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = [_tool(FIRST), _tool(SECOND)]
_LONG_ID = FIRST._replace(id="call_zq0000000001")
_USER: Message = {"role": "user", "content": "zquser"}
_ANSWER: Message = {"role": "assistant", "content": "zqcontent"}


def study(template: ChatTemplate, clock: Callable[[], float] = time.thread_time) -> Profile:
    """Some forty small renderings. Raises TemplateError when they take too long."""
    probing = _Probing(template, clock)
    thinking = _thinking(probing)
    syntax = _syntax(probing, thinking)
    return Profile(probing.form, Shape(thinking, syntax, reasoning.noise(template.source)))


class _Probing:
    """Finds the form of a template step by step; what is found is used for the rest."""

    def __init__(self, template: ChatTemplate, clock: Callable[[], float]) -> None:
        self.template = template
        self._clock = clock
        self._deadline = clock() + MAX_STUDY_S
        self.form = Form(native_calls=True, native_definitions=True)
        self._settle()

    def _settle(self) -> None:
        if not self.shows([_USER], ["zquser"]):
            self._try(typed_content=True, check=lambda: self.shows([_USER], ["zquser"]))
        changes: tuple[dict[str, Any], ...] = ({}, {"short_ids": True}, {"object_arguments": False})
        any(self._try(**change, check=lambda: self._shows_call(_LONG_ID)) for change in changes)
        for key in ("reasoning_content", "reasoning", "thinking"):
            if self._try(reasoning_key=key, check=self._shows_reasoning):
                break
        system, late = _say("system", "zqsystem"), _say("system", "zqlate")
        self._unless("system", [system, _USER], ["zqsystem", "zquser"])
        self._unless("late_system", [_USER, _ANSWER, late, _say("user", "zqagain")], ["zqcontent", "zqlate", "zqagain"])
        self._unless("repeated_roles", [_USER, _say("user", "zqagain")], ["zquser", "zqagain"])
        for trait, turn, needles in (
            ("parallel_calls", _turn([FIRST, SECOND]), {FIRST.name, SECOND.name, "zqvalue", "zqother"}),
            ("text_beside_calls", _turn([FIRST], "zqcontent"), {FIRST.name, "zqvalue", "zqcontent"}),
        ):
            tail = self.render(turn).rpartition("zquser")[2]
            self._set(trait, all(needle in tail for needle in needles))
        self._try(developer=True, check=lambda: self.shows([_say("developer", "zqdev"), _USER], ["zqdev", "zquser"]))
        calls = self._shows_call()
        knows = calls or bool(families.candidates(self.template.source))
        result = [*_turn([FIRST]), {"role": "tool", "content": "zqresult", "tool_call_id": FIRST.id}]
        self.form = self.form._replace(
            native_calls=calls,
            native_definitions=knows and self._shows_definitions(),
            tool_role=knows and "zqresult" in self.render(result),
        )

    def _try(self, *, check: Any, **change: Any) -> bool:
        before = self.form
        self.form = before._replace(**change)
        if not check():
            self.form = before
            return False
        return True

    def _unless(self, trait: str, messages: list[Message], needles: list[str]) -> None:
        """The trait holds when the template shows these messages untouched."""
        if not self._try(**{trait: True}, check=lambda: self.shows(messages, needles)):
            self._set(trait, False)

    def _set(self, trait: str, value: Any) -> None:
        self.form = self.form._replace(**{trait: value})

    def render(self, messages: Sequence[Message], **values: Any) -> str:
        """Empty when the template refuses. One that runs out of time once is not given that time forty times."""
        try:
            return self.render_strictly(messages, **values)
        except TemplateError as error:
            if error.details.get("timeout"):
                raise
            return ""

    def render_strictly(self, messages: Sequence[Message], **values: Any) -> str:
        if self._clock() > self._deadline:
            raise TemplateError(f"the chat template is too slow: {MAX_STUDY_S:g} s for small examples", timeout=True)
        values = {"add_generation_prompt": False, "tools": TOOLS} | values
        return self.template.text(conform(messages, self.form), **values)

    def shows(self, messages: Sequence[Message], needles: Sequence[str], **values: Any) -> bool:
        """All needles, in this order, each once."""
        text = self.render(messages, **values)
        places = [text.find(needle) for needle in needles]
        return -1 not in places and places == sorted(places)

    def _shows_call(self, probe: Probe = FIRST) -> bool:
        text = self.render(_turn([probe])).rpartition("zquser")[2]
        mangled = '\\"zqtext\\"' in text or "{'zqtext'" in text
        return FIRST.name in text and "zqvalue" in text and not mangled

    def _shows_definitions(self) -> bool:
        return f"about {FIRST.name}" in self.render([_USER])

    def _shows_reasoning(self) -> bool:
        answer = {**_ANSWER, "reasoning_content": "zqreason"}
        with_call = [*_turn([FIRST]), _USER]
        with_call[1] = {**with_call[1], "reasoning_content": "zqreason"}
        return any("zqreason" in self.render(turn, **_THINK) for turn in ([_USER, answer], with_call[:2]))


_THINK = {"enable_thinking": True, "thinking": True}


def _say(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _turn(probes: Sequence[Probe], content: str = "") -> list[Message]:
    calls = [
        {"id": probe.id, "function": {"name": probe.name, "arguments": json.dumps(probe.arguments)}} for probe in probes
    ]
    return [_USER, {"role": "assistant", "content": content, "tool_calls": calls}]


def _thinking(probing: _Probing) -> Thinking | None:
    answer = {**_ANSWER, "reasoning_content": "zqreason"}
    rendered = [probing.render([_USER, answer], **_THINK)]
    for switch in (_THINK, {}, {"enable_thinking": False, "thinking": False}):
        prompt = probing.render([_USER], add_generation_prompt=True, tools=None, **switch)
        rendered.append(prompt.rpartition("zquser")[2])
    found = reasoning.known([text.rpartition("zquser")[2] for text in rendered])
    if found is None:
        found = reasoning.learn(rendered[0], probing.render([_USER, _ANSWER], **_THINK), "zqreason", "zqcontent")
    return found or reasoning.known([probing.template.source])


def _syntax(probing: _Probing, thinking: Thinking | None) -> Syntax | None:
    """The first that reads what the template writes: a known one, or what can be learned."""

    def render(probes: Sequence[Probe]) -> str:
        return _calls_text(probing, probes)

    known = families.candidates(probing.template.source)
    if not probing.form.native_calls:
        return known[0] if known else None
    for syntax in known:
        if _reads(syntax, thinking, probing, render):
            return syntax
    try:
        new = learned.learn(render)
    except TemplateError:
        new = None
    if new is not None and _reads(new, thinking, probing, render):
        return new
    return known[0] if known else None


def _calls_text(probing: _Probing, probes: Sequence[Probe]) -> str:
    """What an assistant message with these calls holds, without what every message begins and ends with."""
    text = probing.render_strictly(_turn(probes))
    text = text[: text.rfind(eos)] if (eos := probing.template.eos_token) and text.rstrip().endswith(eos) else text
    plain = probing.render([_USER, _ANSWER])
    head = plain.partition("zqcontent")[0]
    if not text.startswith(head):
        head = re.sub(r"[<\[][^>\]]*$", "", common_prefix(head, text))
    text = text[len(head) :]
    return text.removesuffix(learned.whole_marks(common_suffix(text, plain)))


def _reads(syntax: Syntax, thinking: Thinking | None, probing: _Probing, render: learned.Render) -> bool:
    probes = [FIRST, SECOND] if probing.form.parallel_calls else [FIRST]
    try:
        text = render(probes)
    except TemplateError:
        return False
    parser = OutputParser(Shape(thinking, syntax), parameters(TOOLS))
    events = parser.feed(text) + parser.finish()
    return _names(events) == [(probe.name, probe.arguments) for probe in probes]


def _names(events: Sequence[Piece]) -> list[tuple[str, Any]]:
    names = [event.name for event in events if isinstance(event, CallStarted)]
    arguments = [json.loads(event.text) for event in events if isinstance(event, CallArguments)]
    return list(zip(names, arguments, strict=True))
