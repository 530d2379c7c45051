"""`tpukit config`: the settings in force, each with the place it came from, and trusted files."""

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
    str, Argument(metavar="PATH", help=f"A {PROJECT_FILE}, or its folder; default: the one here.")
]
Remove = Annotated[bool, Option("--remove", help="Stop trusting the file.")]


def application() -> typer.Typer:
    return group("Show settings and where they come from.", explain, trust)


def explain(toolkit: Toolkit) -> View:
    """Show every setting with its value and its origin.

    `identity` is the account that calls are made as. Nothing is asked of the cloud: an account that
    the credentials do not name is known once they were used.

    Examples:
      tpukit config explain
      tpukit --local config explain --json
    """
    settings = toolkit.settings.explain()
    account, origin = _identity(toolkit)
    document = {each.name: {"value": each.value, "origin": each.origin} for each in settings}
    rows = [["identity", account, origin]]
    rows += [[each.name, each.value, each.origin] for each in settings]
    identity = {"account": account, "origin": origin}
    return View({"identity": identity, "settings": document}, ("SETTING", "VALUE", "ORIGIN"), rows)


def _identity(toolkit: Toolkit) -> tuple[str, str]:
    """Return the account, empty where it is unknown, and where its credentials come from."""
    try:
        credentials = toolkit.identity.credentials
    except TpukitError as error:
        return "", error.what
    if credentials is None:
        return "", f"disabled, {toolkit.settings.values['disable_credentials'].origin}"
    account = toolkit.identity.tokens.account
    return account, credentials.description + ("" if account else ", whose account is not known")


def trust(toolkit: Toolkit, path: Place = "", remove: Remove = False) -> View:
    """Trust a project's tpukit.toml, so that all of its settings count.

    Without trust it sets the zone alone. Trust ends when the file changes. A project file never
    sets credentials or endpoints. A project's recipes and profiles, in tpukit-recipes and
    tpukit-profiles, need trust too.

    Examples:
      tpukit config trust
      tpukit config trust tpukit.toml --remove
    """
    found = _project_file(path)
    trusted = TrustedFiles(toolkit.paths.trusted)
    if remove:
        removed = trusted.remove(found)
        return View({"path": str(found), "removed": removed}, rows=[[str(found)]] * removed)
    text = read_text(found)
    if text is None:
        raise BadInput(f"there is no file {found}", fix=Fix(note="name the tpukit.toml"))
    if found.parent.name == PROJECT_RECIPES:
        return _trust_recipe(toolkit, trusted, found, text)
    if found.parent.name == PROJECT_PROFILES:
        return _trust_profile(toolkit, trusted, found, text)
    given = in_project_file(found, text)
    trusted.add(found, text)
    toolkit.console.say(f"{found} is trusted until it changes")
    named = {name: setting.value for name, setting in given.items() if not BY_NAME[name].harmless}
    rows = [[name, value] for name, value in named.items()]
    return View({"path": str(found), "settings": named}, ("SETTING", "VALUE"), rows)


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
        return file.parent.resolve() / file.name  # as `project_file` names it
    found = project_file(Path.cwd(), Path.home())
    if found is None:
        raise BadInput(f"there is no {PROJECT_FILE} here", fix=Fix(note="give its path"))
    return found
