"""The layout of help pages: commands in sections, and flags without the global ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from typer.core import TyperCommand, TyperGroup

from tpukit.cli.global_flags import GlobalFlags

#: Replaces the name of a slice that was left out: no argument of a program can contain this.
LEFT_OUT = "\0"
#: The commands in the order of the help page and the README. The summaries repeat the docstrings'
#: first lines, because reading the docstrings would load the whole program.
SECTIONS = {
    "The main job": {"up": "Create, reach, provision and test a slice."},
    "Slices": {
        "create": "Create a slice and wait until it is READY and lets you in.",
        "list": "List the slices of all zones, or of --zone.",
        "describe": "Show one slice.",
        "adopt": "Take over a slice that another tool or another owner has made.",
        "extend": "Change how long a slice may live.",
        "wait": "Wait until a slice is in a state.",
        "update": "Change labels, tags, metadata and data disks of a slice.",
        "start": "Start stopped slices and wait until they are READY.",
        "stop": "Stop slices and wait until they are STOPPED.",
        "delete": "Delete slices and wait until they are gone.",
        "reap": "Delete dead and expired slices and queued resources, in all zones.",
        "queue": "Wait in Google's queue for a slice or a multislice.",
        "types": "List accelerator types and their zones.",
        "zones": "List the zones that the API shows you, with the generations that they offer.",
        "versions": "List the runtime versions of a zone.",
    },
    "Their workers": {
        "firewall": "Show, open and close the way to port 22.",
        "provision": "Install frameworks and run system steps on every worker.",
        "smoke": "Compute on every device of every worker.",
    },
    "At work": {
        "ssh": "Open a shell on a worker, or run a command.",
        "run": "Run a command once on every worker.",
        "train": "Push this folder, run a command there on every worker, and follow it to its end.",
        "serve": "Serve a model on a slice, and reach it on this machine.",
        "cp": "Copy files and folders to workers or from them.",
        "push": "Copy a working tree to every worker.",
        "top": "Show the load of every worker and its chips.",
        "fit": "Find out whether a training step fits into the memory of a type, without a TPU.",
        "diagnose": "Find out why the steps of a training program are slow.",
        "profile": "Capture a trace of a running program, for XProf.",
    },
    "Jobs": {
        "jobs": "List the runs on every worker; without NAME, on all of your READY slices.",
        "logs": "Print the output of a detached run.",
        "attach": "Follow a detached run to its end and return its exit status.",
        "kill": "End a run on every worker, detached or attached.",
        "watch": "Keep a command running on a slice that may be lost.",
    },
    "Other tools": {
        "ssh-config": "Let VS Code, rsync, scp and mosh reach workers.",
        "forward": "Reach ports of a worker on this machine.",
        "report": "Write one HTML page about a slice, its checks, environments and runs.",
        "notebook": "Open Jupyter on a worker, with the provisioned environment.",
        "ray": "Join the workers of slices to a Ray cluster.",
        "mcp": "Serve tools for coding agents on standard input and output.",
    },
    "Settings and state": {
        "config": "Show and change settings, and trust project files.",
        "completion": "Print the script for completion in a shell.",
        "init": "Set the project and the zone, and check everything that the first slice needs.",
        "doctor": "Check the account, the project and this machine, and with NAME a slice.",
        "explain": "Explain an error text, a state or an exit code.",
        "help": "Explain flags, variables, exit codes, or a command.",
    },
    "Without an account": {"emulator": "A Cloud TPU API and firewall API on this machine."},
}
SUMMARIES = {name: summary for names in SECTIONS.values() for name, summary in names.items()}
#: Those that are groups of commands.
GROUPS = ("firewall", "provision", "emulator", "config", "queue", "ray")
VERBS = tuple(name for name in SUMMARIES if name not in GROUPS)
#: A command with more parameters has a section of flags for each subject.
_MANY = 24
_SUBJECTS = {
    "Capacity": "zones anywhere types keep_trying max_wait"
    " spot preemptible reserved reservation on_demand best_effort flex_start max_run_duration",
    "Network": "source_ranges no_firewall network subnetwork internal_ips tags"
    " iap jump accept_new_host_keys",
    "Workers": "runtime_version allow_unfit_runtime data_disks service_account metadata"
    " with_ recipe requirements index editable",
    "Lifetime and labels": "ttl idle keep recreate purpose labels",
}
_GLOBAL = {field.name for field in fields(GlobalFlags)}
_MORE = (
    "Global flags, --zone and --json among them: tpukit help flags",
    "More: tpukit help environment, tpukit help exit-codes",
    "Try it without an account: tpukit --local up v3-8",
)


class Command(TyperCommand):
    """A command; its help page leaves out the global flags, which have their own page."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_name(self, ctx, args))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return _usage(super().collect_usage_pieces(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_flags(self, ctx, formatter)
        formatter.write(f"\n{_MORE[0]}\n")


class Group(TyperGroup):
    """A group of commands; the program itself lists its commands in sections.

    `default` names the command to run if the word after the group's name is none of its commands.
    """

    default = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.default and args and args[0] not in (*self.commands, "--help", "-h"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return _usage(super().collect_usage_pieces(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        root = ctx.parent is None
        sections = SECTIONS if root else {"Commands": self.commands}
        wide = max(map(len, self.commands))
        for title, names in sections.items():
            rows = [
                (f"{name:<{wide}}", self.commands[name].get_short_help_str(limit=200))
                for name in names
                if name in self.commands
            ]
            with formatter.section(title):
                formatter.write_dl(rows)
        _write_flags(self, ctx, formatter)
        for line in _MORE if root else _MORE[:1]:
            formatter.write(f"\n{line}" if line is _MORE[0] else line)
            formatter.write("\n")


def own_parameters(parameters: Iterable[Any]) -> list[Any]:
    """Return the parameters of a command except the global flags."""
    return [parameter for parameter in parameters if parameter.name not in _GLOBAL]


def _with_name(command: Any, ctx: Any, words: list[str]) -> list[str]:
    """Mark a slice's name as left out if there is none before the `--` of a remote command.

    Without the mark, the first word of the remote command would become the name.
    """
    name = next((param for param in command.params if param.name == "name"), None)
    takes_command = any(param.name == "command" for param in command.params)
    if "--" not in words or not takes_command or name is None or name.required:
        return words
    at = words.index("--")
    given, _, _ = command.make_parser(ctx).parse_args(words[:at])
    if isinstance(given.get("name"), str):
        return words
    return [*words[:at], name.default, *words[at:]]


def _usage(pieces: list[str]) -> list[str]:
    # Typer alone shows a required argument as {NAME}; we show it as NAME.
    flags = {"[OPTIONS]": "[FLAGS]"}
    return [flags.get(piece) or piece.removeprefix("{").removesuffix("}") for piece in pieces]


def _write_flags(command: Any, ctx: Any, formatter: Any) -> None:
    own = own_parameters(command.get_params(ctx))
    many = len(own) > _MANY
    sections: dict[str, list[Any]] = {
        "Arguments": [],
        "Flags": [],
        **{title: [] for title in _SUBJECTS},
    }
    for parameter in own:
        flags = _subject(parameter.name) if many else "Flags"
        title = "Arguments" if parameter.param_type_name == "argument" else flags
        if record := parameter.get_help_record(ctx):
            sections[title].append(record)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def _subject(name: str) -> str:
    """Return the title of a flag's section on the page of a command with many flags."""
    return next((title for title, names in _SUBJECTS.items() if name in names.split()), "Flags")
