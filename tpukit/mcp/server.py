"""The server: it offers the tools on standard input and output."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from tpukit import __version__
from tpukit.errors import SecurityRefusal, TpukitError
from tpukit.mcp import skill
from tpukit.mcp.tools import Json, Tools

#: How often it ends the slices that are due while no tool is called, in seconds.
_INTERVAL = 60.0


def serve(tools: Tools, say: Callable[[str], None]) -> None:
    """Serve the tools until standard input ends; `say` gets errors that concern no call."""

    async def end_due() -> None:
        while True:
            try:
                await tools.end_due()
            except TpukitError as error:  # the cloud may answer next time
                say(error.summary())
            await anyio.sleep(_INTERVAL)

    @asynccontextmanager
    async def watching(_: MCPServer[None]) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end_due)
            yield
            tasks.cancel_scope.cancel()

    server = MCPServer("tpukit", version=__version__, instructions=skill(), lifespan=watching)
    for tool in (
        *(tools.limits, tools.find_capacity, tools.estimate, tools.up, tools.slices),
        *(tools.run, tools.logs, tools.diagnose, tools.delete),
    ):
        server.add_tool(_told(tool), name=tool.__name__)
    try:
        server.run("stdio")
    except* BrokenPipeError:  # the client has ended, and nobody waits for this answer
        pass


def _told(tool: Callable[..., Awaitable[Json]]) -> Callable[..., Awaitable[Json]]:
    """Return the tool with its errors as text for the agent."""

    @functools.wraps(tool)
    async def told(*values: object, **named: object) -> Json:
        try:
            return await tool(*values, **named)
        except TpukitError as error:
            theirs = isinstance(error, SecurityRefusal)
            note = ["note: a person decides that, not an agent"] if theirs else []
            raise ToolError("\n".join([*error.lines(), *note])) from error

    return told
