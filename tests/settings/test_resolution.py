"""Each setting comes from the place that wins, says so, and is checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tpukit.errors import BadInput, SecurityRefusal
from tpukit.settings.resolution import NOT_SET, Setting, Settings
from tpukit.settings.table import DEFINITIONS, Definition

EMULATOR = {
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "http://127.0.0.1:8085/",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": "http://127.0.0.1:8085/compute/v1/",
    "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": "/emulator/token",
    "CLOUDSDK_CORE_PROJECT": "emulator-project",
}
#: Where a zone can come from, first the place that wins.
PLACES = ("flag", "tpukit", "cloudsdk", "project", "user", "gcloud")


class Desk:
    """A home, a working directory and an environment of one user, all of it below a folder."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.work = self.home / "project" / "deep"
        self.work.mkdir(parents=True)
        self.environ = {"HOME": str(self.home), "USER": "ada"}
        self.flags: dict[str, str | None] = {}
        self.overlay: dict[str, str] | None = None
        self.profile = ""

    def write(self, name: str, text: str) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def user_file(self, text: str) -> Path:
        return self.write(".config/tpukit/config.toml", text)

    def project_file(self, text: str) -> Path:
        return self.write("project/tpukit.toml", text)

    def gcloud(self, text: str, name: str = "default") -> Path:
        return self.write(f".config/gcloud/configurations/config_{name}", text)

    def load(self) -> Settings:
        return Settings.load(self.flags, self.environ, self.work, self.overlay, self.profile)

    def setting(self, name: str) -> tuple[str, str]:
        setting = self.load().values[name]
        return setting.value, setting.origin


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def give_zone(desk: Desk, place: str, zone: str) -> str:
    """Give the zone at one place and return the origin that it should be told with."""
    givers: dict[str, Callable[[], object]] = {
        "flag": lambda: desk.flags.update(zone=zone) or "flag --zone",
        "tpukit": lambda: desk.environ.update(TPUKIT_ZONE=zone) or "TPUKIT_ZONE",
        "cloudsdk": lambda: (
            desk.environ.update(CLOUDSDK_COMPUTE_ZONE=zone) or "CLOUDSDK_COMPUTE_ZONE"
        ),
        "project": lambda: desk.project_file(f'zone = "{zone}"'),
        "user": lambda: desk.user_file(f'zone = "{zone}"'),
        "gcloud": lambda: (
            desk.gcloud(f"[compute]\nzone = {zone}\n") and "gcloud configuration 'default'"
        ),
    }
    return str(givers[place]())


@pytest.mark.parametrize("first", range(len(PLACES)))
def test_the_first_place_in_the_order_wins_and_is_named(desk: Desk, first: int) -> None:
    origins = [
        give_zone(desk, place, f"us-central{number}-a")
        for number, place in enumerate(PLACES)
        if number >= first
    ]
    assert desk.setting("zone") == (f"us-central{first}-a", origins[0])


def test_a_profile_comes_after_our_variables_and_the_emulator_and_before_googles(
    desk: Desk,
) -> None:
    path = desk.write(".config/tpukit/config-work.toml", 'project = "work-project"\n')
    desk.project_file('project = "of-a-repository"\n')  # it is not trusted, and does not matter
    desk.environ["CLOUDSDK_CORE_PROJECT"] = "other-project"
    desk.profile = "work"
    assert desk.setting("project") == ("work-project", str(path))
    desk.overlay = EMULATOR
    assert desk.setting("project") == ("emulator-project", "emulator")
    desk.environ["TPUKIT_PROJECT"] = "our-project"
    assert desk.setting("project") == ("our-project", "TPUKIT_PROJECT")


def test_a_profile_takes_nothing_from_the_user_file_or_gclouds_configuration(desk: Desk) -> None:
    desk.write(".config/tpukit/config-work.toml", 'zone = "us-east1-d"\n')
    desk.user_file('project = "own-project"\n')
    desk.gcloud("[core]\nproject = gcloud-project\n")
    assert desk.setting("project")[0] == "own-project"
    desk.profile = "work"
    assert desk.setting("project") == ("", NOT_SET)
    assert desk.setting("zone")[0] == "us-east1-d"


def test_nothing_given_is_not_set_and_the_defaults_bill_nothing(desk: Desk) -> None:
    explained = {setting.name: setting for setting in desk.load().explain()}
    assert explained["project"] == Setting("project", "", NOT_SET)
    assert explained["zone"] == Setting("zone", "", NOT_SET)
    assert explained["network"] == Setting("network", "default", "default")
    assert explained["tpu_endpoint"].value == "https://tpu.googleapis.com/"
    assert explained["credentials_file"].origin == NOT_SET
    assert list(explained) == list(desk.load().values)


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("project", "CLOUDSDK_CORE_PROJECT", "my-project"),
        ("project", "GOOGLE_CLOUD_PROJECT", "my-project"),
        ("project", "TPUKIT_PROJECT", "example.com:my-project"),
        ("user", "TPUKIT_USER", "grace"),
        ("network", "TPUKIT_NETWORK", "projects/p/global/networks/n"),
        ("source_ranges", "TPUKIT_SOURCE_RANGES", "35.235.240.0/20,2001:db8::/32"),
        ("access_token_file", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "/token"),
        ("credentials_file", "GOOGLE_APPLICATION_CREDENTIALS", "/key.json"),
        ("credentials_file", "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE", "/key.json"),
        ("quota_project", "CLOUDSDK_BILLING_QUOTA_PROJECT", "who-pays"),
        ("quota_project", "GOOGLE_CLOUD_QUOTA_PROJECT", "who-pays"),
        ("quota_project", "CLOUDSDK_BILLING_QUOTA_PROJECT", "CURRENT_PROJECT_WITH_FALLBACK"),
        ("account", "CLOUDSDK_CORE_ACCOUNT", "ada@example.com"),
        ("impersonate_service_account", "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT", "a@p.b, c@d"),
        ("tpu_endpoint", "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "https://tpu.example.com/"),
    ],
)
def test_a_variable_gives_a_setting(desk: Desk, name: str, variable: str, value: str) -> None:
    desk.environ[variable] = value
    assert desk.setting(name) == (value, variable)


def test_gclouds_variable_wins_over_that_of_googles_libraries(desk: Desk) -> None:
    desk.environ |= {"CLOUDSDK_CORE_PROJECT": "from-gcloud", "GOOGLE_CLOUD_PROJECT": "from-google"}
    assert desk.setting("project") == ("from-gcloud", "CLOUDSDK_CORE_PROJECT")


def test_an_empty_variable_is_no_value_but_an_empty_flag_is_a_wrong_one(desk: Desk) -> None:
    desk.environ["TPUKIT_ZONE"] = ""
    assert desk.setting("zone") == ("", NOT_SET)
    desk.flags["zone"] = ""
    with pytest.raises(BadInput) as refused:
        desk.load()
    assert "flag --zone" in refused.value.reason


def test_seconds_are_a_number_of_toml_too(desk: Desk) -> None:
    assert desk.setting("silence") == ("30", "default")
    desk.user_file("silence = 90")
    assert desk.load().get("silence") == "90"


def test_a_switch_is_true_or_any_of_gclouds_words(desk: Desk) -> None:
    desk.user_file("keep_tokens = false\nkeep_hints = false\ndisable_credentials = true")
    assert not desk.load().is_on("keep_tokens")
    assert not desk.load().is_on("keep_hints")
    assert desk.load().is_on("disable_credentials")
    desk.environ |= {"TPUKIT_KEEP_TOKENS": "On", "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "False"}
    assert desk.load().is_on("keep_tokens")
    assert not desk.load().is_on("disable_credentials")
    desk.environ["TPUKIT_KEEP_TOKENS"] = "perhaps"
    with pytest.raises(BadInput, match="neither yes nor no"):
        desk.load()


def test_source_ranges_are_a_tuple_from_a_list_or_from_commas(desk: Desk) -> None:
    desk.user_file('source_ranges = ["203.0.113.7/32", "35.235.240.0/20"]')
    assert desk.load().source_ranges == ("203.0.113.7/32", "35.235.240.0/20")
    desk.environ["TPUKIT_SOURCE_RANGES"] = " 203.0.113.0/24 , 10.0.0.1,"
    assert desk.load().source_ranges == ("203.0.113.0/24", "10.0.0.1")


def test_a_relative_path_starts_where_it_was_written(desk: Desk) -> None:
    path = desk.user_file('credentials_file = "key.json"')
    assert desk.setting("credentials_file")[0] == str(path.parent / "key.json")
    desk.environ["TPUKIT_CREDENTIALS_FILE"] = "mine.json"
    assert desk.setting("credentials_file")[0] == str(desk.work / "mine.json")


@pytest.mark.parametrize(
    ("account", "user"),
    [
        ("ada", "ada"),
        ("root", "tpukit"),
        ("Jürgen.Müller", "jurgen_muller"),
        ("DOMAIN\\Ada", "domain_ada"),
        ("7of9", "_7of9"),
        ("愛", "tpukit"),
        ("a" * 40, "a" * 31),
    ],
)
def test_the_user_is_the_local_account_made_safe(desk: Desk, account: str, user: str) -> None:
    desk.environ["USER"] = account
    assert desk.setting("user") == (user, "default, the local account")


def test_require_returns_the_value_or_says_three_ways_to_give_it(desk: Desk) -> None:
    with pytest.raises(BadInput, match="there is no zone") as refused:
        desk.load().require("zone")
    for way in ("--zone", "TPUKIT_ZONE", "gcloud's compute/zone"):
        assert way in str(refused.value.fix)
    desk.flags["zone"] = "us-central1-a"
    assert desk.load().require("zone") == "us-central1-a"


def test_all_zones_are_not_one(desk: Desk) -> None:
    desk.flags["zone"] = "-"
    with pytest.raises(BadInput, match="- means all"):
        desk.load().require("zone")


def test_an_endpoint_over_http_keeps_its_exit_code_and_names_its_origin(desk: Desk) -> None:
    desk.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"] = "http://example.com/"
    with pytest.raises(SecurityRefusal) as refused:
        desk.load()
    assert refused.value.exit_code == 9
    assert refused.value.reason.startswith("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU")


@pytest.mark.parametrize("one", ["TPU", "COMPUTE"])
def test_slices_here_and_firewall_rules_in_the_cloud_are_refused(desk: Desk, one: str) -> None:
    variable = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{one}"
    desk.environ[variable] = EMULATOR[variable]
    with pytest.raises(BadInput, match="do not belong to one cloud") as refused:
        desk.load()
    assert variable in refused.value.reason


def test_the_emulators_variables_in_the_environment_are_enough(desk: Desk) -> None:
    desk.environ |= EMULATOR
    assert desk.setting("tpu_endpoint") == (
        "http://127.0.0.1:8085/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU",
    )


def test_a_local_run_takes_endpoints_and_credentials_from_the_emulator_alone(desk: Desk) -> None:
    desk.environ |= {
        "TPUKIT_TPU_ENDPOINT": "https://evil.example.com/",
        "TPUKIT_ACCESS_TOKEN_FILE": "/real/token",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": "https://compute.example.com/",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": "/real/token",
        "GOOGLE_APPLICATION_CREDENTIALS": "/real/key.json",
        "GOOGLE_CLOUD_QUOTA_PROJECT": "real-project",
    }
    desk.user_file('credentials_file = "/real/key.json"\ntpu_endpoint = "https://a.example.com/"')
    desk.gcloud("[auth]\naccess_token_file = /real/token\n[billing]\nquota_project = real-quota\n")
    desk.overlay = EMULATOR
    settings = desk.load()
    assert settings.values["tpu_endpoint"] == Setting(
        "tpu_endpoint", "http://127.0.0.1:8085/", "emulator"
    )
    assert settings.get("compute_endpoint") == "http://127.0.0.1:8085/compute/v1/"
    assert settings.get("access_token_file") == "/emulator/token"
    assert settings.values["credentials_file"].origin == NOT_SET
    assert settings.values["quota_project"].origin == NOT_SET


@pytest.mark.parametrize(
    ("source", "project", "origin"),
    [
        ("flag", "my-project", "flag --project"),
        ("TPUKIT_PROJECT", "my-project", "TPUKIT_PROJECT"),
        ("CLOUDSDK_CORE_PROJECT", "emulator-project", "emulator"),
        ("GOOGLE_CLOUD_PROJECT", "emulator-project", "emulator"),
    ],
)
def test_a_local_run_still_hears_flags_and_our_own_variables(
    desk: Desk, source: str, project: str, origin: str
) -> None:
    desk.overlay = EMULATOR
    if source == "flag":
        desk.flags["project"] = "my-project"
    else:
        desk.environ[source] = "my-project"
    assert desk.setting("project") == (project, origin)


def test_a_local_run_without_an_endpoint_of_the_emulator_does_not_fall_back(desk: Desk) -> None:
    desk.overlay = {"CLOUDSDK_CORE_PROJECT": "emulator-project"}
    with pytest.raises(BadInput, match="do not belong to one cloud"):
        desk.load()


def test_a_local_run_refuses_an_emulator_that_is_elsewhere(desk: Desk) -> None:
    desk.overlay = {
        name: value.replace("http://127.0.0.1:8085", "https://example.com")
        for name, value in EMULATOR.items()
    }
    with pytest.raises(BadInput, match="do not belong to one cloud"):
        desk.load()


#: For each setting, a value that its check accepts and that no other place gives.
FOREIGN = {
    "project": "their-project",
    "zone": "us-east5-b",
    "user": "alice",
    "network": "theirs",
    "source_ranges": "203.0.113.0/24",
    "keep_hints": "no",
    "silence": "7",
    "persist": "7",
    "rates": "v6e=0.01",
    "apis": "compute",
    "compilation_cache": "gs://theirs/cache",
}


@pytest.mark.parametrize("overlay", [None, EMULATOR], ids=["cloud", "emulator"])
@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_an_untrusted_project_file_sets_the_zone_and_nothing_else(
    desk: Desk, definition: Definition, overlay: dict[str, str] | None
) -> None:
    desk.overlay = overlay
    name = definition.name
    before = desk.load().values[name]
    file = desk.project_file(f'{name} = "{FOREIGN.get(name, "x")}"')
    if definition.personal:
        with pytest.raises(SecurityRefusal, match=f"{name} cannot be set by a project file"):
            desk.load()
        return
    settings = desk.load()
    if name == "zone":
        assert settings.get(name) == FOREIGN[name]
    elif before.origin == "emulator":
        assert settings.values[name] == before
    else:
        assert settings.values[name].value == ""
        with pytest.raises(SecurityRefusal, match=f"not trusted to set {name}") as refused:
            settings.get(name)
        assert f"tpukit config trust {file}" in str(refused.value.fix)


def test_a_settings_file_has_a_size_limit(desk: Desk) -> None:
    file = desk.project_file("#" * (1024 * 1024))
    desk.load()
    file.write_text("#" * (1024 * 1024 + 1))
    with pytest.raises(BadInput, match="is too large"):
        desk.load()
