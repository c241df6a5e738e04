"""Asking a running server over HTTP: where it is, one answer, or lines as they come. Owns one connection a call."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from email.message import Message
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

from barrel_inference.errors import (
    BarrelError,
    CacheError,
    InvalidRequestError,
    ModelNotFoundError,
    UnreachableError,
    from_dict,
    os_reason,
)
from barrel_inference.server.environment import ENV_HOST, configuration, url
from barrel_inference.server.failures import ERROR_CODE, WRONG_OPTION

KEY_VARIABLE = "BARREL_INFERENCE_API_KEY"
CONNECT_TIMEOUT_S = 5.0
LOOK_TIMEOUT_S = 3.0  # ours answers in milliseconds, or a second or two on a machine that is busy
LOOK_BYTES = 65_536
BLOCK_BYTES = 1 << 20  # of a file, at a time
# Nobody of that name, no server any more, or somebody else's, whose key we do not have
_NOT_OURS_TO_ASK = ("model_not_found", "unreachable", "unauthorized", "forbidden")


class Client:
    """Of the server at ``base``, else the one that BARREL_INFERENCE_HOST names, else the one that this machine's
    configuration makes, whose keys are known here. Raises UnreachableError when nobody listens or the server breaks
    off, and what the server answered."""

    def __init__(
        self, base: str | None = None, environ: Mapping[str, str] = os.environ, key: str | None = None
    ) -> None:
        given = base or environ.get(ENV_HOST)
        keys: tuple[str, ...] = ()
        if not given:
            options = configuration(environ, {}).server
            keys = options.api_keys
            given = f"[{options.host}]:{options.port}" if ":" in options.host else f"{options.host}:{options.port}"
        self.url = url(given)
        self._key = key or environ.get(KEY_VARIABLE) or next(iter(keys), None)

    def is_ours(self) -> bool:
        """Whether a server of this program listens, by a quick look: another one may have the port, may never answer,
        and gets no key."""
        try:
            with closing(self._connect(LOOK_TIMEOUT_S)) as connection:
                connection.request("GET", "/api/version")
                said = json.loads(connection.getresponse().read(LOOK_BYTES))
        except (BarrelError, OSError, ValueError, http.client.HTTPException):
            return False
        return isinstance(said, dict) and "barrel_inference" in said

    def knows(self, model: str) -> bool:
        """Whether the server has a model of this name, and tells us so. Raises what else it answers: it has the model,
        and something is wrong."""
        try:
            self.ask("POST", "/api/show", {"model": model})
        except BarrelError as error:
            if error.code in _NOT_OURS_TO_ASK:
                return False
            raise
        return True

    def has_loaded(self, model: str) -> bool:
        """By this name, or another one that it goes by. Raises ModelNotFoundError."""
        name = self.ask("GET", f"/v1/models/{quote(model)}")["id"]
        return any(name in each.get("names", [each["name"]]) for each in self.ask("GET", "/api/ps")["models"])

    def has_blob(self, digest: str) -> bool:
        try:
            self.ask("HEAD", f"/api/blobs/{digest}")
        except ModelNotFoundError:
            return False
        return True

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of the answer; None for an empty one."""
        with self._sent(method, path, _packed(body)) as response:
            return _read(response)

    def lines(self, path: str, body: Any) -> Iterator[dict[str, Any]]:
        """The objects of a streamed answer. Closing the iterator closes the connection, which ends the work."""
        piece: dict[str, Any] = {}
        with self._sent("POST", path, _packed(body)) as response:
            for line in response:
                piece = json.loads(line)
                if "error" in piece:
                    raise _told(piece.get("code"), str(piece["error"]), BarrelError, {})
                yield piece
        if not piece.get("done") and piece.get("status") != "success":
            raise self._broke_off("the answer has no end")

    def download(self, path: str, body: Any, file: Path) -> Message:
        """Write the answer's bytes to ``file``, whole or not at all; its headers. CacheError when that fails."""
        temporary = file.with_name(f".{file.name}.{os.getpid()}.part")
        with self._sent("POST", path, _packed(body)) as response:
            try:
                with temporary.open("wb") as out:
                    out.writelines(self._blocks(response))
                temporary.replace(file)
            except OSError as error:
                raise CacheError(f"cannot write {file}: {os_reason(error)}") from error
            finally:
                temporary.unlink(missing_ok=True)
            return response.headers

    def _blocks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while block := response.read(BLOCK_BYTES):
                yield block
        except (OSError, http.client.HTTPException) as error:
            raise self._broke_off(error) from None
        if response.length:
            raise self._broke_off("the answer has no end")

    def upload(self, path: str, file: Path) -> Any:
        """The JSON of the answer to the bytes of ``file``. CacheError when it cannot be read."""
        try:
            content = file.open("rb")
        except OSError as error:
            raise CacheError(f"cannot read {file}: {os_reason(error)}") from error
        with content, self._sent("POST", path, content) as response:
            return _read(response)

    @contextmanager
    def _sent(self, method: str, path: str, body: bytes | BinaryIO | None) -> Iterator[http.client.HTTPResponse]:
        """The answer, still to be read."""
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        with closing(self._connect()) as connection:
            connection.sock.settimeout(None)  # a load or a long prompt may take its time
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                if response.status >= 400:
                    raise _failure(response.status, response.read(), response.headers)
                yield response
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise self._broke_off(error) from None

    def _broke_off(self, reason: object) -> UnreachableError:
        return UnreachableError(f"the server at {self.url} broke off: {reason}")

    def _connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
        try:
            connection.connect()
        except OSError as error:
            cure = f"start one with barrel-inference serve, or set {ENV_HOST}"
            raise UnreachableError(f"no server at {self.url} ({os_reason(error)}): {cure}") from None
        return connection


def _packed(body: Any) -> bytes | None:
    return None if body is None else json.dumps(body).encode()


def _read(response: http.client.HTTPResponse) -> Any:
    text = response.read()
    return json.loads(text) if text else None


def _failure(status: int, body: bytes, headers: http.client.HTTPMessage) -> BarrelError:
    """As the class that the server names, in the head or beside the message; another server's by its status."""
    try:
        said = json.loads(body)
        error = said["error"]  # a text in Ollama's dialect, an object in OpenAI's
        message = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        said, message = {}, f"the server answered {status}"
    kinds: dict[int, type[BarrelError]] = {404: ModelNotFoundError, 400: InvalidRequestError}
    option = headers.get(WRONG_OPTION)
    code = headers.get(ERROR_CODE) or said.get("code")
    return _told(code, message, kinds.get(status, BarrelError), {"option": option} if option else {})


def _told(code: Any, message: str, kind: type[BarrelError], details: dict[str, str]) -> BarrelError:
    """As the class that the server names, where it does; else of ``kind``."""
    if isinstance(code, str):
        return from_dict({"code": code, "message": message, "details": details})
    return kind(message, **details)
