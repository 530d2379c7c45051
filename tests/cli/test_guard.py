"""A guard on a real worker of the emulator ends its slice, with no client near."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from cli.conftest import Run
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.errors import TransportFailed
from tpukit.jobs.guard import install_guard, wants_guard

pytestmark = pytest.mark.journey


def test_a_slice_on_the_emulator_ends_by_itself(run: Run, own_emulator: dict[str, str]) -> None:
    run("create", "v3-8", "demo", "--ttl", "1h", environment=own_emulator)
    toolkit = Toolkit(GlobalFlags(local=True), environ=own_emulator)
    found = toolkit.slices.find("demo")
    assert wants_guard(found)
    (worker,) = toolkit.reach.workers(found, "0", 60.0)
    endpoint = toolkit.settings.get("tpu_endpoint")
    # A guard asks the Cloud TPU API alone, where another slice may have the name.
    namesake = replace(found, api="compute")
    report = install_guard(worker, namesake, endpoint, deadline=toolkit.deadline(60.0))
    assert (report.may_delete, report.kept_by) == (None, "")
    report = install_guard(worker, found, endpoint, deadline=toolkit.deadline(60.0))
    assert report.may_delete is True, report
    assert report.account == found.service_account
    assert report.kept_by
    assert run("extend", "demo", "--ttl", "5s", environment=own_emulator).status == 0
    with suppress(TransportFailed):  # the watch looks once a minute: a new one looks now
        install_guard(worker, found, endpoint, deadline=toolkit.deadline(60.0))
    gone = run("wait", "demo", "--for", "gone", "--timeout", "60s", environment=own_emulator)
    assert gone.status == 0, gone.err
