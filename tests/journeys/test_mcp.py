"""`tpukit mcp` and the official client: every tool, and what an agent must not be able to do."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest
from support.command_line import Tpukit

import tpukit
from tpukit.errors import NotAllowed
from tpukit.mcp import skill
from tpukit.mcp.limits import Limits
from tpukit.mcp.tools import LABEL, Tools
from tpukit.paths import exclusively

if TYPE_CHECKING:
    from mcp import Client

pytestmark = pytest.mark.slow

ZONE, OTHER, FORBIDDEN = "us-central1-a", "us-central1-b", "europe-west4-a"
OWN, THEIRS = "agent-00000001", "agent-00000002"
LIMITS = {
    "TPUKIT_AGENT_MAX_SLICES": "2",
    "TPUKIT_AGENT_MAX_HOURS": "3",
    "TPUKIT_AGENT_TYPES": "v3-8",
    "TPUKIT_AGENT_ZONES": f"{ZONE},{OTHER}",
    "TPUKIT_RATES": "v3=2",
}


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Tpukit]:
    """A person with an emulator and limits."""
    person = Tpukit(tmp_path, {"TPUKIT_LOCAL": "1", **LIMITS})
    person.succeeds("emulator", "start", "--engine", "portable", "--create-seconds", "0.3")
    yield person
    person("emulator", "stop")


def slices(person: Tpukit) -> dict[str, Any]:
    return {row["name"]: row for row in person.document("list", "--zone", "-")["slices"]}


def make(person: Tpukit, name: str, *words: str) -> None:
    person.succeeds("create", "v3-8", name, "--zone", ZONE, "--no-firewall", *words)


def make_for_agent(person: Tpukit, name: str = OWN) -> None:
    make(person, name, "--labels", f"{LABEL}={name}", "--ttl", "2h")


class Agent:
    """The official client, connected to a server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool, which has to succeed."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        assert result.structured_content
        return result.structured_content

    async def refused(self, tool: str, arguments: dict[str, Any]) -> str:
        """Return the error of a call that has to fail."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, (tool, arguments, result.structured_content)
        (content,) = result.content
        return str(getattr(content, "text", ""))


@asynccontextmanager
async def agent(
    person: Tpukit, folder: Path | None = None, **variables: str
) -> AsyncIterator[Agent]:
    from mcp import Client, StdioServerParameters  # half a second, in each process of the tests

    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-P", "-m", "tpukit", "mcp"],
        env={**person.environment, **variables},
        cwd=folder or person.home,
    )
    async with Client(parameters) as client:
        yield Agent(client)


def test_a_project_file_that_is_not_trusted_stops_only_the_tools_that_need_it(
    person: Tpukit,
) -> None:
    folder = person.home / "project"
    folder.mkdir()
    (folder / "tpukit.toml").write_text('apis = "tpu,compute"\nrates = "v3=9"\n')

    async def work() -> None:
        async with agent(person, folder, TPUKIT_RATES="") as call:
            assert (await call("limits"))["types"] == ["v3-8"]
            assert await call("estimate", accelerator_type="v3-8", hours=2) == {"price": None}
            assert (await call("find_capacity", accelerator_type="v3-8"))["permitted"]
            told = await call.refused("slices", {})
            assert f"fix: tpukit config trust {folder / 'tpukit.toml'}" in told
            assert "a person decides that, not an agent" in told

    asyncio.run(work())


def test_a_client_that_has_ended_is_no_defect_of_the_server(person: Tpukit) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello["clientInfo"] = {"name": "test", "version": "1"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tpukit", "mcp"],
        env=person.environment,
        input=f"{json.dumps(call)}\n".encode(),
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.journey
def test_an_agent_creates_a_slice_works_on_it_and_deletes_it(person: Tpukit) -> None:
    program = "from tpukit_steps import steps\nfor _ in steps(range(1000)): pass\n"

    async def work() -> None:
        async with agent(person) as call:
            tools = (await call.client.list_tools()).tools
            assert {f"`{tool.name}`" in skill() for tool in tools} == {True}
            assert (await call("limits"))["types"] == ["v3-8"]
            assert (await call("find_capacity", accelerator_type="v3-8"))["permitted"]
            assert await call("estimate", accelerator_type="v3-8", hours=2) == {"price": 16.0}
            assert (await call("slices"))["slices"] == []
            up = await call("up", accelerator_type="v3-8", hours=2)
            name = up["slice"]["name"]
            assert up["smoke"]["ok"], up["smoke"]
            again = await call("up", accelerator_type="v3-8", hours=2, name=name)
            assert again["slice"]["id"] == up["slice"]["id"]
            done = await call("run", name=name, command="echo a; exit 3")
            assert (done["status"], done["results"][0]["stdout"]) == (3, "a\n")
            await call("run", name=name, command="seq 5", detach=True)
            assert (await call("logs", name=name, lines=2))["output"].endswith("4\n5\n")
            line = f"python -c {json.dumps(program)}".replace("\\n", "\n")
            assert (await call("diagnose", name=name, command=line))["diagnosis"]
            assert len((await call("slices"))["slices"]) == 1
            await call("delete", name=name)
            assert (await call("slices"))["slices"] == []

    asyncio.run(work())
    assert slices(person) == {}


FLAG = "--zone=europe-west4-a"
UP = {"accelerator_type": "v3-8", "hours": 1.0}
#: What an agent tries that has one slice left to create.
ATTEMPTS = [
    ("up", {**UP, "accelerator_type": "v4-8"}),
    ("up", {**UP, "accelerator_type": "V4-8"}),
    ("up", {**UP, "accelerator_type": "v3-32"}),
    ("up", {**UP, "accelerator_type": "--help"}),
    ("up", {**UP, "accelerator_type": f"v3-8 {FLAG}"}),
    ("up", {**UP, "zone": FORBIDDEN}),
    ("up", {**UP, "zone": "-"}),
    ("up", {**UP, "zone": f"{ZONE},{FORBIDDEN}"}),
    ("up", {**UP, "zone": FLAG}),
    ("up", {**UP, "recipe": FLAG}),
    ("up", {**UP, "recipe": "../../recipe"}),
    ("up", {**UP, "hours": 3.01}),
    ("up", {**UP, "hours": 0}),
    ("up", {**UP, "hours": 0.001}),
    ("up", {**UP, "hours": -1}),
    ("up", {**UP, "hours": "inf"}),
    ("up", {**UP, "hours": "nan"}),
    ("up", {**UP, "hours": "1h --no-input"}),
    ("up", {**UP, "name": "mine"}),
    ("up", {**UP, "name": "theirs-new"}),
    ("up", {**UP, "name": FLAG}),
    ("up", {**UP, "name": OWN, "zone": OTHER}),
    ("up", {**UP, "name": "odd"}),
    ("run", {"name": "mine", "command": "touch broken"}),
    ("run", {"name": "*", "command": "touch broken"}),
    ("run", {"name": f"{OWN},mine", "command": "touch broken"}),
    ("run", {"name": "tpukit-managed=1", "command": "touch broken"}),
    ("run", {"name": "--worker=0", "command": "touch broken"}),
    ("run", {"name": "odd", "command": "touch broken"}),
    ("run", {"name": OWN, "command": "touch broken\0"}),
    ("run", {"name": OWN, "command": f"touch {'broken' * 50_000}"}),
    ("logs", {"name": "mine"}),
    ("logs", {"name": OWN, "run": "--follow"}),
    ("diagnose", {"name": "mine", "command": "touch broken"}),
    ("delete", {"name": "mine"}),
    ("delete", {"name": "agent-*"}),
    ("delete", {"name": "agent-00000009"}),
    ("delete", {"name": THEIRS}),
    ("run", {"name": THEIRS, "command": "touch broken"}),
    ("up", {**UP, "name": THEIRS}),
    ("delete", {"name": ""}),
    ("extend", {"name": OWN, "ttl": "never"}),
]


def test_no_attempt_exceeds_the_limits_or_reaches_another_slice(person: Tpukit) -> None:
    make(person, "mine")
    # Its name is like those of an agent's slices, but its maker is not.
    make(person, "agent-00000009")
    make_for_agent(person)
    make_for_agent(replace(person, variables={**person.variables, "TPUKIT_USER": "grace"}), THEIRS)
    make(person, "odd", "--labels", f"{LABEL}={OWN}", "--ttl", "1h")
    before = slices(person)

    async def work() -> None:
        async with agent(person) as call:
            for tool, arguments in ATTEMPTS:
                told = await call.refused(tool, arguments)
                assert "Traceback" not in told, told
                assert "defect" not in told, told
                assert ": " in told, told
        async with agent(person, TPUKIT_AGENT_MAX_SLICES="1") as call:
            assert "2 of 1 slices exist" in await call.refused("up", UP)
        async with agent(person, TPUKIT_AGENT_TYPES="") as call:
            assert "permitted: none" in await call.refused("up", UP)
        async with agent(person, TPUKIT_AGENT_ZONES="") as call:
            assert "permitted: none" in await call.refused("up", UP)

    asyncio.run(work())
    after = slices(person)
    for name, slice_ in before.items():
        assert after.pop(name)["labels"] == slice_["labels"]
    assert after == {}
    assert person.document("jobs", "mine")["jobs"] == []


@pytest.mark.parametrize(
    ("zones", "zone", "permitted"),
    [
        (ZONE, "", True),
        (ZONE, OTHER, False),
        ("-", OTHER, True),
        ("-", "", True),
        (f"{ZONE},-", OTHER, True),
        ("", "", False),
    ],
)
def test_zones_that_a_person_permits(zones: str, zone: str, permitted: bool) -> None:
    limits = Limits(1, 1.0, ("v3-8",), tuple(filter(None, zones.split(","))))
    with nullcontext() if permitted else pytest.raises(NotAllowed):
        limits.check("v3-8", zone, 1.0)


def test_slices_that_cannot_be_counted_permit_no_other(person: Tpukit) -> None:
    """A known slice can be used and deleted, also if its name is taken in another zone."""
    make_for_agent(person)
    name = ("--labels", f"{LABEL}={OWN}", "--zone", OTHER, "--no-firewall")
    person.succeeds("create", "v3-8", OWN, *name)
    silent = ("--kind", "unreachable", "--method", "*.list", "--times", "100")
    person.succeeds("emulator", "fault", "add", *silent, "--zone", FORBIDDEN)

    async def work() -> None:
        async with agent(person) as call:
            assert "cannot be counted" in await call.refused("up", UP)
            for _ in range(2):
                await call("delete", name=OWN)
            told = await call.refused("delete", {"name": OWN})
            assert f"{FORBIDDEN} did not answer" in told

    asyncio.run(work())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("after", [0.0, 0.5], ids=["at its start", "while it runs"])
def test_a_call_that_is_cancelled_ends_its_command(tmp_path: Path, after: float) -> None:
    """A command that outlived the event loop printed a traceback as the server ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what other tests in this process have left
        gc.collect()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = ("sh", "-c", "exec cat $0", str(pipe))
    tools = Tools(command, Limits(0, 0.0, (), ()), str, {}, tmp_path / "lock", print)

    async def work() -> None:
        with anyio.move_on_after(after):
            await tools.end_due()

    asyncio.run(work())
    for _ in range(3):
        gc.collect()
    assert not [one for one in psutil.Process().children() if str(pipe) in one.cmdline()]


@pytest.mark.journey
@pytest.mark.parametrize("way", ["a cancelled call", "the end of the server"])
def test_a_slice_gets_its_guard_although_nobody_waits_for_it(person: Tpukit, way: str) -> None:
    async def work() -> None:
        async with agent(person) as call:
            up = asyncio.create_task(call.client.call_tool("up", UP))
            while not slices(person):
                await asyncio.sleep(0.1)
            if way == "a cancelled call":
                up.cancel()
                assert "another call" in await call.refused("up", UP)

    asyncio.run(work())
    with exclusively(person.home / "tpukit/state/agent.lock"):  # `up` has ended
        assert [*person.home.glob("tpukit/state/emulator/workers/*/home/*/.tpukit/guard")]


def test_a_slice_that_is_deleted_while_it_is_made_is_not_made_again(person: Tpukit) -> None:
    person.succeeds("emulator", "stop")
    person.succeeds("emulator", "start", "--engine", "portable", "--create-seconds", "10")

    async def work() -> None:
        async with agent(person) as call:
            up = asyncio.create_task(call.client.call_tool("up", UP))
            while not (made := slices(person)):
                await asyncio.sleep(0.1)
            await call("delete", name=next(iter(made)))
            assert "terminated" in str((await up).content)

    asyncio.run(work())
    assert slices(person) == {}


def test_a_slice_that_cannot_be_ended_stays_in_the_list(person: Tpukit) -> None:
    make_for_agent(person)
    denied = ("--kind", "roles", "--permissions", "tpu.nodes.delete")
    person.succeeds("emulator", "fault", "add", *denied)
    person.succeeds("emulator", "clock", "advance", "2.5h")

    async def work() -> None:
        async with agent(person) as call:
            assert [row["name"] for row in (await call("slices"))["slices"]] == [OWN]
            told = await call.refused("run", {"name": OWN, "command": "true"})
            assert "the time of agent-00000001 is over" in told
            person.succeeds("emulator", "fault", "clear")
            await call("delete", name=OWN)

    asyncio.run(work())


def test_a_server_without_limits_ends_nobodys_slice(person: Tpukit) -> None:
    make_for_agent(person)

    async def work() -> None:
        async with agent(person, TPUKIT_AGENT_MAX_HOURS="0") as call:
            assert len((await call("slices"))["slices"]) == 1

    asyncio.run(work())
    assert [*slices(person)] == [OWN]


@pytest.mark.journey
def test_of_calls_at_once_one_makes_the_last_slice(person: Tpukit) -> None:
    make_for_agent(person)

    async def work() -> list[str]:
        async with agent(person) as one, agent(person) as other:
            calls = [call.client.call_tool("up", UP) for call in (one, other, one)]
            results = await asyncio.gather(*calls)
            return [str(result.content) for result in results if result.is_error]

    refused = asyncio.run(work())
    assert len(refused) == 2
    assert all("another call is making a slice" in told for told in refused), refused
    assert len(slices(person)) == 2


@pytest.mark.parametrize("ttl", [("--ttl", "2h"), ()], ids=["its end", "the longest life"])
def test_a_slice_ends_although_no_guard_runs_on_it(person: Tpukit, ttl: tuple[str, ...]) -> None:
    """Also if a program on the slice has removed the label with its end."""
    make(person, OWN, "--labels", f"{LABEL}={OWN}", *ttl)
    make(person, "mine", "--ttl", "1h")
    person.succeeds("emulator", "clock", "advance", "3.5h")

    async def work() -> None:
        async with agent(person) as call:
            told = await call.refused("run", {"name": OWN, "command": "true"})
            assert "is no slice of yours" in told

    asyncio.run(work())
    assert [*slices(person)] == ["mine"]


def test_the_skill_file_has_the_version(person: Tpukit) -> None:
    assert f"version: {tpukit.__version__}\n" in person.succeeds("mcp", "--skill").stdout
