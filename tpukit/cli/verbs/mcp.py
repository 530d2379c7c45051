"""`tpukit mcp`: serve tools for coding agents, within limits that a person sets."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

from typer import Option

from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, Fix

Skill = Annotated[bool, Option("--skill", help="Print the skill file for coding agents, and end.")]


def mcp(toolkit: Toolkit, skill: Skill = False) -> View:
    """Serve tools for coding agents on standard input and output.

    An MCP client starts it. The tools find capacity, and create, use and delete slices within the
    limits that you set: agent_max_slices, agent_max_hours, agent_types and agent_zones. Without
    them, no slice can be created. An agent reaches only slices that these tools have made.

    Examples:
      tpukit mcp --skill
      tpukit --local mcp
    """
    from tpukit.mcp import skill as skill_file

    if skill:
        text = skill_file()
        return View({"skill": text}, rows=[[line] for line in text.splitlines()])
    try:
        from tpukit.mcp.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "tpukit").startswith("tpukit"):
            raise
        fix = Fix.command(sys.executable, "-m", "pip", "install", "tpukit[mcp]")
        raise BadInput("the package mcp is not installed", fix=fix) from error
    from tpukit.mcp.limits import Limits
    from tpukit.mcp.tools import Tools
    from tpukit.slices.lifetime import rates_of

    same_cloud = replace(toolkit.flags, zone="").complete(
        Fix.command("tpukit", "list"), toolkit.environ
    )
    tools = Tools(
        [sys.executable, "-P", "-m", *same_cloud.arguments[:-1]],
        Limits.from_settings(toolkit.settings.get),
        lambda: toolkit.cloud.owner,
        # Rates in a file that is not trusted do not count, and hinder no tool.
        rates_of(toolkit.settings.values["rates"].value),
        toolkit.paths.agent_lock,
        toolkit.console.say,
    )
    serve(tools, toolkit.console.say)
    return View({})
