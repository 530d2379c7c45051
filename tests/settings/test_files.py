"""Files that cannot be read as settings are named with line and key, never with a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tpukit.errors import BadInput, SecurityRefusal
from tpukit.settings.resolution import NOT_SET, Setting, Settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def zone(home: Path, directory: Path | None = None, **environ: str) -> Setting:
    settings = Settings.load({}, {"HOME": str(home), **environ}, directory or home)
    return settings.values["zone"]


def refusal(home: Path, **environ: str) -> BadInput:
    with pytest.raises(BadInput) as refused:
        zone(home, **environ)
    assert refused.value.fix
    assert all(line.isprintable() for line in refused.value.lines())
    return refused.value


USER_FILE = ".config/tpukit/config.toml"
GCLOUD = ".config/gcloud"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('project = "my-project"\nzoen = "x"\n', "line 2", "zoen"),
        ("zone = 7\n", "line 1", "zone is not a string"),
        ('\n\n  "zone" = ["us-central1-a"]\n', "line 3", "zone is not a string"),
        ("[zone]\nname = 1\n", "line 1", "zone is not a string"),
        ("source_ranges = [1]\n", "line 1", "source_ranges is not a list of strings"),
        ('zone.name = "x"\n', "line 1", "zone is not a string"),
        ("colour = true\n", "line 1", "colour"),
        ("user = true\n", "line 1", "user is not a string"),
    ],
)
def test_what_does_not_belong_into_a_file_is_named_with_its_line(
    home: Path, text: str, line: str, said: str
) -> None:
    path = write(home / USER_FILE, text)
    refused = refusal(home)
    assert refused.what.startswith(f"{path}, {line}: ")
    assert said in refused.what


def test_a_misspelt_key_gets_the_nearest_name(home: Path) -> None:
    write(home / USER_FILE, 'zoen = "us-central1-a"')
    assert str(refusal(home).fix) == "did you mean zone?"


def test_an_unknown_key_gets_the_list_of_settings(home: Path) -> None:
    write(home / USER_FILE, "colour = true")
    assert "project, zone, user" in refusal(home).reason


def test_bad_toml_is_named_with_its_line(home: Path) -> None:
    path = write(home / USER_FILE, 'project = "my-project"\nzone = us-central1-a\n')
    refused = refusal(home)
    assert refused.what == f"{path} is not TOML"
    assert "line 2" in refused.reason


@pytest.mark.parametrize("name", [USER_FILE, "tpukit.toml", f"{GCLOUD}/active_config"])
@pytest.mark.parametrize("kind", ["not UTF-8", "directory", "pipe"])
def test_a_file_that_is_none_is_refused(home: Path, name: str, kind: str) -> None:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"\xff\xfe")
    assert str(path) in refusal(home).what


def test_a_file_that_cannot_be_opened_is_refused(home: Path) -> None:
    assert "cannot be read" in refusal(home, CLOUDSDK_CONFIG=f"/{'x' * 300}").what


def test_a_byte_order_mark_does_no_harm(home: Path) -> None:
    write(home / USER_FILE, b'\xef\xbb\xbfzone = "us-central1-a"')
    assert zone(home).value == "us-central1-a"


def test_a_value_of_a_file_is_refused_with_the_file(home: Path) -> None:
    path = write(home / USER_FILE, 'zone = "us-central1"')
    assert refusal(home).reason == f"{path}; this is a region"


def test_tpukit_home_moves_the_user_file(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "own/config/config.toml", 'zone = "us-central1-a"')
    assert zone(home, TPUKIT_HOME=str(tmp_path / "own")).origin == str(path)


def test_the_project_file_is_searched_up_to_the_root_of_the_git_tree(home: Path) -> None:
    write(home / "tpukit.toml", 'zone = "us-central1-f"')
    deep = home / "tree" / "a" / "b"
    deep.mkdir(parents=True)
    assert zone(home, deep).value == "us-central1-f"
    (home / "tree" / ".git").mkdir()
    assert zone(home, deep).origin == NOT_SET
    nearest = write(home / "tree" / "tpukit.toml", 'zone = "us-central1-a"')
    assert zone(home, deep) == Setting("zone", "us-central1-a", str(nearest))


def test_a_project_file_above_home_does_not_count(home: Path) -> None:
    write(home.parent / "tpukit.toml", 'zone = "us-central1-a"')
    assert zone(home, home).origin == NOT_SET


def test_outside_of_home_and_git_only_the_directory_itself_counts(
    home: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere" / "work"
    elsewhere.mkdir(parents=True)
    write(elsewhere.parent / "tpukit.toml", 'zone = "us-central1-f"')
    assert zone(home, elsewhere).origin == NOT_SET
    own = write(elsewhere / "tpukit.toml", 'zone = "us-central1-a"')
    assert zone(home, elsewhere).origin == str(own)


@pytest.mark.parametrize(
    "line",
    [
        'tpu_endpoint = "https://example.com/"',
        'compute_endpoint = "https://example.com/"',
        'access_token_file = "/token"',
        'credentials_file = "/key.json"',
        'quota_project = "who-pays"',
    ],
)
def test_a_project_file_cannot_send_credentials_elsewhere(home: Path, line: str) -> None:
    path = write(home / "tpukit.toml", f"\n{line}\n")
    with pytest.raises(SecurityRefusal) as refused:
        zone(home)
    assert refused.value.what.startswith(f"{path}, line 2: ")


def test_gclouds_active_configuration_is_read(home: Path) -> None:
    write(home / GCLOUD / "active_config", "work\n")
    write(home / GCLOUD / "configurations/config_default", "[compute]\nzone = us-central1-f\n")
    write(
        home / GCLOUD / "configurations/config_work",
        "[core]\nproject = my-project\naccount = a%40b\n[compute]\nzone = us-central1-a\n"
        "[api_endpoint_overrides]\ntpu = https://tpu.example.com/\n"
        "[billing]\nquota_project = who-pays\n[auth]\naccess_token_file = /token\n",
    )
    settings = Settings.load({}, {"HOME": str(home)}, home)
    origin = "gcloud configuration 'work'"
    for name, value in (
        ("project", "my-project"),
        ("zone", "us-central1-a"),
        ("tpu_endpoint", "https://tpu.example.com/"),
        ("quota_project", "who-pays"),
        ("access_token_file", "/token"),
    ):
        assert settings.values[name] == Setting(name, value, origin)


def test_a_configuration_named_in_the_environment_wins_and_must_exist(home: Path) -> None:
    write(home / GCLOUD / "configurations/config_default", "[compute]\nzone = us-central1-f\n")
    write(home / GCLOUD / "configurations/config_work", "[compute]\nzone = us-central1-a\n")
    assert zone(home, CLOUDSDK_ACTIVE_CONFIG_NAME="work").value == "us-central1-a"
    assert zone(home, CLOUDSDK_ACTIVE_CONFIG_NAME="NONE").origin == NOT_SET
    assert "no gcloud configuration gone" in refusal(home, CLOUDSDK_ACTIVE_CONFIG_NAME="gone").what


def test_cloudsdk_config_moves_gclouds_directory(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "sdk/configurations/config_default", "[compute]\nzone = us-central1-a\n")
    assert zone(home, CLOUDSDK_CONFIG=str(tmp_path / "sdk")).value == "us-central1-a"


@pytest.mark.parametrize("name", ["../../etc/passwd", "a b", "\x1b[31m", "."])
def test_a_configuration_name_cannot_leave_its_directory(home: Path, name: str) -> None:
    assert "does not name" in refusal(home, CLOUDSDK_ACTIVE_CONFIG_NAME=name).what


def test_an_ini_file_that_is_none_is_refused(home: Path) -> None:
    path = write(home / GCLOUD / "configurations/config_default", "zone = us-central1-a\n")
    assert refusal(home).what == f"{path} is not a gcloud configuration"


def test_no_home_is_refused_by_the_user_file_and_not_needed_with_tpukit_home(home: Path) -> None:
    with pytest.raises(BadInput, match="no home directory"):
        Settings.load({}, {}, home)
    assert Settings.load({}, {"TPUKIT_HOME": str(home)}, home).get("zone") == ""
