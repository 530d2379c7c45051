"""A multislice is tested slice by slice, and a failure of one hides nothing of the others."""

from __future__ import annotations

import threading

import pytest

from tpukit.errors import DevicesBusy, SmokeFailed, TpukitError
from tpukit.models import Slice
from tpukit.smoke.each_slice import smoke_each
from tpukit.smoke.smoke_report import SmokeReport

SLICES = [Slice(f"pair-{place}", "p", "z", "v3-8", "image", "READY") for place in range(3)]
PASSED = SmokeReport("jax", ())


def test_all_slices_are_tested_at_once_and_each_has_its_report() -> None:
    together = threading.Barrier(len(SLICES), timeout=60)
    reports = {slice_.name: SmokeReport(slice_.name, ()) for slice_ in SLICES}

    def test(slice_: Slice) -> SmokeReport:
        together.wait()
        return reports[slice_.name]

    assert smoke_each(SLICES, test) == list(reports.values())


def test_who_failed_is_named_what_decides_comes_first_and_every_report_is_there() -> None:
    def test(slice_: Slice) -> SmokeReport:
        if slice_ is SLICES[0]:
            raise SmokeFailed("no chips", details={"ok": False})
        if slice_ is SLICES[1]:
            raise DevicesBusy("somebody computes")
        return PASSED

    with pytest.raises(DevicesBusy) as caught:
        smoke_each(SLICES, test)
    assert caught.value.what == "pair-1: somebody computes"
    assert [error.what for error in caught.value.also] == ["pair-0: no chips"]
    told = [(slice_["name"], slice_["smoke"]) for slice_ in caught.value.details["slices"]]
    assert told == [("pair-0", {"ok": False}), ("pair-1", {}), ("pair-2", PASSED.document())]


def test_the_error_of_one_slice_alone_stays_as_it_is() -> None:
    error = SmokeFailed("no chips", details={"ok": False})

    def test(slice_: Slice) -> SmokeReport:
        raise error

    with pytest.raises(TpukitError) as caught:
        smoke_each(SLICES[:1], test)
    assert (caught.value, error.what, error.details) == (error, "no chips", {"ok": False})
