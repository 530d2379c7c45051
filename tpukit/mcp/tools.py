"""The tools: each runs one command of tpukit, on slices with the agent's label only."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from tpukit import errors, paths
from tpukit.errors import BadInput, Fix, NotAllowed, TpukitError
from tpukit.mcp.limits import ALL, Limits
from tpukit.slices import lifetime, naming
from tpukit.text import one_line

Json = dict[str, Any]
#: The label of a slice that an agent made; its value is the slice's name. Commands select slices
#: by it, so that a name alone never reaches a slice that somebody else made.
LABEL = "tpukit-agent"
_NAME = re.compile(r"agent-[0-9a-f]{8}")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
#: The most characters of one text in an answer; an agent reads all of it.
_LONGEST = 20_000
#: Starts a command that goes on when this server ends, or when the call is cancelled.
_OUTLIVING = ("sh", "-c", '"$@" & wait $!', "sh")
_ENDING_SECONDS = 5  #: the longest wait for the end of another command
_ENDING_TENTHS = 600  #: the longest wait for the end of such a command, in tenths of a second


class Tools:
    """The tools of one server. `command` are the words that start tpukit for the same cloud.

    Every tool raises `TpukitError`. `owner` returns the person's owner label, `rates` are the
    person's prices of a chip for an hour. `say` gets errors that concern no call.
    """

    def __init__(
        self,
        command: Sequence[str],
        limits: Limits,
        owner: Callable[[], str],
        rates: Mapping[str, float],
        lock: Path,
        say: Callable[[str], None],
    ) -> None:
        self._command = tuple(command)
        self._limits = limits
        self._owner = owner
        self._rates = rates
        self._lock = lock
        self._say = say

    async def limits(self) -> Json:
        """Show what a person permits: slices, hours, types and zones (`-` stands for all)."""
        limits = self._limits
        return {
            "max_slices": limits.slices,
            "max_hours": limits.hours,
            "types": list(limits.types),
            "zones": list(limits.zones),
        }

    async def find_capacity(self, accelerator_type: str) -> Json:
        """Show which zones offer a type, and what earlier requests for it came to."""
        kind = await self._run("types", _type(accelerator_type))
        earlier = await self._run("zones", "--capacity", _type(accelerator_type))
        zones = [zone for type_ in kind["types"] for zone in type_["zones"]]
        permitted = [zone for zone in zones if {zone, ALL} & {*self._limits.zones}]
        return {"zones": zones, "permitted": permitted, "attempts": earlier["attempts"]}

    async def estimate(self, accelerator_type: str, hours: float, spot: bool = False) -> Json:
        """Return the price of a slice for so many hours, by the person's own rates.

        The price is null if the person has set no rate for it.
        """
        bought = "spot" if spot else "on-demand"
        price = lifetime.rate(_type(accelerator_type), bought, self._rates)
        return {"price": None if price is None else round(price * hours, 2)}

    async def slices(self) -> Json:
        """List your slices. Each bills until it is deleted; `seconds_left` says when it ends."""
        own, silent = await self._own()
        shown = ("name", "zone", "accelerator_type", "state", "provisioning", "lifetime")
        rows = [{key: slice_[key] for key in shown} for slice_ in own]
        return {"slices": rows, "unreachable": silent}

    async def up(
        self,
        accelerator_type: str,
        hours: float,
        recipe: str = "",
        zone: str = "",
        spot: bool = False,
        name: str = "",
    ) -> Json:
        """Create a slice that ends after `hours`, install a recipe (else JAX), test every device.

        It takes minutes, and returns the slice's name. If it fails, the slice may exist: call
        `slices`. If the call is cancelled, the work goes on. With the name of a slice of yours, it
        goes on with that one. Raises `NotAllowed` beyond the limits.
        """
        self._limits.check(_type(accelerator_type), zone, hours)
        with_ = _matches(re.compile(r"[a-z0-9_]{0,40}"), recipe, "recipe")
        paths.private_directory(self._lock.parent)
        try:
            with paths.exclusively(self._lock, wait=False) as descriptor:
                os.truncate(descriptor, 0)
                own, silent = await self._own()
                if silent:
                    what = f"{', '.join(map(one_line, silent))} did not answer"
                    raise NotAllowed(f"{what}, so your slices cannot be counted")
                if name:
                    zone = _place(self._usable(own, silent, name), zone)
                    self._limits.check(_type(accelerator_type), zone, hours)
                else:
                    self._limits.check_number(len(own))
                    name = f"agent-{secrets.token_hex(4)}"
                words = ["up", _type(accelerator_type), name, "--labels", f"{LABEL}={name}"]
                words += ["--ttl", f"{hours * 60:.0f}m", *self._places(zone)]
                words += ["--with", with_] if with_ else []
                words += ["--spot"] if spot else []
                return await self._run(*words, keep=descriptor, outlives=name)
        except BlockingIOError:
            what = "another call is making a slice"
            raise NotAllowed(what, fix=Fix(note="try again when it has ended")) from None

    async def run(
        self, name: str, command: str, deadline_minutes: float = 10, detach: bool = False
    ) -> Json:
        """Run a shell line on every worker of your slice, and return what it printed.

        With `detach`, it goes on after this call: read its output with `logs`.
        """
        ends = ["--detach"] if detach else ["--deadline", f"{deadline_minutes * 60:.0f}s"]
        return await self._on("run", name, *ends, "--", command)

    async def logs(self, name: str, run: str = "", lines: int = 100) -> Json:
        """Return the last lines of a detached run, by default of the one that started last."""
        words = [_matches(_RUN, run, "run")] if run else []
        return await self._on("logs", name, *words, "--tail", str(max(1, lines)), as_json=False)

    async def diagnose(self, name: str, command: str) -> Json:
        """Find out why the steps of a training program are slow.

        The program takes its batches from `tpukit_steps`: `from tpukit_steps import steps`, then
        `for batch in steps(loader):`.
        """
        return await self._on("diagnose", name, "--", command)

    async def delete(self, name: str) -> Json:
        """Delete your slice, which ends its bill; a call of `up` for it ends, too."""
        await self._end_up(name)
        return await self._delete(_named(*await self._listed(), name))

    async def _end_up(self, name: str) -> None:
        """End the `up` of a slice, which would make the slice again in another zone."""
        paths.private_directory(self._lock.parent)
        told = ""
        for _ in range(_ENDING_TENTHS):
            try:
                with paths.exclusively(self._lock, wait=False):
                    return
            except BlockingIOError:
                maker = self._lock.read_text(encoding="utf-8")
            whose, _, group = maker.partition(" ")
            if whose != name:
                return
            if maker != told:
                told = maker
                with suppress(ProcessLookupError):
                    os.killpg(int(group), signal.SIGTERM)
            await asyncio.sleep(0.1)
        raise TpukitError(f"the call that makes {name} does not end", fix=Fix(note="try again"))

    async def end_due(self) -> None:
        """Delete the agent's slices whose time is over, also if no guard on the slice does it."""
        await self._own()

    async def _own(self) -> tuple[list[Json], list[str]]:
        """Return the agent's slices, and the zones that did not answer; end those that are due."""
        listed, silent = await self._listed()
        own = []
        for slice_ in listed:
            if not (self._is_due(slice_["lifetime"]) and _is_made(slice_)):
                own.append(slice_)
                continue
            try:
                await self._delete(slice_)
            except errors.NotFound:
                pass
            except TpukitError as error:  # it still bills, so it stays in the list
                self._say(error.summary())
                own.append(slice_)
        return own, silent

    async def _listed(self) -> tuple[list[Json], list[str]]:
        """Return the agent's slices, and the zones that did not answer."""
        listed, owner = await self._run("list", "--zone", "-"), self._owner()
        own = [
            slice_
            for slice_ in listed["slices"]
            if LABEL in slice_["labels"] and naming.is_owner(owner, slice_["labels"])
        ]
        return own, listed["unreachable"]

    async def _delete(self, slice_: Json) -> Json:
        return await self._run("delete", *_selected(slice_), "--yes")

    def _is_due(self, life: Json) -> bool:
        # The label of the end is on the slice, where its programs might change it.
        over = life["seconds_left"] is not None and life["seconds_left"] <= 0
        return over or 0 < self._limits.hours <= (life["hours"] or 0)

    def _places(self, zone: str) -> list[str]:
        """Return the flags for the permitted zones, or for one of them."""
        if zone:
            return ["--zones", zone]
        if ALL in self._limits.zones:
            return ["--anywhere"]
        return ["--zones", ",".join(self._limits.zones)]

    async def _on(self, verb: str, name: str, *words: str, as_json: bool = True) -> Json:
        """Run a command on one slice of the agent, unless its time is over."""
        slice_ = self._usable(*await self._own(), name)
        return await self._run(verb, *_selected(slice_), *words, as_json=as_json)

    def _usable(self, own: Sequence[Json], silent: Sequence[str], name: str) -> Json:
        """Return the agent's slice of that name, whose time is not over."""
        slice_ = _named(own, silent, name)
        if self._is_due(slice_["lifetime"]):
            raise NotAllowed(f"the time of {name} is over", fix=Fix(note="call `delete`"))
        return slice_

    async def _run(
        self, *words: str, as_json: bool = True, keep: int = -1, outlives: str = ""
    ) -> Json:
        """Run a command, and return its document with its status.

        It can ask nobody. `keep` is a descriptor that it holds. If it `outlives` the call, it goes
        on when the call is cancelled or the server ends; that name and its process group are then
        in the file of `keep`. Raises the error of its document.
        """
        output = ["--json"] if as_json else []
        try:
            with anyio.CancelScope(shield=True):  # else asyncio loses it, and prints a traceback
                process = await asyncio.create_subprocess_exec(
                    *(*(_OUTLIVING if outlives else ()), *self._command, *output, *words),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env={**os.environ, "CLOUDSDK_CORE_DISABLE_PROMPTS": "0"},  # which would approve
                    pass_fds=() if keep < 0 else (keep,),
                    start_new_session=bool(outlives),
                )
        except (OSError, ValueError) as error:  # too long, or with a zero byte
            raise BadInput(f"{words[0]} cannot be started", why=one_line(str(error))) from error
        if outlives:
            os.pwrite(keep, f"{outlives} {process.pid}".encode(), 0)
        try:
            stdout, stderr = await process.communicate()
        finally:
            if process.returncode is None:  # the call was cancelled: tpukit ends in good order
                process.terminate()
                if not outlives:
                    with anyio.move_on_after(_ENDING_SECONDS, shield=True):
                        await process.communicate()
        text = stdout.decode(errors="replace")
        if not as_json:
            if process.returncode:
                told = stderr.decode(errors="replace").strip().removeprefix("error: ")
                raise TpukitError(_shortened(told))
            return {"output": _shortened(text)}
        try:
            document: Json = json.loads(text)
        except ValueError:
            what = f"tpukit {words[0]} ended with {process.returncode}"
            raise TpukitError(what, why=_shortened(stderr.decode(errors="replace"))) from None
        if "error" in document:
            raise errors.from_document(document["error"])
        return {**_shortened(document), "status": process.returncode}


def _is_made(slice_: Json) -> bool:
    """Return True if `up` made a slice: its name and its label agree."""
    name = slice_["name"]
    return bool(_NAME.fullmatch(name)) and slice_["labels"].get(LABEL) == name


def _named(own: Sequence[Json], silent: Sequence[str], name: str) -> Json:
    """Return the agent's slice of that name; `silent` are the zones that did not answer."""
    found = [slice_ for slice_ in own if slice_["name"] == name and _is_made(slice_)]
    if found:
        return found[0]
    if silent and _NAME.fullmatch(name):
        what = f"{', '.join(map(one_line, silent))} did not answer"
        raise TpukitError(f"{what}, and {name} is in no other zone")
    raise _not_yours(name)


def _selected(slice_: Json) -> tuple[str, ...]:
    """Return the words that select one slice of the agent: by its zone, and by its label."""
    return f"{LABEL}={slice_['name']}", "--zone", slice_["zone"]


def _place(slice_: Json, zone: str) -> str:
    """Return the zone of an existing slice; raise `BadInput` if another one is wanted."""
    if zone in ("", slice_["zone"]):
        return str(slice_["zone"])
    raise BadInput(f"{slice_['name']} is in {slice_['zone']}, not in {one_line(zone)[:60]}")


def _not_yours(name: str) -> BadInput:
    fix = Fix(note="call `slices`, which lists your slices")
    return BadInput(f"{one_line(name)[:60]} is no slice of yours", fix=fix)


def _type(name: str) -> str:
    return _matches(re.compile(r"[A-Za-z0-9]{1,20}-[0-9]{1,6}"), name, "accelerator type").lower()


def _matches(pattern: re.Pattern[str], text: str, noun: str) -> str:
    """Return the text; raise `BadInput` if it cannot be such a name, as if it were a flag."""
    if not pattern.fullmatch(text):
        raise BadInput(f'"{one_line(text)[:60]}" is not the name of a {noun}')
    return text


def _shortened(value: Any) -> Any:
    """Return a document whose long texts have lost their middle."""
    if isinstance(value, Mapping):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if isinstance(value, str) and len(value) > _LONGEST:
        half, left = _LONGEST // 2, len(value) - _LONGEST
        return f"{value[:half]}\n… {left} characters left out …\n{value[-half:]}"
    return value
