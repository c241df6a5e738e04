"""A model's side of a conversation: messages and tools to a prompt, and what the output must and may look like. Pure;
made once for each loaded model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from barrel_inference.chat import reasoning, schema
from barrel_inference.chat.memory import Memory, Shelf
from barrel_inference.chat.messages import Message, conform, described, text_of
from barrel_inference.chat.output import OutputParser, Parser, Shape, Thinking
from barrel_inference.chat.reasoning import Think
from barrel_inference.chat.templates.profile import Profile, study
from barrel_inference.chat.templates.template import ChatTemplate, Rendered
from barrel_inference.chat.tools import grammar, harmony, instructions, plain_text
from barrel_inference.chat.tools.syntax import Syntax, Tools, parameters
from barrel_inference.errors import InvalidRequestError, TemplateError, UnsupportedError
from barrel_inference.types import Constraint

# What a template is given by the turn itself.
_TAKEN = frozenset({"self", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
_WORD = "zqanswer"  # stands for an answer in a trial rendering


class Turn(NamedTuple):
    """What is asked. ``messages`` and ``tools`` in OpenAI's form. ``choice``: auto, none, required, or the name of a
    tool behind ``named:``."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    choice: str = "auto"
    parallel: bool = True
    constraint: Constraint | None = None
    think: Think = None
    documents: Sequence[Mapping[str, Any]] = ()
    template: Mapping[str, Any] = {}
    continue_final: bool = False
    salt: str = ""  # whose conversation it is: what was written to others is not repeated


class Prompt(NamedTuple):
    """``thinking``: it ends inside a thought. ``think_end``: the text that ends one, None when the model has none."""

    text: str
    boundaries: tuple[int, ...]
    constraint: Constraint | None
    thinking: bool
    think_end: str | None
    shape: Shape
    tools: Tools
    turn: Turn
    in_harmony: bool = False  # gpt-oss's format

    def parser(self) -> Parser:
        if self.in_harmony:
            return harmony.HarmonyParser(thinking=self.thinking, sure_calls=self._has_sure_calls)
        begun = _begun(self.shape.syntax, self.text)
        sure = self._has_sure_calls and not (begun and self.constraint and self.constraint.start_after)
        parser = OutputParser(self.shape, self.tools, thinking=self.thinking, sure_calls=sure)
        parser.feed(begun)
        return parser

    @property
    def _has_sure_calls(self) -> bool:
        """Whether a grammar sees to it that what begins as a call is one."""
        return bool(self.tools) and self.constraint is not None and self.constraint.grammar is not None


class Dialogue:
    """``markers``: overrides of the detected ones, (open, close) each. ``shelf``: where what was written outlives the
    process."""

    def __init__(
        self,
        template: ChatTemplate,
        *,
        tool_call_markers: tuple[str, str] | None = None,
        thinking_markers: tuple[str, str] | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self.template = template
        self._tool_call_markers = tool_call_markers
        self._thinking_markers = thinking_markers
        self._harmony = harmony.is_harmony(template.source)
        self._memory = Memory(shelf=shelf, of=template.source)

    @cached_property
    def profile(self) -> Profile:
        profile = study(self.template)
        shape = profile.shape
        if self._harmony:
            shape = shape._replace(thinking=Thinking(harmony.THOUGHT, harmony.THOUGHT_END), syntax=None)
        if self._thinking_markers:
            shape = shape._replace(thinking=Thinking(*self._thinking_markers))
        if self._tool_call_markers:
            header, footer = self._tool_call_markers
            shape = shape._replace(syntax=Syntax("given", instructions.SYNTAX.body, header=header, footer=footer))
        return profile._replace(shape=shape)

    @property
    def can_think(self) -> bool:
        return self.profile.shape.thinking is not None

    @property
    def has_native_tools(self) -> bool:
        return self.profile.form.native_definitions

    def prompt(self, turn: Turn) -> Prompt:
        """Raises TemplateError, UnsupportedError, InvalidRequestError."""
        if turn.think not in (None, False) and not self.can_think:
            raise UnsupportedError("this model does not support thinking")
        self._check_values(turn)
        tools = parameters(turn.tools)
        rendered = self._render(turn)
        tail, thinking = self._thought(turn, rendered.text[rendered.opening :] or rendered.text[-40:])
        rendered = self._replayed(turn, rendered)
        shape = self.profile.shape._replace(syntax=self._syntax if tools and turn.choice != "none" else None)
        text = rendered.text + tail
        return Prompt(
            text=text,
            boundaries=rendered.boundaries,
            constraint=self._constraint(turn, _schemas(turn.tools), thinking, bool(_begun(shape.syntax, text))),
            thinking=thinking,
            think_end=self.profile.shape.thinking and self.profile.shape.thinking.close,
            shape=shape,
            tools=tools,
            turn=turn,
            in_harmony=self._harmony,
        )

    def remember(self, prompt: Prompt, answer: Mapping[str, Any], written: str, *, on_shelf: bool = True) -> None:
        """``answer``: the message that the client was given; ``written``: the text that the model wrote."""
        if not prompt.turn.continue_final:
            self._memory.remember(
                _setting(prompt.turn), [*prompt.turn.messages, answer], prompt.text + written, on_shelf=on_shelf
            )

    # ---- the prompt

    def _check_values(self, turn: Turn) -> None:
        if taken := _TAKEN & turn.template.keys():
            raise InvalidRequestError(
                f"the template keyword {min(taken)!r} is not free: it stands for a part of the request",
                option="chat_template_kwargs",
            )
        if turn.documents and "documents" not in self.template.variables:
            raise UnsupportedError("this model's chat template takes no documents", option="documents")

    def _render(self, turn: Turn) -> Rendered:
        return self.template.render(
            self._messages(turn),
            add_generation_prompt=not turn.continue_final,
            continue_final_message=turn.continue_final,
            **self._values(turn),
        )

    def _values(self, turn: Turn) -> dict[str, Any]:
        values = {**reasoning.switches(self.template.variables, turn.think), **turn.template}
        if turn.tools and "functions" in self.template.variables:  # FireFunction's own name for them
            values |= {"functions": json.dumps(list(turn.tools)), "datetime": ""}
        if turn.tools and self.profile.form.native_definitions:
            values["tools"] = [described(tool) for tool in turn.tools]
        return values | {"documents": list(turn.documents) or None}

    def _replayed(self, turn: Turn, rendered: Rendered) -> Rendered:
        """With what is remembered in place of its rendering."""
        known = None if turn.continue_final else self._memory.recall(_setting(turn), turn.messages)
        tail = known and self._behind(turn, known.n_messages, rendered.text)
        if known is None or not tail:
            return rendered
        text = known.text + tail
        shift = len(text) - len(rendered.text)
        begin = len(rendered.text) - len(tail)
        earlier = [end for end in rendered.boundaries if end < begin and rendered.text[:end] == text[:end]]
        later = [end + shift for end in rendered.boundaries if end >= begin]
        return Rendered(text, (*earlier, *later))

    def _behind(self, turn: Turn, count: int, text: str) -> str:
        """What follows the answer that is message ``count``: found by putting a word in its place. Empty when the
        template does not let it be seen."""
        answer = turn.messages[count - 1]
        calls = answer.get("tool_calls")
        marked = {**answer, **(_called(calls) if calls else {"content": _WORD})}
        messages = self._messages(turn._replace(messages=[*turn.messages[: count - 1], marked, *turn.messages[count:]]))
        try:
            shown = self.template.text(messages, add_generation_prompt=True, **self._values(turn))
        except TemplateError:
            return ""
        _, found, tail = shown.rpartition(_WORD)
        rest = _behind_call(self._syntax, tail) if calls else tail
        return rest if found and text.endswith(rest) else ""

    def _messages(self, turn: Turn) -> list[Message]:
        messages = [dict(message) for message in turn.messages]
        if turn.tools and not self.profile.form.native_definitions:
            messages = _instructed(messages, instructions.explain(turn.tools, self._syntax or instructions.SYNTAX))
        return conform(messages, self.profile.form, self._syntax or instructions.SYNTAX)

    def _thought(self, turn: Turn, opening: str) -> tuple[str, bool]:
        """What to add to the prompt for its thinking, and whether it then ends inside a thought."""
        thinking = self.profile.shape.thinking
        if thinking is None or turn.continue_final:
            return "", False
        if turn.think is False:
            return "" if self._harmony else reasoning.closed(opening, thinking), False
        if reasoning.is_open(opening, thinking):
            return "", True
        if thinking.close in opening or not self._must_open(turn):
            return "", False
        return thinking.open if self._harmony else f"{thinking.open}\n", True

    def _must_open(self, turn: Turn) -> bool:
        """A constraint begins after the thinking, so there has to be one: where the model thinks unasked, or is asked
        to."""
        constrained = turn.constraint is not None or turn.choice not in ("auto", "none")
        return constrained and (turn.think is not None or self._thinks_unasked)

    @cached_property
    def _thinks_unasked(self) -> bool:
        ask = reasoning.switches(self.template.variables, True)
        messages = conform([{"role": "user", "content": "zq"}], self.profile.form)
        plain = self.template.text(messages, add_generation_prompt=True)
        return self.template.text(messages, add_generation_prompt=True, **ask) == plain

    # ---- the constraint

    @cached_property
    def _syntax(self) -> Syntax | None:
        if self._harmony:
            return None
        return self.profile.shape.syntax or instructions.SYNTAX

    def _constraint(self, turn: Turn, tools: Tools, thinking: bool, opened: bool) -> Constraint | None:
        """Of the output: a call where one is required, the wanted form where one is given, valid calls in any case.
        ``opened``: the prompt ends with the mark of a call."""
        after = self.profile.shape.thinking.close if thinking and self.profile.shape.thinking else None
        name = turn.choice.removeprefix("named:") if turn.choice.startswith("named:") else None
        if name is not None and name not in tools:
            raise InvalidRequestError(f"tool_choice names {name!r}, which is none of the tools", option="tool_choice")
        if turn.choice == "required" or name is not None:
            if not tools:
                raise InvalidRequestError("tool_choice requires a tool, and none is given", option="tool_choice")
            wanted = {name: tools[name]} if name is not None else tools
            calls = self._calls(wanted, turn.parallel and name is None, after, opened)
            return Constraint(grammar=calls, start_after=after)
        may_call = bool(tools) and turn.choice == "auto"
        if turn.constraint is not None:
            return self._form(turn, tools if may_call else {}, after)
        return self._lazy(tools, turn.parallel, thinking) if may_call else None

    def _calls(self, tools: Tools, parallel: bool, after: str | None, opened: bool = False) -> str:
        if self._harmony:
            return harmony.answers(harmony.calls_rule(tools), thought=after is not None)
        return grammar.calls(self._syntax or instructions.SYNTAX, tools, parallel=parallel, opened=opened)

    def _form(self, turn: Turn, tools: Tools, after: str | None) -> Constraint:
        """Of the answer; or calls of ``tools`` instead of it."""
        assert turn.constraint is not None
        if self._harmony:
            answer = f"{json.dumps(harmony.ANSWER)} answer"
            either = f"{answer} | {harmony.calls_rule(tools)}" if tools else answer
            text = harmony.answers(either, thought=after is not None) + f"answer: {_lark(turn.constraint)}\n"
            return Constraint(grammar=text, start_after=after)
        form = _or_calls(turn.constraint, self._calls(tools, turn.parallel, after)) if tools else turn.constraint
        return msgspec.structs.replace(form, start_after=after)

    def _lazy(self, tools: Tools, parallel: bool, thinking: bool) -> Constraint | None:
        """Nothing is required, but a call that has begun is completed validly. Models think aloud about the marks of
        calls, so that those do not count there."""
        thought = self.profile.shape.thinking
        outside = thought and (("" if thinking else thought.open.strip()), thought.close.strip())
        if self._harmony:
            return Constraint(grammar=harmony.sure_calls_rule(tools), start_after=harmony.CALL, outside=outside)
        syntax = self._syntax
        if syntax is None or syntax.only_at_start or not syntax.triggers:
            return None
        text = grammar.calls(syntax, tools, parallel=parallel, opened=True)
        return Constraint(grammar=text, start_after=syntax.triggers[0], outside=outside)


def _begun(syntax: Syntax | None, prompt: str) -> str:
    """The mark of a call that a prompt ends with. Functionary's end with what begins every part of an answer."""
    return next(filter(prompt.endswith, syntax.triggers), "") if syntax else ""


def _or_calls(constraint: Constraint, calls: str) -> Constraint:
    """The wanted form, or calls instead of it."""
    rules = calls.replace("start:", "tool_calls:", 1)
    return Constraint(grammar=f"start: tool_calls | answer\nanswer: {_lark(constraint)}\n{rules}")


def _lark(constraint: Constraint) -> str:
    if constraint.json_schema is not None:
        return f"%json {constraint.json_schema}"
    if constraint.choices is not None:
        return plain_text.term("|".join(map(plain_text.literal, constraint.choices)))  # one term, however many they are
    if constraint.regex is not None:
        return plain_text.term(constraint.regex)
    raise UnsupportedError(
        "a grammar cannot be combined with tools that the model may call, nor with answers in channels as gpt-oss's;"
        " a JSON schema, a regex or choices can",
        option="grammar",
    )


def _instructed(messages: list[Message], text: str) -> list[Message]:
    """With the text at the end of the system message at the head."""
    if messages and messages[0]["role"] in ("system", "developer"):
        return [{**messages[0], "content": f"{text_of(messages[0].get('content'))}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _called(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The calls, of which the last one says the word."""
    function = {**calls[-1]["function"], "arguments": {"zq": _WORD}}
    return {"tool_calls": [*calls[:-1], {**calls[-1], "function": function}]}


def _behind_call(syntax: Syntax | None, text: str) -> str:
    """What follows a call, from within its last argument on."""
    mark = (syntax.section[1] or syntax.footer).strip() if syntax else ""
    if mark:
        return text.partition(mark)[2]
    braces = 2 if syntax and "{name}" not in syntax.header else 1  # of the arguments, and of a call that is an object
    return text.split("}", braces)[-1] if text.count("}") >= braces else ""


def _schemas(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """Name to the schema that a call's arguments are held to. Raises SchemaError, or InvalidRequestError for names that
    would end the text around them."""
    functions = [tool.get("function", tool) for tool in tools]
    for function in functions:
        if not function["name"].isprintable() or set(function["name"]) & {'"', "\\"}:
            raise InvalidRequestError(
                f"a tool's name has no quotes, backslashes or control characters: {function['name']!r:.80}",
                option="tools",
            )
    return {
        function["name"]: schema.arguments(function.get("parameters") or {}, strict=bool(function.get("strict")))
        for function in functions
    }


def _setting(turn: Turn) -> Any:
    return [list(turn.tools), list(turn.documents), dict(turn.template), turn.think, turn.salt]
