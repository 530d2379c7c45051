"""Every Python that the tests start runs this first: it keeps each command that tpukit suggests.

What keeps them stands before `sys.audit` and is no audit hook: those of Python's are called at
every event, and where a thread that starts has itself traced, so that it is measured, one lets in
other threads that want the same. Python 3.11 refuses that to them, and who started them waits for
ever.
"""

import contextlib
import json
import os
import sys

_FILE = os.environ.get("SUGGESTED_COMMANDS", "")
_seen = set()


def _keep(event, *arguments):
    if event != "tpukit.fix" or arguments in _seen:
        return
    _seen.add(arguments)
    line = json.dumps(arguments[0]).encode() + b"\n"
    with contextlib.suppress(OSError):  # the tests are over, and an emulator of theirs is not
        descriptor = os.open(_FILE, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, line)
        os.close(descriptor)


def _tell(listener):
    audit = sys.audit

    def heard(event, *arguments):
        audit(event, *arguments)
        listener(event, *arguments)

    sys.audit = heard


def _lock_in_c(collectors):
    """Let a signal interrupt a measured program at any moment.

    coverage's C code calls two methods to lock and unlock what all threads share. They are Python,
    so a signal may raise an exception within: what was locked stays so, and each thread that comes
    to a new line waits for ever. The lock's own methods are C, where no signal is seen.
    """
    collectors.lock_data = property(lambda its: its.data_lock.acquire)
    collectors.unlock_data = property(lambda its: its.data_lock.release)
    for collector in collectors._collectors:
        for tracer in collector.tracers:
            tracer.lock_data, tracer.unlock_data = collector.lock_data, collector.unlock_data


if _FILE:
    _tell(_keep)
if os.environ.get("FAILPOINT"):
    import failpoint

    _tell(failpoint.listener(os.environ["FAILPOINT"]))
if "coverage.collector" in sys.modules:
    _lock_in_c(sys.modules["coverage.collector"].Collector)
