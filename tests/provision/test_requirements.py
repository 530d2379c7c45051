"""Requirements files are read with all that they include; secrets leave no trace."""

from __future__ import annotations

import base64
import hashlib
import http.server
import re
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.local_worker import LocalWorker

from provision.test_apply import (  # noqa: F401
    EMULATED,
    apply,
    first,
    installed,
    outcomes,
    provisioned,
    uv,
)
from tpukit.errors import BadInput
from tpukit.provision.recipes import Recipe, uv_requirement
from tpukit.provision.requirements import read_requirements
from tpukit.ssh.worker_files import UV_VERSION

SECRET = "hunter2-of-the-index"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder / next(iter(files))


def read(path: Path | str, *indexes: str, editable: str = "", **own: str):
    return read_requirements(str(path), indexes, editable, own)


def test_so_many_files_are_read_and_no_more(tmp_path):
    for number in range(99):
        write(tmp_path, **{f"part{number}": "einops==0.8.1\n"})
    by_windows = "\ufeff" + "".join(f"-r part{number}\n" for number in range(99))
    root = write(tmp_path, root=by_windows)
    assert len(read(root).files) == 101  # with the one that names the first
    write(tmp_path, part98="-r more", more="einops==0.8.1\n")
    with pytest.raises(BadInput, match="one file too many: 100 are read"):
        read(root)


def test_so_many_bytes_are_read_of_all_files_together_and_no_more(tmp_path):
    root, half = "-r first\n-r second\n", "#" * (1 << 19)
    room = len(half) - len(root)
    path = write(tmp_path, root=root, first=half, second=half[:room])
    assert len(read(path).files) == 4  # with the one that names the first
    write(tmp_path, second=half[: room + 1])
    with pytest.raises(BadInput, match=r"second .* is larger than 1048576 bytes"):
        read(path)


def test_a_file_travels_with_what_it_includes_each_once(tmp_path):
    (tmp_path / "sub").mkdir()
    write(
        tmp_path / "sub", more="-r ../root  # back again\n", limits="numpy<2.4 ; os_name == 'x'\n"
    )
    root = write(
        tmp_path, root="# mine\neinops==0.8.1 \\\n  --hash=sha256:0\n-rsub/more\n-c sub/limits\n"
    )
    found = read(root)
    names = {name.partition("-")[2]: name for name in found.files if name != "requirements.txt"}
    assert found.files["requirements.txt"].decode() == f"-r {names['root']}\n"
    assert found.files[names["root"]].decode() == (
        f"einops==0.8.1 --hash=sha256:0\n-r {names['more']}\n-c {names['limits']}\n"
    )
    assert found.files[names["more"]].decode() == f"-r {names['root']}\n"
    assert [package.requirement for package in found.packages] == ["einops==0.8.1"]
    write(tmp_path / "sub", limits="numpy<2.3\n")
    assert read(root).digest != found.digest
    assert read("") is None


def test_what_cannot_travel_is_refused_by_its_line(tmp_path):
    cases = {
        "-e .": "is only on this machine",
        "./wheels/x.whl": "is only on this machine",
        "/opt/x.whl": "is only on this machine",
        "mine @ file:///opt/mine": "is only on this machine",
        "-r missing.txt": "cannot read",
        "--extra-index-url https://me:${NOT_SET}@host/simple": "${NOT_SET} is not set here",
    }
    for line, says in cases.items():
        path = write(tmp_path, root=f"einops\n{line}\n")
        with pytest.raises(BadInput) as caught:
            read(path)
        assert says in caught.value.what, line
    for index in ("https://me:secret@host/simple", "host/simple", "--index"):
        with pytest.raises(BadInput) as caught:
            read("", index)
        assert "secret" not in caught.value.what
        assert "${TOKEN}" in str(caught.value.fix)
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="not UTF-8"):
        read(tmp_path / "latin")


def test_what_cannot_be_beside_a_recipe_is_refused_with_the_reason(tmp_path):
    cases = [
        ("jax", "torch_xla", "torch_xla cannot share an environment with jax", "libtpu"),
        ("flax", "Tensorflow_TPU==2.20.0", "cannot share an environment", "aborts at import"),
        ("jax", "libtpu==0.0.52", "libtpu 0.0.52 does not fit jax", "jax pins its own"),
        ("jax", "jax==0.9.2", "jax==0.9.2 is requested, but jax has 0.12.0.1 or 0.10.2", ""),
    ]
    for recipe, line, what, why in cases:
        found = read(write(tmp_path, root=f"{line}\n"))
        with pytest.raises(BadInput) as caught:
            Recipe.named(recipe).check_beside(found.packages)
        assert what in caught.value.what
        assert why in caught.value.why
    for line in ("einops", "jax==0.10.2", "numpy>=2"):
        Recipe.named("jax").check_beside(read(write(tmp_path, root=f"{line}\n")).packages)


class PrivateIndex(http.server.BaseHTTPRequestHandler):
    """Has one package, for who knows the password."""

    wheel = b""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        if given != "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode():
            self.send_response(401)
            self.end_headers()
            return
        name = "mine-1.0-py3-none-any.whl"
        if not self.path.startswith(("/simple/mine/", f"/{name}")):
            self.send_response(404)
            self.end_headers()
            return
        page = f'<a href="/{name}#sha256={hashlib.sha256(self.wheel).hexdigest()}">{name}</a>'
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.wheel if self.path.endswith(".whl") else page.encode())

    def do_HEAD(self) -> None:
        self.send_response(405)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Say nothing."""


def write_wheel(folder: Path, text: str = "", name: str = "mine", version: str = "1.0") -> Path:
    """Write a wheel with one module, and return its path."""
    path, about = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", text)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        wheel.writestr(f"{about}/METADATA", metadata)
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def private_index(tmp_path: Path) -> Iterator[str]:
    """The address of an index with a password."""
    path = write_wheel(tmp_path)
    handler = type("Index", (PrivateIndex,), {"wheel": path.read_bytes()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}/simple"
    server.shutdown()


@pytest.mark.full_size
def test_the_secret_of_a_private_index_leaves_no_trace(tmp_path, provisioned, private_index):  # noqa: F811
    """Whether the installation succeeds or fails: no file, no log, no command has it."""
    indexes = f"http://me:${{TOKEN}}@{private_index}"
    path = write(tmp_path, **{"own.txt": "mine==1.0\n"})
    for token, fails in (("wrong-" + SECRET, True), (SECRET, False), (SECRET, False)):
        (report,) = apply(
            provisioned.remote(), requirements=read(path, indexes, TOKEN=token)
        ).workers
        assert bool(report.error) is fails, report.log_tail
        traces = [
            path
            for path in provisioned.home.rglob("*")
            if path.is_file() and ".tpukit" in path.parts and SECRET.encode() in path.read_bytes()
        ]
        assert traces == []
        assert not [command for command in provisioned.commands if SECRET in command]
        assert SECRET not in "".join(report.log_tail) + report.error
    assert outcomes(report)["requirements"] == "unchanged"
    assert "mine-1.0" in installed(provisioned.home)


@pytest.mark.full_size
def test_a_pushed_project_is_installed_as_it_is_and_again_when_it_says_something_else(provisioned):  # noqa: F811
    project = provisioned.home / "work"
    project.mkdir()
    about = '[project]\nname = "work"\nversion = "1"\ndependencies = ["sortedcontainers==2.4.0"]\n'
    build = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    wanted = read("", editable="work")
    (report,) = apply(provisioned.remote(), requirements=wanted).workers
    assert report.error == "step requirements: there is no project to install on the worker"
    assert "tpukit push" in str(report.cause.fix)
    write(project, **{"pyproject.toml": about + build, "work.py": "answer = 42\n"})
    assert apply(provisioned.remote(), requirements=wanted).ok
    assert {"sortedcontainers-2.4.0", "iniconfig-2.0.0"} <= installed(provisioned.home)
    assert apply(provisioned.remote(), requirements=wanted).changes == 0
    write(project, **{"pyproject.toml": about.replace("2.4.0", "2.3.0") + build})
    assert apply(provisioned.remote(), requirements=wanted).ok
    assert "sortedcontainers-2.3.0" in installed(provisioned.home)
    write(
        project,
        **{"pyproject.toml": about.replace("sortedcontainers==2.4.0", "iniconfig<2") + build},
    )
    (report,) = apply(provisioned.remote(), requirements=wanted).workers
    assert report.error.startswith("step requirements: ")
    assert "iniconfig-2.0.0" in installed(provisioned.home)


@pytest.fixture
def public_index(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL of an index with the package `mine`, and the folder that has its wheel."""
    folder = tmp_path / "index/simple/mine"
    folder.mkdir(parents=True)
    publish(folder, "")
    handler = partial(QuietHandler, directory=str(tmp_path / "index"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/simple", folder
    server.shutdown()


def publish(folder: Path, text: str) -> None:
    """Put a wheel of `mine` with a module of this text into the index, with its hash."""
    path = write_wheel(folder, text)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "index.html").write_text(f'<a href="{path.name}#sha256={digest}">{path.name}</a>')


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        """Say nothing."""


#: Builds a project without a package of the index.
BACKEND = """
import zipfile
def build_editable(folder, *options):
    name = "work-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        about = "Metadata-Version: 2.1\\nName: work\\nVersion: 1\\nRequires-Dist: mine\\n"
        wheel.writestr("work-1.dist-info/METADATA", about)
        wheel.writestr("work-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("work-1.dist-info/RECORD", "")
    return name
"""


@pytest.mark.slow
@pytest.mark.parametrize("tampered", [False, True])
def test_a_wheel_that_a_project_s_lock_does_not_name_is_refused(
    tmp_path,
    provisioned,  # noqa: F811
    public_index,
    uv,  # noqa: F811
    tampered,
):
    """The index gives another file under the name that was locked."""
    url, folder = public_index
    provisioned.environment["UV_INDEX"] = url
    project = provisioned.home / "work"
    project.mkdir()
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    about = '[project]\nname = "work"\nversion = "1"\ndependencies = ["mine"]\n'
    about += 'requires-python = ">=3.10"\n'
    write(project, **{"pyproject.toml": about + build, "backend.py": BACKEND})
    lock = [uv / "bin/uv", "lock", "--project", project, "--cache-dir", tmp_path / "cache"]
    subprocess.run([*lock, "--default-index", url], check=True, capture_output=True)
    if tampered:
        publish(folder, "print('tampered')\n")
    (report,) = apply(provisioned.remote(), requirements=read("", editable="work")).workers
    assert ("mine-1.0" in installed(provisioned.home)) is not tampered, report
    if tampered:
        what = "step requirements: a file of the package index is not the one in the lock"
        assert report.error == what


@pytest.mark.process
def test_a_tampered_uv_is_refused(tmp_path: Path) -> None:
    """The index gives another file under its name; none of the worker is changed."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, name="uv", version=UV_VERSION)
    variables = {**EMULATED, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    worker = LocalWorker(tmp_path / "home", environment=variables)
    worker.home.mkdir()
    (report,) = apply(worker.remote()).workers
    assert (
        report.error == "step uv: the package index has another uv than the one that tpukit knows"
    )
    assert not list(worker.home.glob(".tpukit/uv-*"))


def test_the_lock_of_uv_is_of_the_version_that_is_installed() -> None:
    name, *hashes = uv_requirement().split()
    assert name == f"uv=={UV_VERSION}"
    assert hashes
    assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", word) for word in hashes)
