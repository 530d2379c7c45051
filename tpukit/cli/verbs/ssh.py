"""`tpukit ssh`: open a shell on a worker, or run a command there."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, NoReturn

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.python_commands import NO_PROGRAM, cache_variable, explain_missing_program
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import outcome_views
from tpukit.clock import Deadline
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NotFound, TransportFailed, interruption

if TYPE_CHECKING:
    from tpukit.ssh.target import Target
    from tpukit.ssh.worker import RemoteWorker

Terminal = Annotated[bool, Option("--terminal", "-t", help="Give the command a terminal.")]
NoStdin = Annotated[bool, Option("--no-stdin", "-n", help="Give the command no standard input.")]
Tmux = Annotated[
    bool, Option("--tmux", help="Open the tmux session `tpukit`, which survives lost connections.")
]
#: Gives the key on descriptor 3 to the agent that runs this, and becomes the command.
_WITH_KEY = 'ssh-add -q - <&3 3<&-; exec "$@" 3<&-'
_TMUX = "tmux new-session -A -s tpukit"


@flag.connecting
def ssh(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    command: flag.Command = None,
    worker: flag.WorkerNumber = 0,
    terminal: Terminal = False,
    no_stdin: NoStdin = False,
    tmux: Tmux = False,
    recipe: flag.With = "",
    timeout: flag.Timeout = "60s",
) -> View:
    """Open a shell on a worker, or run a command.

    The exit status is the command's. One word after -- is a shell line; several words run exactly
    as given. The timeout is for connecting. OpenSSH runs sessions with a terminal, with its usual
    escapes.

    Examples:
      tpukit ssh demo
      tpukit ssh demo --worker 2 -- 'nproc; free -g'
      tpukit ssh demo -t -- htop
      tpukit ssh demo --with jax
    """
    line = flag.remote_command(command)
    session = terminal or tmux or not line
    _check(toolkit.flags, name, line, session=session, tmux=tmux, no_stdin=no_stdin)
    if recipe and tmux:
        raise BadInput("--tmux may open an existing session: activate the environment inside it")
    patience = flag.seconds(timeout)
    if recipe:
        flag.check_recipe(recipe, toolkit.project_files.recipes.names())
    chosen = toolkit.reach.worker(name, worker, patience)
    if recipe:
        line = _with_environment(toolkit, chosen, recipe, line)
    if not session:
        return _command(toolkit, chosen, line, no_stdin, recipe)
    target = _target(toolkit, chosen, toolkit.deadline(patience), tmux=tmux)
    on_terminal = "-t" if terminal or tmux or (sys.stdin and sys.stdin.isatty()) else "-T"
    remote, proxy = _TMUX if tmux else line, toolkit.reach.dialer.proxy(target)
    words = toolkit.reach.openssh.command(target, on_terminal, remote=remote, proxy=proxy)
    _become(toolkit.closing, words, toolkit.reach.connector.unlocked())


def _check(
    flags: GlobalFlags, name: str, line: str, *, session: bool, tmux: bool, no_stdin: bool
) -> None:
    """Raise `BadInput` if flags contradict each other, or if OpenSSH is missing."""
    if tmux and line:
        raise BadInput("--tmux takes no command: type it in the session")
    if no_stdin and session:
        raise BadInput("a shell or a terminal without standard input makes no sense")
    if flags.as_json and session:
        fix = Fix.command("tpukit", "ssh", name, "--json", "--", "hostname", note="for example")
        raise BadInput("--json needs a command without a terminal", fix=fix)
    if session and not shutil.which("ssh"):
        raise BadInput(
            "shells and terminals need OpenSSH's client, which this machine lacks",
            fix=Fix(note=f"install it; `tpukit ssh {name} -- COMMAND` works without it"),
        )


def _command(
    toolkit: Toolkit, chosen: RemoteWorker, line: str, no_stdin: bool, recipe: str
) -> View:
    console = toolkit.console
    with chosen.connect() as connection:
        try:
            done = connection.run(
                line,
                stdin=b"" if no_stdin else _standard_input(),
                on_output=None if console.as_json else console.write_remote,
                deadline=Deadline.never(toolkit.clock),
                keep=4 << 20 if console.as_json else 16 << 10,
            )
        except TransportFailed:
            chosen.check_slice()
            raise
        except KeyboardInterrupt as interrupt:
            error = interruption(interrupt)
            error.exists = (f"the command may still run on {chosen.label}",)
            error.fix = Fix(note="`tpukit run` ends its command, and `ssh -t` passes Ctrl-C on")
            raise error from None
    document = {"worker": chosen.index, "status": done.status, **done.streams()}
    if done.status == NO_PROGRAM and not recipe:
        explain_missing_program(toolkit, [chosen], recipe, line)
    failed = {} if done.ok else {chosen: outcome_views.output(done)}
    causes, remedies = outcome_views.known_causes(failed)
    return View({"results": [document]}, warnings=causes, next=remedies, status=done.status)


def _with_environment(toolkit: Toolkit, chosen: RemoteWorker, recipe: str, line: str) -> str:
    """Return the line that runs a command, or a shell, with a provisioned environment."""
    from tpukit.jobs import shell_environment
    from tpukit.jobs.python_environments import require_environment
    from tpukit.ssh.programs import shell_line
    from tpukit.ssh.worker_files import venv

    require_environment([chosen], recipe, toolkit.clock)
    variables = cache_variable(toolkit)
    if line:
        return shell_line(
            shell_environment.shell_lines(variables, recipe) + shell_environment.launch(line, {})
        )
    toolkit.console.say(f"in other shells there, type: . ~/{venv(recipe)}/bin/activate")
    return shell_line(shell_environment.shell_with(recipe, variables))


def _target(toolkit: Toolkit, chosen: RemoteWorker, deadline: Deadline, *, tmux: bool) -> Target:
    """Return the target for OpenSSH after we have connected to it, so that errors are ours.

    Skip that if OpenSSH still keeps a connection to the target open.
    """
    ours, target = toolkit.reach.openssh, chosen.target
    if ours.persist and target and not tmux:
        proxy = toolkit.reach.dialer.proxy(target)
        if ours.persists(target, proxy):
            return target
    with chosen.connect() as connection:
        if tmux and not connection.run("tmux -V", deadline=deadline).ok:
            words = ("ssh", chosen.slice, "--worker", str(chosen.index), *toolkit.route.words)
            install = Fix.command("tpukit", *words, "--", "sudo apt-get install -y tmux")
            raise NotFound(f"there is no tmux on {connection.label}", fix=install)
        return connection.target


def _become(closing: ExitStack, words: list[str], key: bytes) -> NoReturn:
    """Replace this process by OpenSSH, so that keys, signals and the terminal go directly to it.

    An agent of its own, which ends with it, has the user's unlocked `key`: OpenSSH would ask for
    its passphrase again.
    """
    closing.close()
    if key and shutil.which("ssh-agent"):
        reading, writing = os.pipe()
        os.write(writing, key)
        os.close(writing)
        os.dup2(reading, 3)
        os.set_inheritable(3, True)
        words = ["ssh-agent", "sh", "-c", _WITH_KEY, "sh", *words]
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and OpenSSH would too
    os.execvp(words[0], words)


def _standard_input() -> Iterator[bytes] | bytes:
    """Return the chunks of standard input, or b"" if it is a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    try:
        descriptor = sys.stdin.fileno()
    except OSError:  # a program that runs us in its own process has replaced it
        return b""
    # Unbuffered: a thread that holds a buffer's lock would abort the interpreter when it exits.
    return iter(lambda: os.read(descriptor, 1 << 16), b"")
