"""`tpukit cp`: copy files and folders to workers or from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import copy_views
from tpukit.clock import Deadline
from tpukit.console import TransferProgress, View
from tpukit.errors import BadInput, Fix, TransportFailed, interruption

if TYPE_CHECKING:
    from tpukit.files.upload import TransferContext

_INSTALL = Fix(note="copy it to the home folder, then: tpukit run NAME -- sudo install FILE PLACE")
#: The state after an interrupt.
_STAYS = "files that have arrived stay; the same command continues from there"

Paths = Annotated[
    list[str],
    Argument(metavar="SOURCE… DESTINATION", help="PATH here, or NAME:PATH on the workers."),
]
Workers = Annotated[
    str,
    Option("--worker", metavar="WORKERS", help="all, 0 or 0,2-5; default: copy to all, or from 0."),
]
NoRelay = Annotated[
    bool,
    Option("--no-relay", help="Send from here to each worker; do not let workers pass files on."),
]

Sudo = Annotated[
    bool, Option("--sudo", help="Read as root on the workers; sudo must need no password.")
]


@flag.connecting
def cp(
    toolkit: Toolkit,
    paths: Paths,
    worker: Workers = "",
    no_relay: NoRelay = False,
    sudo: Sudo = False,
    timeout: flag.Timeout = "60s",
) -> View:
    """Copy files and folders to workers or from them.

    If you run it again after an interruption, it continues. Paths on workers start at the home
    folder. tpukit gives up a worker that makes no progress for as long as the timeout.

    Examples:
      tpukit cp train.py data/ demo:
      tpukit cp 'demo:logs/*.txt' logs/ --worker all
      tpukit cp --sudo demo:/var/log/syslog .
    """
    from tpukit.files import copies
    from tpukit.files.download import NotReadable

    copy = copies.Copy.parse(paths)
    up = copy.direction == "up"
    if sudo and up:
        raise BadInput("--sudo is only for copies from workers", fix=_INSTALL)
    chosen = worker or ("all" if up else "0")
    workers = toolkit.reach.workers(copy.slice, chosen, flag.seconds(timeout))
    verb, silence = "sent" if up else "received", flag.seconds(timeout)
    with metered(toolkit, verb, relay=not no_relay, silence=silence) as context:
        if up:
            return copy_views.copied(copies.upload(copy, workers, context))
        received = copies.fetch(copy, workers, context, sudo=sudo)
    for outcome in received:
        if isinstance(outcome.error, NotReadable) and not sudo:
            outcome.error.fix = Fix.command("tpukit", "cp", "--sudo", "--worker", chosen, *paths)
    return copy_views.received(received)


@contextmanager
def metered(
    toolkit: Toolkit, verb: str, *, relay: bool, silence: float = 60.0, stays: str = _STAYS
) -> Iterator[TransferContext]:
    """Yield a context for transfers; show their progress, and explain an interrupt with `stays`.

    A worker is given up after `silence` seconds without progress.
    """
    from tpukit.files.upload import TransferContext

    connector = toolkit.reach.connector

    def say_lost(error: TransportFailed) -> None:
        if not connector.closed:
            toolkit.console.say(f"{error.summary()}; connecting again")

    meter = TransferProgress(toolkit.console, toolkit.clock, verb)
    try:
        yield TransferContext(
            Deadline.never(toolkit.clock),
            meter,
            relay,
            connector.close,
            say_lost,
            toolkit.console.warn,
            silence,
        )
    except KeyboardInterrupt as signal:
        error = interruption(signal)
        error.exists = (stays,)
        raise error from None
    finally:
        meter.finish()
