"""`tpukit config`: the settings with their origins, their changes, and trusted project files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from tpukit.cli.toolkit import Toolkit
from tpukit.cli.toolkit.project_files import PROJECT_RECIPES, PROJECT_SETUPS
from tpukit.cli.verb import group
from tpukit.console import View
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.settings import user_file
from tpukit.settings.config_files import PROJECT_FILE, project_file, read_text
from tpukit.settings.resolution import in_project_file
from tpukit.settings.table import BY_NAME
from tpukit.settings.trust import TrustedFiles
from tpukit.text import shown_path

Place = Annotated[
    str, Argument(metavar="PATH", help=f"A {PROJECT_FILE}, or its folder; default: this folder's.")
]
SettingName = Annotated[str, Argument(metavar="SETTING", help="Name of a setting.")]
SettingValue = Annotated[str, Argument(metavar="VALUE", help="Its new value.")]
New = Annotated[bool, Option("--new", help="Make the profile of --profile if it does not exist.")]
Remove = Annotated[bool, Option("--remove", help="Stop trusting the file.")]


def application() -> typer.Typer:
    return group(
        "Show and change settings, and trust project files.",
        *(explain, list_files, get_value, set_value, unset_value, path_of_file, trust),
    )


def explain(toolkit: Toolkit) -> View:
    """Show every setting with its value and its origin.

    `identity` is the account that makes the calls. This command makes no calls, so it cannot show
    the account of new credentials that do not name it.

    Examples:
      tpukit config explain
      tpukit --local config explain --json
    """
    settings = toolkit.settings.explain()
    account, origin = _identity(toolkit)
    document = {
        setting.name: {"value": setting.value, "origin": setting.origin} for setting in settings
    }
    rows = [["identity", account, origin]]
    rows += [[setting.name, setting.value, setting.origin] for setting in settings]
    identity = {"account": account, "origin": origin}
    return View({"identity": identity, "settings": document}, ("SETTING", "VALUE", "ORIGIN"), rows)


def list_files(toolkit: Toolkit) -> View:
    """List the settings in your own config.toml, and in your profiles.

    A profile is a named set of settings, in a file beside config.toml. --profile NAME reads it
    instead of config.toml and gcloud's configuration.

    Examples:
      tpukit config list
    """
    paths = toolkit.paths
    files = {
        profile: user_file.read_own_file(paths, profile)
        for profile in ("", *user_file.profiles(paths))
    }
    documents = [
        {"profile": profile, "path": str(user_file.own_file(paths, profile)), "settings": values}
        for profile, values in files.items()
    ]
    rows = [
        (profile, name, value)
        for profile, values in files.items()
        for name, value in values.items() or ([("", "")] if profile else [])
    ]
    return View({"files": documents}, ("PROFILE", "SETTING", "VALUE"), rows)


def get_value(toolkit: Toolkit, name: SettingName) -> View:
    """Print the value of a setting.

    Examples:
      tpukit config get zone
    """
    value, setting = toolkit.settings.get(user_file.known(name)), toolkit.settings.values[name]
    document = {"setting": {"name": name, "value": value, "origin": setting.origin}}
    return View(document, rows=[[value]] if value else [], status=int(not value))


def set_value(
    toolkit: Toolkit, name: SettingName, value: SettingValue, *, new: New = False
) -> View:
    """Set a value in your own config.toml, or in the profile of --profile.

    Flags and tpukit's environment variables come before both, and a trusted project file comes
    before config.toml. A profile that does not exist is made only with --new.

    Examples:
      tpukit config set zone us-central2-b
      tpukit config set project work-project --profile work --new
    """
    path, profile = toolkit.own_file, toolkit.flags.chosen_profile(toolkit.environ)
    words = ("tpukit", "config", "set", name, user_file.checked(name, value))
    if new and not profile:
        fix = Fix.command(*words, "--new", "--profile", "work", note="for example")
        raise BadInput("--new needs --profile", fix=fix)
    is_new = bool(profile) and not path.exists()
    if is_new and not new:
        raise _no_profile(toolkit, profile, words)
    user_file.set_value(path, name, value)
    toolkit.console.say(f"{name} is set in {shown_path(path)}{', a new profile' * is_new}")
    return View({"path": str(path), "setting": name, "value": value})


def _no_profile(toolkit: Toolkit, profile: str, words: Sequence[str]) -> BadInput:
    meant = user_file.nearest_profile(toolkit.paths, profile)
    new = Fix.command(*words, "--new", "--profile", profile, note="makes it")
    if not meant:
        return user_file.no_profile(toolkit.paths, profile, new)
    near = Fix.command(*words, "--profile", meant)
    return user_file.no_profile(toolkit.paths, profile, near, new)


def unset_value(toolkit: Toolkit, name: SettingName) -> View:
    """Remove a value from your own config.toml, or from the profile of --profile.

    Examples:
      tpukit config unset zone
    """
    path = toolkit.own_file
    user_file.read_own_file(toolkit.paths, toolkit.flags.chosen_profile(toolkit.environ))
    removed = user_file.unset_value(path, name)
    toolkit.console.say(f"{name} {'is' if removed else 'was'} not set in {shown_path(path)}")
    return View({"path": str(path), "setting": name, "removed": removed})


def path_of_file(toolkit: Toolkit) -> View:
    """Print the path of your own config.toml, or of the profile of --profile.

    Examples:
      tpukit config path
    """
    path = str(toolkit.own_file)
    return View({"path": path}, rows=[[path]])


def _identity(toolkit: Toolkit) -> tuple[str, str]:
    """Return the account, or "" if it is unknown, and the source of its credentials."""
    try:
        credentials = toolkit.cloud.identity.credentials
    except TpukitError as error:
        return "", error.what
    if credentials is None:
        return "", f"disabled, {toolkit.settings.values['disable_credentials'].origin}"
    account = toolkit.cloud.identity.tokens.account
    return account, credentials.description + ("" if account else ", of an unknown account")


def trust(toolkit: Toolkit, path: Place = "", remove: Remove = False) -> View:
    """Trust a project's tpukit.toml, so that all its settings count.

    An untrusted file sets only the zone. Trust ends when the file changes. A project file never
    sets credentials or endpoints. The project's recipes (tpukit-recipes) and setups
    (tpukit-setups) need trust too.

    Examples:
      tpukit config trust
      tpukit config trust tpukit.toml --remove
    """
    file = _project_file(path)
    trusted = TrustedFiles(toolkit.paths.trusted)
    if remove:
        removed = trusted.remove(file)
        return View({"path": str(file), "removed": removed}, rows=[[str(file)]] * removed)
    text = read_text(file)
    if text is None:
        raise BadInput(f"there is no file {file}", fix=Fix(note="give the path of the tpukit.toml"))
    shown = {PROJECT_RECIPES: _recipe, PROJECT_SETUPS: _setup}.get(file.parent.name, _settings)
    view = shown(file, text)
    trusted.add(file, text)
    toolkit.console.say(f"{file} is trusted until it changes")
    return view


def _settings(path: Path, text: str) -> View:
    given = in_project_file(path, text)
    allowed = {name: setting.value for name, setting in given.items() if not BY_NAME[name].harmless}
    rows = [[name, value] for name, value in allowed.items()]
    return View({"path": str(path), "settings": allowed}, ("SETTING", "VALUE"), rows)


def _recipe(path: Path, text: str) -> View:
    from tpukit.provision.own_recipes import parse_own_recipe

    recipe = parse_own_recipe(path, text)
    document = {"path": str(path), "recipe": recipe.name}
    return View(document, ("RECIPE", "DESCRIPTION"), [[recipe.name, recipe.description]])


def _setup(path: Path, text: str) -> View:
    from tpukit.provision.wanted import parse_setup

    words = parse_setup(path, text)
    return View({"path": str(path), "setup": path.stem, "apply": list(words)}, rows=[words])


def _project_file(path: str) -> Path:
    if path:
        given = Path(path).expanduser()
        file = given / PROJECT_FILE if given.is_dir() else given
        return file.parent.resolve() / file.name  # the same spelling as from `project_file`
    nearest = project_file(Path.cwd(), Path.home())
    if nearest is None:
        raise BadInput(f"there is no {PROJECT_FILE} here", fix=Fix(note="give its path"))
    return nearest
