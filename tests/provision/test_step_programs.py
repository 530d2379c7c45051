"""What system steps are made of: each change is taken back to the byte, whatever came between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tpukit.provision.system_facts import refusal

#: A step's program around some of its lines, and an undo of what they have noted.
PROGRAM = """
import os, subprocess, sys
from tpukit.agent.main import Home
from tpukit.agent.system import step_verbs
from tpukit.agent.system.changed_files import *
from tpukit.agent.system.debian_packages import *
from tpukit.agent.system.ledger import LedgerFile

home = Home(os.environ["HOME"] + "/.tpukit", "/tmp", "")
request = {"word": sys.argv[1], "entry": sys.argv[1], "value": "", "version": "0"}
ledger = LedgerFile(home, request)

def block(path):
    return Block(ledger.entry, path)

def undo():
    step_verbs.undo_step(home, request)
    step_verbs.sweep_steps(home, {})
    os.path.isdir(home.folder) and not os.listdir(home.folder) and os.rmdir(home.folder)

with step_verbs.refusals_said():
"""
#: apt of a worker that has libc and tool, of which user-made needs the latter.
APT = r"""#!/bin/sh
case "$*" in
    *"-s install new upgrades"*) printf 'Inst new (1)\nInst libc [1] (2 x)\n' ;;
    *"-s install new"*) echo "Inst new (1)" ;;
    *"-s install upgrades"*) printf 'Inst libc [1] (2 x)\nInst upgrades (1)\n' ;;
    *"-s install removes"*) printf 'Remv tool [1]\nInst removes (1)\n' ;;
    *"-s purge tool"*) printf 'Purg tool [1]\nPurg user-made [1]\n' ;;
    *"-s install half"*) echo "Inst half (1)" ;;
    *"-s purge half"*) echo "Purg half [1]" ;;
    *" half") echo "E: dpkg was interrupted, you must manually run ..."; exit 100 ;;
    *) echo "apt $*" ;;
esac
"""


def step(home: Path, line: str, word: str = "shell") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", f"{PROGRAM}    {line}\n", word]
    environment = {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin"}
    return subprocess.run(words, env=environment, capture_output=True, text=True)


def repository(folder: Path, *names: str) -> Path:
    """Return a folder with a git repository that has these files."""
    git = ("git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.com")
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(f"# from {name}\n")
    for line in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run([*git, *line], check=True)
    return folder


@pytest.mark.slow
def test_a_block_comes_out_again_to_the_byte(tmp_path: Path) -> None:
    file = tmp_path / "file"
    other = "a\n# >>> tpukit other >>>\nx\n# <<< tpukit other <<<\n"
    for before in (None, "", "a", "a\n", "a\n\n", other):
        if before is not None:
            file.write_text(before)
            file.chmod(0o640)
        for text in ("one", "two"):
            assert step(tmp_path, f"block({str(file)!r}).put(ledger, {text!r})").returncode == 0
        inside = "# >>> tpukit shell >>>\ntwo\n# <<< tpukit shell <<<\n"
        assert file.read_text() == (before or "") + ("\n" if before == "a" else "") + inside
        held = f"print([block({str(file)!r}).holds(line) for line in ('one', 'two')])"
        assert step(tmp_path, held).stdout == "[False, True]\n"
        assert step(tmp_path, "undo()").returncode == 0
        assert (file.read_text() if file.exists() else None) == before
        if before is not None:
            assert file.stat().st_mode & 0o777 == 0o640
            file.unlink()
        assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_somebody_has_edited_since_is_theirs(tmp_path: Path) -> None:
    """What the file was, what became of it, and what undo leaves; None where it is refused."""
    begin, end = "# >>> tpukit shell >>>\n", "# <<< tpukit shell <<<\n"
    put = f"a\n{begin}x\n{end}"
    cases: list[tuple[str, str, str | None]] = [
        ("a\n", put.replace("x", "y"), "a\n"),
        ("a\n", put.replace("\n", "\r\n") + "b\r\n", "a\r\nb\r\n"),
        ("a\n", f"a\n  {begin}  x\n  {end}b", "a\nb"),
        ("a\n", put + put, "a\na\n"),
        ("a", put + "b\n", "a\nb\n"),
        ("a\n", f"a\nx\n{end}b\n", f"a\nx\n{end}b\n"),
        ("a\n", f"a\n{begin}x\nb\n", None),
        ("a\n", f"a\n{begin}x\n{put}b\n", None),
    ]
    file = tmp_path / "file"
    put_x = f"block({str(file)!r}).put(ledger, 'x')"
    for before, edited, after in cases:
        file.write_text(before)
        assert step(tmp_path, put_x).returncode == 0
        file.write_text(edited)
        done = [step(tmp_path, put_x)] if after is None else []
        for refused in [*done, step(tmp_path, "undo()")]:
            assert refused.returncode == (3 if after is None else 0), edited
            if after is None:
                assert "'# <<< tpukit shell <<<' is gone from" in refused.stdout
        assert file.read_bytes().decode() == (edited if after is None else after), edited
        assert (tmp_path / ".tpukit").exists() is (after is None), edited
        file.write_text(put)
        step(tmp_path, "undo()")


def test_what_was_written_around_a_block_stays_and_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("mine\n")
    link = tmp_path / "link"
    link.symlink_to("real")
    step(tmp_path, f"block({str(link)!r}).put(ledger, 'x')")
    with link.open("a") as file:
        file.write("later\n")
    step(tmp_path, "undo()")
    assert link.is_symlink()
    assert link.read_text() == "mine\nlater\n"


def test_a_folder_goes_unless_somebody_has_put_something_there(tmp_path: Path) -> None:
    a, c = f"{tmp_path}/a/b", f"{tmp_path}/c"
    step(tmp_path, f"put_folder(ledger, {a!r}); put_folder(ledger, {c!r})")
    (tmp_path / "a/mine").touch()
    done = step(tmp_path, "undo()")
    assert done.returncode == 0
    assert {path.name for path in tmp_path.rglob("*")} == {"a", "mine"}
    assert "kept, it is not empty" in done.stdout


def test_an_undo_that_fails_goes_on_where_it_was(tmp_path: Path) -> None:
    names = ("first", "cause", "last")
    for name in names:
        (tmp_path / name).mkdir()
        step(tmp_path, f"ledger.note('take_file', {str(tmp_path / name)!r})")
    ledger = tmp_path / ".tpukit/ledger/shell"
    (tmp_path / "last").rmdir()
    assert step(tmp_path, "undo()").returncode != 0  # a folder is no file
    assert [name in ledger.read_text() for name in names] == [True, True, False]
    for name in names[:2]:
        (tmp_path / name).rmdir()
    assert step(tmp_path, "undo()").returncode == 0
    assert not ledger.exists()


def test_a_full_disk_cuts_no_undo_short_and_stops_none(tmp_path: Path) -> None:
    """Half of a path is the path of another folder."""
    mine, other = tmp_path / "mine", tmp_path / "mine-of-tpukit"
    mine.mkdir()
    step(tmp_path, f"put_folder(ledger, {str(other)!r})")
    ledger = tmp_path / ".tpukit/ledger/shell"
    before = ledger.read_text()

    def limited(size: int, line: str) -> subprocess.CompletedProcess[str]:
        limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
        return step(tmp_path, f"import resource; {limit}; {line}")

    size = len(f"{before}undo\ttake_tree {mine}")
    assert "File too large" in limited(size, f"ledger.note('take_tree', {str(other)!r})").stderr
    assert (ledger.read_text(), len(list(ledger.parent.iterdir()))) == (before, 1)
    assert limited(0, "undo()").returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_older_ledger_is_undone_and_a_newer_one_is_refused(tmp_path: Path) -> None:
    """An older tpukit put every word in quotes."""
    ledger, file = tmp_path / ".tpukit/ledger/shell", tmp_path / "an old 'file'"
    ledger.parent.mkdir(parents=True)
    file.touch()
    first = "word\tshell\nvalue\t\nnumber\t3\nby\ttpukit 0\nat\t2026\n"
    quoted = f"{tmp_path}/an old '\\''file'\\''"
    ledger.write_text(f"{first}undo\t'take_file' '{quoted}' \n")
    assert step(tmp_path, "undo()").returncode == 0
    assert not file.exists()
    ledger.parent.mkdir(parents=True)
    ledger.write_text(f"{first}undo\ttake_moon\n")
    done = step(tmp_path, "undo()")
    assert (done.returncode, "cannot undo take_moon" in done.stdout) == (3, True)
    assert "take_moon" in ledger.read_text()
    ledger.write_text("")  # the disk was full
    said = "print(step_verbs.ledgers(ledger.folder)[0]['number']); undo()"
    assert (step(tmp_path, said).stdout, ledger.exists()) == ("0\n\ntpukit-agent {}\n", False)


@pytest.mark.process
def test_neither_a_new_apply_nor_undo_loses_settings_that_were_edited(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    value = f"request['value'] = 'file://{repository(tmp_path / 'mine', '.vimrc')}'"
    take = "from tpukit.agent.system.dotfiles_step import *; DotfilesStep(home, request).take()"
    vimrc, clone, kept = home / ".vimrc", home / ".dotfiles/.vimrc", "ledger/kept-shell/.vimrc"
    vimrc.write_text("before")
    assert step(home, f"{value}; {take}").returncode == 0
    vimrc.unlink()
    vimrc.write_text("an editor's")  # sed -i replaces a link
    assert "is another file by now" in step(home, f"{value}; {take}").stdout
    assert (vimrc.read_text(), (home / ".tpukit" / kept).read_text()) == ("an editor's", "before")
    vimrc.unlink()
    clone.write_text("edited")
    assert "has changes of yours" in step(home, "undo()").stdout
    assert (vimrc.read_text(), clone.read_text()) == ("before", "edited")
    clone.write_text("# from .vimrc\n")
    assert step(home, "undo()").returncode == 0
    assert [path.name for path in home.iterdir()] == [".vimrc"]


@pytest.mark.process
def test_a_repository_of_settings_replaces_no_keys_that_may_log_in(tmp_path: Path) -> None:
    keys = tmp_path / "home/.ssh/authorized_keys"
    keys.parent.mkdir(parents=True)
    keys.write_text("ours")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/.ssh").mkdir()
    (tmp_path / "mine/.ssh/config").write_text("Host *")
    value = f"request['value'] = 'file://{repository(tmp_path / 'mine', '.vimrc')}'"
    take = "from tpukit.agent.system.dotfiles_step import *; DotfilesStep(home, request).take()"
    assert step(tmp_path / "home", f"{value}; {take}").returncode == 0
    assert (tmp_path / "home/.vimrc").is_symlink()
    assert (keys.parent.is_symlink(), keys.read_text()) == (False, "ours")


def test_undo_needs_no_nfs_server_that_was_removed(tmp_path: Path) -> None:
    gone = "import shutil; shutil.which = lambda *words, **more: None"
    done = step(
        tmp_path, f"from tpukit.agent.system.nfs_server_step import *; {gone}; export_again()"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("disk", ""), ("nfs", "other:"), ("gcsfuse", "bucket:")]
)
def test_nothing_is_mounted_over_files(tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "mine").touch()
    fields = f"request.update(name={name!r}, value={value + str(tmp_path)!r})"
    done = step(tmp_path, f"{fields}; print(step_verbs._step(home, request).fact(False))")
    assert "has files of this worker's in it" in done.stdout


def test_a_foreign_file_where_ours_would_be_is_left(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("somebody's\n")
    done = step(tmp_path, f"put_file(ledger, {str(file)!r}, 'tpukit')")
    assert done.returncode == 3
    error = refusal(done.stdout.splitlines(), "")
    assert error is not None
    assert error.what == f"{file} is there already, and is not tpukit's"
    assert file.read_text() == "somebody's\n"


def test_packages_come_and_go_alone(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dpkg-query").symlink_to("/bin/true")
    for name, text in (("apt-get", APT), ("sudo", '#!/bin/sh\nshift 2\nexec "$@"\n')):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    for names, name, change in (
        ("'upgrades'", "upgrades", "upgrade libc from 1 to 2"),
        ("'new', 'upgrades'", "upgrades", "upgrade libc from 1 to 2"),
        ("'removes'", "removes", "remove tool"),
    ):
        done = step(tmp_path, f"install_packages(ledger, {names})")
        assert f'to install {name} apt would {change}"' in done.stdout
        assert f"sudo apt-get install --yes {name};" in done.stdout
        assert done.returncode == 3
        assert "--no-upgrade" not in done.stdout
    done = step(tmp_path, "install_packages(ledger, 'new')")
    assert done.returncode == 0
    fetched, installed = (line for line in done.stdout.splitlines() if "--no-upgrade" in line)
    assert ("--download-only" in fetched, "--download-only" in installed) == (True, False)
    assert "take_packages new" in (tmp_path / ".tpukit/ledger/shell").read_text()
    for line in ("install_packages(ledger, 'half')", "take_packages('half')"):
        done = step(tmp_path, line)
        assert done.returncode == 3
        assert "sudo dpkg --configure -a" in done.stdout
    done = step(tmp_path, "take_packages('tool')")
    assert "user-made, which was installed later, needs one of tool" in done.stdout
    assert " purge tool" not in done.stdout


def test_a_step_of_which_a_worker_says_nothing_is_not_taken_for_one_that_holds(
    tmp_path: Path,
) -> None:
    from support.agent_program import put_agent
    from support.local_worker import LocalWorker, seconds

    from tpukit.errors import ProvisionFailed
    from tpukit.provision.system_apply import read_plan
    from tpukit.provision.system_steps import parse

    program = put_agent(tmp_path)
    system = {"steps": {}, "ledgers": {}, "ended_jobs": [], "open_jobs": []}
    answer = json.dumps({"system": system, "environments": None})
    program.write_text(f"print({f'tpukit-agent {answer}'!r})")
    with pytest.raises(ProvisionFailed, match="facts cannot be read"):
        read_plan([LocalWorker(tmp_path).remote()], [parse("limits")], seconds(60))
