"""What system steps are made of: each change is taken back to the byte, whatever came between."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tpukit.provision.system_facts import parse_system_facts, refusal
from tpukit.remote.programs import program_text

COMMON = program_text("provision/system_steps/common.sh")
#: apt and dpkg of a worker that has libc and tool, of which user-made needs the latter.
STAND_INS = """
apt() {
    case "$*" in
        *"-s install new upgrades"*) echo "Inst new (1)"; echo "Inst libc [1] (2 x)" ;;
        *"-s install new"*) echo "Inst new (1)" ;;
        *"-s install upgrades"*) echo "Inst libc [1] (2 x)"; echo "Inst upgrades (1)" ;;
        *"-s install removes"*) echo "Remv tool [1]"; echo "Inst removes (1)" ;;
        *"-s purge"*) echo "Purg tool [1]"; echo "Purg user-made [1]" ;;
        *) echo "apt $*" ;;
    esac
}
"""


def sh(home: Path, line: str, word: str = "shell") -> subprocess.CompletedProcess[str]:
    text = f"{COMMON}\nbegin {word} {word} '' 0\n{line}\n"
    environment = {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin"}
    return subprocess.run(["sh", "-c", text], env=environment, capture_output=True, text=True)


@pytest.mark.process
def test_a_block_comes_out_again_to_the_byte(tmp_path: Path) -> None:
    file = tmp_path / "file"
    other = "a\n# >>> tpukit other >>>\nx\n# <<< tpukit other <<<\n"
    for before in (None, "", "a", "a\n", "a\n\n", other):
        if before is not None:
            file.write_text(before)
            file.chmod(0o640)
        for text in ("one", "two"):
            assert sh(tmp_path, f"echo {text} | put_block {file}").returncode == 0
        inside = "# >>> tpukit shell >>>\ntwo\n# <<< tpukit shell <<<\n"
        assert file.read_text() == (before or "") + ("\n" if before == "a" else "") + inside
        assert sh(tmp_path, f"echo two | is_block {file}").returncode == 0
        assert sh(tmp_path, f"echo one | is_block {file}").returncode == 1
        assert sh(tmp_path, "undo; sweep").returncode == 0
        assert (file.read_text() if file.exists() else None) == before
        if before is not None:
            assert file.stat().st_mode & 0o777 == 0o640
            file.unlink()
        assert not list(tmp_path.iterdir())


@pytest.mark.process
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
    for before, edited, after in cases:
        file.write_text(before)
        assert sh(tmp_path, f"echo x | put_block {file}").returncode == 0
        file.write_text(edited)
        done = [sh(tmp_path, f"echo x | put_block {file}")] if after is None else []
        for refused in [*done, sh(tmp_path, "undo; sweep")]:
            assert refused.returncode == (3 if after is None else 0), edited
            if after is None:
                assert "'# <<< tpukit shell <<<' is gone from" in refused.stdout
        assert file.read_bytes().decode() == (edited if after is None else after), edited
        assert (tmp_path / ".tpukit").exists() is (after is None), edited
        file.write_text(put)
        sh(tmp_path, "undo; sweep")


def test_what_was_written_around_a_block_stays_and_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("mine\n")
    link = tmp_path / "link"
    link.symlink_to("real")
    sh(tmp_path, f"echo x | put_block {link}")
    with link.open("a") as file:
        file.write("later\n")
    sh(tmp_path, "undo")
    assert link.is_symlink()
    assert link.read_text() == "mine\nlater\n"


def test_a_folder_goes_unless_somebody_has_put_something_there(tmp_path: Path) -> None:
    line = f"put_folder {tmp_path}/a/b; put_folder {tmp_path}/c"
    sh(tmp_path, line)
    (tmp_path / "a/mine").touch()
    done = sh(tmp_path, "undo; sweep")
    assert done.returncode == 0
    assert {path.name for path in tmp_path.rglob("*")} == {"a", "mine"}
    assert "kept, it is not empty" in done.stdout


def test_an_undo_that_fails_goes_on_where_it_was(tmp_path: Path) -> None:
    sh(tmp_path, 'note echo first; note test -e "$HOME/cause"; note echo last')
    ledger = tmp_path / ".tpukit/ledger/shell"
    done = sh(tmp_path, "undo")
    assert (done.returncode != 0, "last" in done.stdout, "first" in done.stdout) == (1, 1, 0)
    assert "'echo' 'last'" not in ledger.read_text()
    (tmp_path / "cause").touch()
    done = sh(tmp_path, "undo; sweep")
    assert (done.returncode, "last" in done.stdout, "first" in done.stdout) == (0, False, True)
    assert not ledger.exists()


def test_a_foreign_file_where_ours_would_be_is_left(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("somebody's\n")
    done = sh(tmp_path, f"echo tpukit | put_file {file} 644")
    assert done.returncode == 3
    error = refusal(done.stdout.splitlines(), "")
    assert error is not None
    assert error.what == f"{file} is there already, and is not tpukit's"
    assert file.read_text() == "somebody's\n"


def test_packages_come_and_go_alone(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("dpkg-query", "apt-get"):
        (tmp_path / "bin" / name).symlink_to("/bin/true")
    for names, name, change in (
        ("upgrades", "upgrades", "upgrade libc from 1 to 2"),
        ("new upgrades", "upgrades", "upgrade libc from 1 to 2"),
        ("removes", "removes", "remove tool"),
    ):
        done = sh(tmp_path, f"{STAND_INS}\ninstall_packages {names}")
        assert f"to install {name} apt would {change}\t" in done.stdout
        assert f"sudo apt-get install --yes {name};" in done.stdout
        assert done.returncode == 3
        assert "apt install" not in done.stdout
    done = sh(tmp_path, f"{STAND_INS}\ninstall_packages new")
    assert done.returncode == 0
    fetched, installed = (line for line in done.stdout.splitlines() if "apt install" in line)
    assert ("--download-only" in fetched, "--no-upgrade" in installed) == (True, True)
    assert "'take_packages' 'new'" in (tmp_path / ".tpukit/ledger/shell").read_text()
    done = sh(tmp_path, f"{STAND_INS}\ntake_packages tool")
    assert "user-made, which was installed later, needs one of tool" in done.stdout
    assert "apt purge" not in done.stdout


def test_facts_that_are_not_told_to_the_end_are_none() -> None:
    lines = ["TPUKIT-STEP\tdisk\tneeded\tformat it\t", "TPUKIT-STEP\tdisk\tchecked\t\t"]
    end = "TPUKIT-STEP\t\tend\t\t"
    assert parse_system_facts("\n".join(lines)) is None
    facts = parse_system_facts("\n".join(["greetings", *lines, end, "TPUKIT-STEP\tlate"]))
    assert facts is not None
    assert (facts.steps["disk"].needed, facts.steps["disk"].told) == (["format it"], True)
    cut = parse_system_facts("\n".join([lines[0], end]))
    assert cut is not None
    assert not cut.steps["disk"].told


def test_a_step_whose_program_dies_is_not_taken_for_one_that_holds(tmp_path: Path) -> None:
    from support.local_worker import LocalWorker, seconds

    from tpukit.errors import ProvisionFailed
    from tpukit.provision.system_apply import read_plan
    from tpukit.provision.system_steps import SystemStep, WantedStep

    class Dying(SystemStep):
        @property
        def program(self) -> str:
            return "fact() { exit 0; }"

    wanted = WantedStep("dying", Dying("dying", ""), "")
    with pytest.raises(ProvisionFailed, match="facts cannot be read") as caught:
        read_plan([LocalWorker(tmp_path).remote()], [wanted], seconds(60))
    assert caught.value.reason == "dying"
