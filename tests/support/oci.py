"""Debian's ``docker-registry`` on loopback: a real OCI distribution registry, with or without a password. An
OciRegistry owns its process and its directory."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

BINARY = "docker-registry"
# "user:password" in Apache's bcrypt form
HTPASSWD = "user:$2b$05$mzwwUFRSdNMZ.EglSp21ye54ECSP4xJqECaylTCiPE91qhxgQ4JlW\n"


class MissingError(Exception):
    """Why there is no registry to test with."""


def find() -> str:
    """The program; installed with apt where that is possible, else ``MissingError``."""
    if found := shutil.which(BINARY):
        return found
    if (apt := shutil.which("apt-get")) is None:
        raise MissingError(f"{BINARY} is not installed, and there is no apt to install it")
    done = subprocess.run([apt, "install", "-y", BINARY], capture_output=True, text=True)
    if found := shutil.which(BINARY):
        return found
    reason = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
    raise MissingError(f"apt cannot install {BINARY}: {reason}")


class OciRegistry:
    def __init__(self, program: str, directory: Path, *, password: bool = False) -> None:
        self.port = _free_port()
        self.login = "user:password" if password else None
        config: dict[str, Any] = {
            "version": 0.1,
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": str(directory / "data")}},
            "http": {"addr": f"127.0.0.1:{self.port}"},
        }
        if password:
            (directory / "htpasswd").write_text(HTPASSWD)
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(directory / "htpasswd")}}
        (directory / "config.yml").write_text(json.dumps(config))  # JSON is YAML
        self._log = (directory / "log").open("wb")
        self._process = subprocess.Popen(
            [program, "serve", str(directory / "config.yml")], stdout=self._log, stderr=subprocess.STDOUT
        )

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        deadline = time.monotonic() + 120
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("docker-registry did not start")
            time.sleep(0.05)
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def push(self, name: str, layers: list[tuple[str, bytes]], tag: str = "latest") -> None:
        """``layers`` are (media type, content)."""
        described = [{"mediaType": media, **self._push_blob(name, content)} for media, content in layers]
        config = {"mediaType": "application/vnd.docker.container.image.v1+json", **self._push_blob(name, b"{}")}
        media = "application/vnd.docker.distribution.manifest.v2+json"
        manifest = {"schemaVersion": 2, "mediaType": media, "config": config, "layers": described}
        self._ask("PUT", f"/v2/{name}/manifests/{tag}", json.dumps(manifest).encode(), media)

    def _push_blob(self, name: str, content: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        location = self._ask("POST", f"/v2/{name}/blobs/uploads/").headers["Location"]
        path = location.partition(self.host)[2] or location
        self._ask("PUT", f"{path}{'&' if '?' in path else '?'}digest={digest}", content, "application/octet-stream")
        return {"digest": digest, "size": len(content)}

    def _answers(self) -> bool:
        try:
            self._ask("GET", "/v2/")
        except OSError:
            return False
        return True

    def _ask(self, method: str, path: str, body: bytes = b"", media: str = "") -> Any:
        request = urllib.request.Request(f"http://{self.host}{path}", data=body or None, method=method)
        if media:
            request.add_header("Content-Type", media)
        if self.login:
            request.add_header("Authorization", "Basic " + base64.b64encode(self.login.encode()).decode())
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()
            return response


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
