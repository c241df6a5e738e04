"""A conversation and its settings, and what the slash commands do to them. Pure but for the server that it asks; owns
the messages."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from barrel_inference.cli.report import human_bytes, table
from barrel_inference.cli.wishes import LEVELS, NO_WISHES, Wishes
from barrel_inference.errors import ConfigError
from barrel_inference.options import nearest
from barrel_inference.registry.modelfile.parameters import PARAMETERS
from barrel_inference.server.models.parameters import translate

HELP = """\
/set parameter NAME VALUE…   of the next answers: temperature, seed, stop, …;
                             a stop of several words stands in quotes
/set parameter NAME          without a value: as the model has it again
/set system TEXT             the system message
/set format json | SCHEMA    what answers must match; /set noformat
/set think [LEVEL]           let the model think first; /set nothink
/set verbose | quiet         say after each answer what it took
/set history | nohistory     remember what is typed for the next time
/show info | license | modelfile | parameters | system | template
/load MODEL                  another model, a new conversation
/save MODEL                  this conversation and its settings as a model
/clear                       forget the conversation
/list                        models that are installed
/bye                         leave
\"\"\"                          begins and ends a message of several lines
Ctrl-C, Ctrl-D               stop an answer; leave"""


class Asking(Protocol):
    """The part of client.Client that is needed."""

    def ask(self, method: str, path: str, body: Any = None) -> Any: ...

    def lines(self, path: str, body: Any) -> Iterator[dict[str, Any]]: ...


class Session:
    """``cache`` False: nothing that was saved is looked for, and nothing is saved."""

    def __init__(
        self,
        client: Asking,
        model: str,
        system: str | None = None,
        options: dict[str, Any] | None = None,
        *,
        cache: bool = True,
        wishes: Wishes = NO_WISHES,
    ):
        self.model = model
        self.system = system
        self.options: dict[str, Any] = dict(options or {})
        self.format: Any = wishes.format
        self.think: bool | str | None = wishes.think
        self.verbose = False
        self.history = True
        self.messages: list[dict[str, Any]] = []
        self._client = client
        self._always = Wishes(keep_alive=wishes.keep_alive).body() | ({} if cache else {"cache": "off"})
        self._commands: dict[str, Callable[[str], str]] = {
            "/set": self._set,
            "/show": self._show,
            "/load": self._load,
            "/save": self._save,
            "/clear": self._clear,
            "/list": self._list,
            "/help": lambda rest: HELP,
            "/?": lambda rest: HELP,
        }

    def answer(self, text: str) -> Generator[dict[str, Any], None, None]:
        """The pieces of the answer to ``text``. What came of it is remembered, also when it is closed early."""
        self.messages.append({"role": "user", "content": text})
        said, thought = "", ""
        try:
            for piece in self._client.lines("/api/chat", self._request()):
                said += piece["message"].get("content", "")
                thought += piece["message"].get("thinking") or ""
                yield piece
        finally:
            if said or thought:
                self.messages.append(
                    {"role": "assistant", "content": said, **({"thinking": thought} if thought else {})}
                )
            else:
                self.messages.pop()

    def _request(self) -> dict[str, Any]:
        head = [{"role": "system", "content": self.system}] if self.system else []
        request = {"model": self.model, "messages": head + self.messages, "options": self.options}
        return request | {"format": self.format, "think": self.think} | self._always

    def command(self, line: str) -> str:
        """What to say. Raises ConfigError, and what the server answers."""
        name, _, rest = line.strip().partition(" ")
        if name not in self._commands:
            raise ConfigError(f"unknown command {name}; /? shows them all")
        return self._commands[name](rest.strip())

    # ---- commands

    def _set(self, rest: str) -> str:
        what, _, value = rest.partition(" ")
        match what, value.strip():
            case "parameter", given if given:
                return self._set_parameter(*given.split(maxsplit=1))
            case "system", text if text:
                self.system = text.strip('"')
                return "the system message is set"
            case "format", text if text:
                self.format = "json" if text == "json" else _schema(text)
                return "answers will match the format"
            case "noformat", "":
                self.format = None
            case "think", level if level in ("", *LEVELS):
                self.think = level or True
            case "nothink", "":
                self.think = False
            case (("verbose" | "quiet"), ""):
                self.verbose = what == "verbose"
            case (("history" | "nohistory"), ""):
                self.history = what == "history"
            case (("wordwrap" | "nowordwrap"), ""):
                return "the terminal wraps lines itself"
            case _:
                raise ConfigError("see /? for what can be set")
        return "done"

    def _set_parameter(self, name: str, text: str = "") -> str:
        if text:
            self.options |= parameter(name, text)
            return f"{name} is {self.options[name]!r} now"
        if name not in self.options:
            raise ConfigError(f"{name} is not set", option=name)
        del self.options[name]
        return f"{name} is as the model has it again"

    def _show(self, what: str) -> str:
        if what == "system" and self.system:
            return self.system
        if what == "parameters" and self.options:
            return "\n".join(f"{name:<30} {value}" for name, value in self.options.items())
        shown = self._client.ask("POST", "/api/show", {"model": self.model})
        if what in ("license", "modelfile", "parameters", "system", "template"):
            return shown.get(what) or f"this model has no {what} of its own"
        if what in ("", "info"):
            facts = {name: value for name, value in shown["details"].items() if isinstance(value, str | int) and value}
            facts["capabilities"] = ", ".join(shown["capabilities"])
            return "\n".join(f"{name.replace('_', ' '):<20} {value}" for name, value in facts.items())
        raise ConfigError("/show info, license, modelfile, parameters, system or template")

    def _load(self, model: str) -> str:
        if not model:
            raise ConfigError("/load MODEL")
        # with the options, since some of them count only now
        self._client.ask("POST", "/api/generate", {"model": model, "prompt": "", "options": self.options})
        self.model = model
        self._clear("")
        return f"now with {model}"

    def _save(self, name: str) -> str:
        if not name:
            raise ConfigError("/save MODEL")
        body = {"model": name, "from": self.model, "parameters": self.options, "stream": False}
        if self.system:
            body["system"] = self.system
        if self.messages:
            body["messages"] = [{"role": each["role"], "content": each["content"]} for each in self.messages]
        self._client.ask("POST", "/api/create", body)
        return f"saved as {name}"

    def _clear(self, rest: str) -> str:
        self.messages.clear()
        return "a new conversation"

    def _list(self, rest: str) -> str:
        models = self._client.ask("GET", "/api/tags")["models"]
        return table([("NAME", "SIZE"), *((each["name"], human_bytes(each["size"])) for each in models)], numbers=[1])


def parameter(name: str, text: str) -> dict[str, Any]:
    """As a request's option: numbers, true and false as such; ``stop`` is a list of texts. Raises ConfigError for a
    name that means nothing to requests nor to /save, and InvalidRequestError."""
    option = {name: _words(text) if name == "stop" else _scalar(text)}
    if translate(option).ignored and name not in PARAMETERS:
        raise ConfigError(f"unknown parameter {name!r}{nearest(name, PARAMETERS)}", option=name)
    return option


def _words(text: str) -> list[str]:
    """As a shell parts them, but a backslash is one: stops are often odd."""
    parts = shlex.shlex(text, posix=True)
    parts.whitespace_split, parts.commenters, parts.escape = True, "", ""
    try:
        return list(parts)
    except ValueError:
        raise ConfigError(f"a quotation mark is not closed: {text}", option="stop") from None


def _scalar(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float | bool) else text


def _schema(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"neither json nor a JSON schema: {error}") from None


def limited(final: dict[str, Any]) -> str:
    """What was asked for and is more than the server gives, and what it gave; empty if it gave all."""
    return ", ".join(f"{name} is limited to {given}" for name, given in (final.get("capped") or {}).items())


def summary(final: dict[str, Any]) -> str:
    """One line of what the answer took, and where it got less than was asked for."""
    count, seconds = final.get("eval_count", 0), final.get("eval_duration", 0) / 1e9
    rate = f" at {count / seconds:.1f}/s" if seconds else ""
    cached = final.get("prompt_eval_cached_count") or 0
    return (
        f"{final.get('prompt_eval_count', 0)} prompt tokens ({cached} known), {count} tokens{rate},"
        f" {final.get('total_duration', 0) / 1e9:.2f} s" + (f"; {note}" if (note := limited(final)) else "")
    )
