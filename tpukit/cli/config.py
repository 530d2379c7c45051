"""`tpukit config`: the settings with their origins, and the trusted project files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from tpukit.cli.toolkit import PROJECT_PROFILES, PROJECT_RECIPES, Toolkit
from tpukit.cli.verb import group
from tpukit.console import View
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.settings.files import PROJECT_FILE, project_file, read_text
from tpukit.settings.resolution import in_project_file
from tpukit.settings.table import BY_NAME
from tpukit.settings.trust import TrustedFiles

Place = Annotated[
    str, Argument(metavar="PATH", help=f"A {PROJECT_FILE}, or its folder; default: this folder's.")
]
Remove = Annotated[bool, Option("--remove", help="Stop trusting the file.")]


def application() -> typer.Typer:
    return group("Show settings and their origins, and trust project files.", explain, trust)


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


def _identity(toolkit: Toolkit) -> tuple[str, str]:
    """Return the account, or "" if it is unknown, and the source of its credentials."""
    try:
        credentials = toolkit.identity.credentials
    except TpukitError as error:
        return "", error.what
    if credentials is None:
        return "", f"disabled, {toolkit.settings.values['disable_credentials'].origin}"
    account = toolkit.identity.tokens.account
    return account, credentials.description + ("" if account else ", of an unknown account")


def trust(toolkit: Toolkit, path: Place = "", remove: Remove = False) -> View:
    """Trust a project's tpukit.toml, so that all its settings count.

    An untrusted file sets only the zone. Trust ends when the file changes. A project file never
    sets credentials or endpoints. The project's recipes (tpukit-recipes) and profiles
    (tpukit-profiles) need trust too.

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
    if file.parent.name == PROJECT_RECIPES:
        return _trust_recipe(toolkit, trusted, file, text)
    if file.parent.name == PROJECT_PROFILES:
        return _trust_profile(toolkit, trusted, file, text)
    given = in_project_file(file, text)
    trusted.add(file, text)
    toolkit.console.say(f"{file} is trusted until it changes")
    allowed = {name: setting.value for name, setting in given.items() if not BY_NAME[name].harmless}
    rows = [[name, value] for name, value in allowed.items()]
    return View({"path": str(file), "settings": allowed}, ("SETTING", "VALUE"), rows)


def _trust_recipe(toolkit: Toolkit, trusted: TrustedFiles, path: Path, text: str) -> View:
    from tpukit.provision.own_recipes import parse_own_recipe

    recipe = parse_own_recipe(path, text)
    trusted.add(path, text)
    toolkit.console.say(f"{path} is trusted until it changes")
    document = {"path": str(path), "recipe": recipe.name}
    return View(document, ("RECIPE", "DESCRIPTION"), [[recipe.name, recipe.description]])


def _trust_profile(toolkit: Toolkit, trusted: TrustedFiles, path: Path, text: str) -> View:
    from tpukit.provision.wanted import parse_profile

    words = parse_profile(path, text)
    trusted.add(path, text)
    toolkit.console.say(f"{path} is trusted until it changes")
    return View({"path": str(path), "profile": path.stem, "apply": list(words)}, rows=[words])


def _project_file(path: str) -> Path:
    if path:
        given = Path(path).expanduser()
        file = given / PROJECT_FILE if given.is_dir() else given
        return file.parent.resolve() / file.name  # the same spelling as from `project_file`
    nearest = project_file(Path.cwd(), Path.home())
    if nearest is None:
        raise BadInput(f"there is no {PROJECT_FILE} here", fix=Fix(note="give its path"))
    return nearest
