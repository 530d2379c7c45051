"""What people and programs get wrong: the documented exit code, one error line, no traceback."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.local_cloud import Cloud, Reply, bare_environment, json_reply, scripted

from cli.conftest import Result, Run

ODD = os.fsdecode(b"\xff")  #: as Python shows what is not UTF-8
NAMES = ["", "A", "9a", "a_b", "a b", "x" * 64, "../../etc", "a;rm -rf /", "$(id)", "ü", "\x1b[2Ja"]
BY_NAME = [
    ("describe",),
    ("delete", "--yes"),
    ("start",),
    ("stop",),
    ("wait",),
    ("provision",),
    ("smoke",),
    ("firewall", "apply"),
    ("firewall", "remove"),
]
TYPES = ["", "v3", "v3-0", "v3-7", "v3-", "-8", "v99-8", "tpu7x-8", "v3-8;id", "\x1bv3-8", "v3-1e9"]
DURATIONS = ["", "0", "0s", "-5m", "5 m", "5x", "1e9", "never", "1h30m", "²s", "9999999s", "0.5s"]
TIMED = [
    ("create", "v3-8"),
    ("up", "v3-8"),
    ("delete", "demo", "--yes"),
    ("start", "demo"),
    ("stop", "demo"),
    ("wait", "demo"),
    ("run", "demo"),
]
ZONES = ["us-central1", "US-CENTRAL1-A", "us central1-a", "a", "../x", "us-central1-a/x", "\x1b[m"]
PROJECTS = ["12", "A-Project", "p" * 31, "my project", "a/b", "../x", "-abcdef", "\x1b]0;x\x07"]
LABELS = ["a", "=b", "A=b", "a=B", "a=b c", f"{'x' * 64}=1", f"a={'x' * 64}", "a=\x1b", "ä=1"]
RANGES = ["me", "1.2.3", "1.2.3.4/33", "::1/129", "1.2.3.4 5.6.7.8", "\x1b"]
CAPACITIES = ["--spot", "--preemptible", "--reserved"]
DISK = "projects/demo-project/zones/us-central1-a/disks/d"
DISKS = ["", "foo", "source=foo", f"{DISK},mode=x", f"{DISK},mode=read-write", f"{DISK}/e", "\x1b"]
WORKERS = ["", "-1", "1", "0-9", "a", "0,", "²"]

USAGE: list[tuple[str, ...]] = [
    *((*verb[:1], *verb[1:], "--", name) for verb, name in itertools.product(BY_NAME, NAMES)),
    *(("ssh", name) for name in NAMES),
    *((verb, "--", kind) for verb, kind in itertools.product(("create", "up"), TYPES)),
    *(("create", "v3-8", "--", name) for name in NAMES if name),
    *((*verb, f"--timeout={text}") for verb, text in itertools.product(TIMED, DURATIONS)),
    *(("list", f"--zone={zone}") for zone in ZONES),
    *(("describe", "demo", f"--zone={zone}") for zone in ZONES),
    *(("list", f"--project={project}") for project in PROJECTS),
    *(("create", "v3-8", f"--labels={labels}") for labels in LABELS),
    *(("create", "v3-8", f"--metadata={metadata}") for metadata in ("a", "=b", " =b")),
    *(("firewall", "apply", "demo", f"--source-range={text}") for text in RANGES),
    ("bogus",),
    ("--bogus",),
    ("list", "--bogus"),
    ("list", "extra"),
    ("stop",),
    ("describe", "demo", "extra"),
    ("create",),
    ("create", "v3-8", "a", "b"),
    *(("create", "v3-8", *two) for two in itertools.combinations(CAPACITIES, 2)),
    ("create", "tpu7x-8", "--allow-unlisted-type"),
    ("create", "tpu7x-8;id", "--allow-unlisted-type", "--runtime-version=x"),
    ("up", "tpu7x-8", "--allow-unlisted-type", "--runtime-version=x"),
    *(("create", "v3-32", f"--data-disk={disk}") for disk in DISKS),
    ("create", "v3-8", "--zone", "-"),
    *(("create", "v3-8", "--zones", zones) for zones in ("mars", "us-central1-a,-")),
    ("delete",),
    ("delete", "demo"),
    ("delete", "demo", "--no-input"),
    ("firewall",),
    ("firewall", "bogus"),
    ("emulator",),
    ("emulator", "bogus"),
    ("emulator", "start", "--port", "-1"),
    ("emulator", "start", "--port", "65536"),
    ("emulator", "start", "--port", "x"),
    ("emulator", "start", "--create-seconds", "nan"),
    ("emulator", "start", "--create-seconds", "inf"),
    ("emulator", "start", "--create-seconds", "-1"),
    ("wait", "demo", "--for", "happiness"),
    ("wait", "demo", "--for", ""),
    ("run", "demo"),
    ("run", "demo", "--"),
    ("run",),
    ("ssh", "demo", "--worker", "x"),
    ("ssh", "demo", "--worker"),
    ("ssh", "demo", "-n"),
    ("ssh", "demo", "-n", "-t", "--", "cat"),
    ("ssh", "demo", "--tmux", "--", "htop"),
    ("provision", "demo", "cobol"),
    ("provision", "demo", "apt"),
    ("provision", "demo", "apt:Htop"),
    ("provision", "plan", "demo", "apt:--reinstall"),
    ("smoke", "demo", "--with", "cobol"),
    ("up", "v3-8", "--with", ""),
    ("up", "v3-8", "--requirements", "/nowhere/requirements.txt"),
    ("up", "v3-8", "--requirements", "/"),
    ("provision", "demo", "apt:htop", "--index", "https://index.example/simple"),
    ("provision", "plan", "demo", "limits", "--editable", "project"),
    ("provision", "demo", "limits", "--upgrade"),
    ("up", "v3-8", "--requirements", "a\x1bb"),
    ("create", "v6e-4", "--runtime-version", "tpu-ubuntu2204-base"),
]


@pytest.mark.parametrize("words", [("--", "printf", ODD), ("--env", f"A={ODD}", "--", "true")])
def test_what_is_not_utf_8_is_refused_before_anything_is_asked(
    run: Run, standing: Cloud, words: tuple[str, ...]
) -> None:
    before = len(standing.calls("nodes.get"))
    done = run("run", "demo", *words, environment=standing.environment())
    assert "UTF-8" in done.says(2).err
    assert len(standing.calls("nodes.get")) == before


@pytest.mark.parametrize("words", USAGE, ids=lambda words: " ".join(words))
def test_bad_usage_exits_with_2(run: Run, standing: Cloud, words: tuple[str, ...]) -> None:
    run(*words, environment=standing.environment()).says(2)


@pytest.mark.parametrize("words", [(), ("--tmux",), ("-t", "--", "htop")])
def test_a_shell_has_no_json(run: Run, standing: Cloud, words: tuple[str, ...]) -> None:
    result = run("ssh", "demo", "--json", *words, environment=standing.environment())
    assert result.status == 2
    assert result.document["error"]["fix"] == "tpukit ssh demo --json -- hostname"


@pytest.mark.parametrize("words", USAGE[::9], ids=lambda words: " ".join(words))
def test_with_json_the_same_error_is_the_one_document(
    run: Run, standing: Cloud, words: tuple[str, ...]
) -> None:
    result = run("--json", *words, environment=standing.environment())
    assert result.status == 2
    assert result.document["v"] == 1
    assert result.document["error"]["code"] == 2
    assert f"error: {result.document['error']['message']}" in result.err


ENVIRONMENT = [
    ({"TPUKIT_ZONE": "nowhere"}, 2),
    ({"TPUKIT_PROJECT": "X"}, 2),
    ({"TPUKIT_USER": "Ada Lovelace"}, 2),
    ({"TPUKIT_NETWORK": "a b"}, 2),
    ({"TPUKIT_SOURCE_RANGES": "me"}, 2),
    ({"TPUKIT_SOURCE_RANGES": "203.0.113.7/24"}, 2),
    ({"TPUKIT_HOME": "relative"}, 2),
    ({"TPUKIT_TPU_ENDPOINT": "ftp://x"}, 2),
    ({"TPUKIT_TPU_ENDPOINT": "https://user@evil/"}, 2),
    ({"TPUKIT_TPU_ENDPOINT": "http://example.com/"}, 9),
    ({"TPUKIT_TPU_ENDPOINT": "https://tpu.example.com/"}, 2),
    ({"TPUKIT_ACCESS_TOKEN_FILE": "~/token"}, 2),
    ({"TPUKIT_ACCESS_TOKEN_FILE": "/nowhere"}, 2),
    ({"TPUKIT_ACCESS_TOKEN_FILE": "/"}, 2),
    ({"TPUKIT_CREDENTIALS_FILE": "~x"}, 2),
    ({"TPUKIT_QUOTA_PROJECT": "?"}, 2),
    ({"CLOUDSDK_COMPUTE_ZONE": "x\x1b[31m"}, 2),
    ({"CLOUDSDK_CORE_PROJECT": "123"}, 2),
    ({"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "tpu.googleapis.com"}, 2),
    ({"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": "http://10.0.0.1/"}, 9),
    ({"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": ""}, 2),
    ({"CLOUDSDK_ACTIVE_CONFIG_NAME": "../x"}, 2),
    ({"CLOUDSDK_ACTIVE_CONFIG_NAME": "missing"}, 2),
    ({"CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": "/dev/null"}, 2),
    ({"CLOUDSDK_CORE_PROJECT": ""}, 2),
    ({"HOME": "", "TPUKIT_HOME": ""}, 2),
    ({"HOME": "/nowhere", "TPUKIT_HOME": ""}, 2),
    ({"HOME": "relative", "TPUKIT_HOME": ""}, 2),
]


@pytest.mark.parametrize(("change", "code"), ENVIRONMENT, ids=lambda value: str(value))
def test_an_environment_that_cannot_be_is_refused(
    run: Run, standing: Cloud, change: dict[str, str], code: int
) -> None:
    result = run("list", environment={**standing.environment(), **change}).says(code)
    assert "fix: " in result.err


def test_without_credentials_the_exit_code_is_4(run: Run, standing: Cloud) -> None:
    environment = standing.environment()
    del environment["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]
    assert "without an account: --local" in run("list", environment=environment).says(4).err


def test_a_credentials_file_of_garbage_is_exit_code_4(
    run: Run, standing: Cloud, tmp_path: Path
) -> None:
    (tmp_path / "adc.json").write_text("[]")
    environment = standing.environment()
    del environment["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]
    environment["GOOGLE_APPLICATION_CREDENTIALS"] = str(tmp_path / "adc.json")
    run("list", environment=environment).says(4)


PROJECT_FILES = [
    ("zone = ", 2),
    ("zone = 7", 2),
    ('zon = "us-central1-a"', 2),
    ('zone = "nowhere"', 2),
    ('[zone]\na = "b"', 2),
    ('tpu_endpoint = "https://evil.example.com/"', 9),
    ('access_token_file = "x"', 9),
    ("source_ranges = [7]", 2),
    ('user = "\x1b"', 2),
    ("\ufeffproject = ", 2),
]


@pytest.mark.parametrize(("text", "code"), PROJECT_FILES)
def test_a_project_file_that_cannot_be_is_refused_and_named(
    run: Run, standing: Cloud, tmp_path: Path, text: str, code: int
) -> None:
    (tmp_path / "tpukit.toml").write_text(text)
    environment = standing.environment()
    del environment["CLOUDSDK_COMPUTE_ZONE"]
    assert "tpukit.toml" in run("list", environment=environment).says(code).err


def test_files_that_are_no_text_are_refused(run: Run, standing: Cloud, tmp_path: Path) -> None:
    (tmp_path / "tpukit.toml").write_bytes(b"zone = \xff\xfe")
    run("list", environment=standing.environment()).says(2)
    (tmp_path / "tpukit.toml").unlink()
    (tmp_path / "tpukit.toml").mkdir()
    run("list", environment=standing.environment()).says(2)


@pytest.mark.parametrize("text", ["[core\n", "project", "\x00", "[core]\nproject = 7\n"])
def test_a_gcloud_configuration_that_cannot_be_is_refused(
    run: Run, standing: Cloud, tmp_path: Path, text: str
) -> None:
    directory = tmp_path / "gcloud" / "configurations"
    directory.mkdir(parents=True)
    (directory / "config_default").write_text(text)
    environment = {**standing.environment(), "CLOUDSDK_CONFIG": str(tmp_path / "gcloud")}
    del environment["CLOUDSDK_CORE_PROJECT"]
    run("list", environment=environment).says(2)


ANSWERS = {
    "a page": Reply(200, b"<html>hello</html>"),
    "half of an answer": Reply(200, b'{"nodes": [{'),
    "bytes": Reply(200, b"\xff\xfe"),
    "nodes of a wrong type": json_reply(200, {"nodes": 7, "items": 7}),
    "texts for nodes": json_reply(200, {"nodes": ["x"], "items": ["x"]}),
    "a page with 404": Reply(404, b"<html>\x1b[2J</html>"),
    "a text with 400": json_reply(400, {"error": "invalid"}),
    "a list with 403": json_reply(403, []),
    "a hostile message": json_reply(
        400, {"error": {"status": "INVALID_ARGUMENT", "message": "a\x1b[2J\nerror: b"}}
    ),
}
EXPECTED = {"a list with 403": 4, "a hostile message": 2}


@pytest.mark.parametrize("words", [("list",), ("firewall", "list")])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_not_the_api_s_ends_at_once(
    run: Run, standing: Cloud, name: str, words: tuple[str, ...]
) -> None:
    with scripted(ANSWERS[name]) as server:
        environment = {
            **standing.environment(),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{server.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{server.url}/",
        }
        run(*words, environment=environment).says(EXPECTED.get(name, 1))
        assert len(server.seen) == 1


def process(*words: str, environment: dict[str, str], **given: object) -> Result:
    done = subprocess.run(
        [sys.executable, "-m", "tpukit", *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=120,
        **given,  # type: ignore[call-overload]
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_a_process_says_the_same_as_the_function(standing: Cloud) -> None:
    process("describe", "A_B", environment=standing.environment()).says(2)


@pytest.mark.parametrize("closed", ["1", "2", "0", "1,2"])
def test_a_stream_that_the_caller_closed_is_no_defect(standing: Cloud, closed: str) -> None:
    shell = " ".join(f"{number}>&-" for number in closed.split(","))
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-m", "tpukit", "list"],
        env=standing.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_reader_that_left_ends_the_command_as_it_ends_a_filter(standing: Cloud) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    started = subprocess.Popen(
        [sys.executable, "-m", "tpukit", "list"],
        env=standing.environment(),
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    _, err = started.communicate(timeout=120)
    assert started.returncode == 141
    assert err == ""


@pytest.mark.parametrize(
    "language", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_a_locale_without_the_letters_is_no_defect(
    standing: Cloud, language: dict[str, str]
) -> None:
    environment = {**standing.environment(), **language, "PYTHONCOERCECLOCALE": "0"}
    process("describe", "größe", environment=environment).says(2)
    assert process("--help", environment=environment).status == 0


def test_a_home_that_cannot_be_written_lists_all_the_same(standing: Cloud, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    environment = {**standing.environment(), "TPUKIT_HOME": str(blocker / "below")}
    assert process("list", environment=environment).out.startswith("demo\t")


def test_nothing_given_shows_the_help(run: Run, tmp_path: Path) -> None:
    result = run(environment=bare_environment(tmp_path))
    assert result.status == 0
    assert result.out.startswith("Usage: tpukit")


def test_flags_of_ours_behind_the_dashes_are_warned_of_where_they_were_missed(
    run: Run, standing: Cloud
) -> None:
    bare = run("run", "demo", "--", "hostname", "--local", "--zone=x", "-v", "--fqdn")
    assert bare.status in (2, 4)
    told = [line for line in bare.err.splitlines() if line.startswith("warning:")]
    assert [line.split()[1] for line in told] == ["--local", "--zone=x"]
    assert "belongs to the remote command" in told[0]
    other = ("run", "ghost", "--", "hostname", "--project", "x")
    assert "--project after --" in run(*other, environment=standing.environment()).says(3).err
    before = ("run", "ghost", "--project", "demo-project", "--", "hostname")
    assert "after --" not in run(*before, environment=standing.environment()).says(3).err
