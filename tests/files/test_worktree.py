"""Which files of a working tree are sent, and the manifest that says what they hold."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tpukit.errors import BadInput, Fix
from tpukit.files.worktree import Origin, Tree, read_tree, source_folder


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def git(root: Path, *words: str) -> None:
    settings = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *settings, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with tracked, changed, deleted, new and ignored files."""
    place = tmp_path / "project"
    place.mkdir()
    git(place, "init", "--quiet")
    write(place, tracked="1", changed="1", deleted="1", sub__deep="1", big__data="1", notes="1")
    write(place, _dot_gitignore="*.pyc\n", _dot_tpukitignore="big/\n/notes\n")
    git(place, "add", ".")
    git(place, "commit", "--quiet", "-m", "first")
    write(place, changed="2", new="1", sub__new="1", sub__notes="1")
    (place / "module.pyc").write_text("1")
    (place / "deleted").unlink()
    (place / "link").symlink_to("tracked")
    return place


def test_a_tree_is_what_git_tracks_and_what_is_new_but_for_what_is_ignored(root: Path) -> None:
    assert list(read_tree(root).names) == [
        ".gitignore",
        ".tpukitignore",
        "changed",
        "link",
        "new",
        "sub/deep",
        "sub/new",
        "sub/notes",
        "tracked",
    ]


def test_a_file_that_cannot_be_looked_at_does_not_count_as_deleted(root: Path) -> None:
    shutil.rmtree(root / "sub")
    (root / "sub").symlink_to("sub")  # root too may not look into it
    with pytest.raises(OSError, match="symbolic links"):
        read_tree(root)


def test_a_folder_of_a_repository_is_a_tree_of_its_own(root: Path) -> None:
    assert list(read_tree(root / "sub").names) == ["deep", "new", "notes"]


def test_a_folder_without_a_repository_obeys_both_ignore_files(tmp_path: Path) -> None:
    place = tmp_path / "plain"
    write(place, a="1", b="1", c="1", sub__b="1")
    write(place, _dot_gitignore="/b\n", _dot_tpukitignore="c\n")
    assert list(read_tree(place).names) == [".gitignore", ".tpukitignore", "a", "sub/b"]
    assert not (place / ".git").exists()


def test_variables_of_another_repository_change_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert "tracked" in read_tree(root).names


def test_a_repositorys_own_programs_are_not_run(root: Path, tmp_path: Path) -> None:
    git(root, "config", "core.fsmonitor", f"touch {tmp_path / 'canary'}")
    read_tree(root)
    assert not (tmp_path / "canary").exists()


def test_files_of_submodules_are_sent(root: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "--quiet")
    write(inner, library="1")
    git(inner, "add", ".")
    git(inner, "commit", "--quiet", "-m", "first")
    git(root, "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(inner), "lib")
    assert "lib/library" in read_tree(root).names


@pytest.mark.parametrize("outer", [True, False], ids=["in a repository", "in a plain folder"])
def test_files_of_a_repository_that_was_cloned_into_the_tree_are_sent(
    tmp_path: Path, outer: bool
) -> None:
    for below in ("a", "a/b", "hidden"):
        write(tmp_path / "tree" / below, code="1", _dot_gitignore="*.pyc\n")
        (tmp_path / "tree" / below / "code.pyc").write_text("1")
        git(tmp_path / "tree" / below, "init", "--quiet")
    write(tmp_path / "tree", _dot_tpukitignore="hidden\n")
    git(tmp_path / "tree", "init", "--quiet") if outer else None
    wanted = [".tpukitignore", "a/.gitignore", "a/b/.gitignore", "a/b/code", "a/code"]
    assert list(read_tree(tmp_path / "tree").names) == wanted


@pytest.mark.parametrize("name", ["line\nend", "back\\slash", "a\rb", os.fsdecode(b"\xff")])
def test_a_name_may_hold_anything(tmp_path: Path, name: str) -> None:
    write(tmp_path, **{name: "1"})
    assert list(read_tree(tmp_path).names) == [name]


def test_the_state_of_a_pushed_tree_that_was_copied_here_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, train="1", sub__train="1")
    for folder in (".tpukit", "sub/.tpukit"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pushed").write_text("{}")
    assert list(read_tree(tmp_path).names) == ["sub/train", "train"]


def test_an_empty_tree_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing to push"):
        read_tree(tmp_path)
    (tmp_path / "file").write_text("1")
    with pytest.raises(BadInput, match="is not a folder"):
        source_folder(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://token:x@GitHub.com/ada/project.git", "github.com/ada/project"),
        ("git@github.com:ada/project", "github.com/ada/project"),
        ("ssh://git@github.com:22/ada/project.git/", "github.com/ada/project"),
        ("/srv/project.git", "{host}:/srv/project.git"),
        ("file:///srv/project.git", "{host}:/srv/project.git"),
    ],
)
def test_a_remote_has_one_name_for_all_protocols_and_users(root: Path, url: str, name: str) -> None:
    host = socket.gethostname().partition(".")[0]
    assert read_tree(root).origin == Origin(f"{host}:{root}", "", False)
    git(root, "remote", "add", "origin", url)
    name = name.format(host=host)
    assert read_tree(root).origin == Origin(f"{host}:{root}", name, False)
    below = root / "sub"
    assert read_tree(below).origin == Origin(f"{host}:{below}", f"{name}/sub", False)
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "second")
    assert read_tree(root).origin.committed


def test_only_what_is_no_source_and_no_secret_can_be_a_result(root: Path, tmp_path: Path) -> None:
    write(root, results__1="1", results___dot_gitkeep="", _dot_env="TOKEN")
    git(root, "add", "--force", "results/.gitkeep")
    tree = read_tree(root)
    for path, why in [("tracked", "git tracks it"), ("sub", "git tracks it"), (".env", "a secret")]:
        with pytest.raises(BadInput, match="is no result of a program") as refused:
            tree.without(path)
        assert why in refused.value.reason
    left = tree.without("./results/")
    assert set(tree.names) - set(left.names) == {"results/.gitkeep", "results/1"}
    assert left.keeps("results/2")
    assert not left.keeps("results2")
    assert tree.without("absent").names == tree.names
    (root / "out").symlink_to(tmp_path)
    for path in ("out", "out/1"):
        with pytest.raises(BadInput, match=r"leads out of .* through a link"):
            tree.without(path)


def odd_tree(root: Path) -> Tree:
    names = ["plain", "-dash", " blank ", "#x .", "#l link", os.fsdecode(b"latin-\xe9"), "sub/ü"]
    for name in names:
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_text(name.encode("utf-8", "replace").decode())
    (root / "plain").chmod(0o755)
    (root / "link").symlink_to("elsewhere -> there")
    return Tree(root, [*names, "link"])


@pytest.mark.parametrize("change", ["content", "mode", "link"])
def test_every_kind_of_change_shows_in_the_manifest(tmp_path: Path, change: str) -> None:
    before = odd_tree(tmp_path)
    assert before.digest
    if change == "content":
        (tmp_path / "-dash").write_text("other")
    elif change == "mode":
        (tmp_path / "-dash").chmod(0o755)
    else:
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to("other")
    assert Tree(tmp_path, before.names).digest != before.digest


SECRETS = [
    ".aws/credentials",
    ".config/gcloud/application_default_credentials.json",
    ".env",
    ".env.production",
    ".netrc",
    ".ssh/known_hosts",
    "deep/.env",
    "deep/id_ed25519",
]
NO_SECRETS = [".env.example", ".envrc", "aws/credentials", "env", "id_ed25519.pub", "ssh/config"]


def test_secrets_are_left_out_also_where_git_tracks_them_unless_they_are_asked_for(
    tmp_path: Path,
) -> None:
    write(tmp_path, **dict.fromkeys([*SECRETS, *NO_SECRETS], "1"))
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--force", ".")
    tree = read_tree(tmp_path)
    assert (list(tree.names), list(tree.secrets)) == (NO_SECRETS, SECRETS)
    everything = read_tree(tmp_path, with_secrets=True)
    assert set(everything.names) == {*SECRETS, *NO_SECRETS}


def test_a_folder_of_secrets_has_nothing_to_push(tmp_path: Path) -> None:
    write(tmp_path / ".aws" / "project", config="1")
    with pytest.raises(BadInput, match="nothing to push") as refused:
        read_tree(tmp_path / ".aws" / "project")
    note = "push, run and train send secrets with --with-secrets"
    assert refused.value.fix == Fix(note=note)


@pytest.mark.parametrize("given", ["~", "~/..", "/", "home", "link"])
def test_the_home_folder_and_what_has_it_in_it_are_never_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    (tmp_path / "home" / "project").mkdir(parents=True)
    (tmp_path / "link").symlink_to("home")
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="your home folder is in it"):
        source_folder(given)
    assert source_folder("~/project") == tmp_path / "home" / "project"
