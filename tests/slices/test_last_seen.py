"""What is said to be left where something ends early."""

from __future__ import annotations

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud, json_reply, scripted

from tpukit.errors import Fix, Interrupted, NameTaken, NotFound, TpukitError
from tpukit.google.tpu import CloudTpu
from tpukit.slices.last_seen import LastSeen, in_list, naming_what_exists


@pytest.mark.parametrize(("bills", "word"), [(True, "bills"), (False, "stays")])
def test_a_slice_that_is_left_bills_unless_it_is_emulated(bills: bool, word: str) -> None:
    seen = LastSeen("demo", "zone", "READY", bills)
    assert seen.exists() == [
        f"slice demo in zone, READY when last seen; it {word} until it is deleted"
    ]
    (leaving,) = LastSeen("demo", "zone", "DELETING", bills).exists()
    assert leaving.endswith(f"it {word} until it is gone")


def test_an_interruption_names_what_exists_and_how_to_delete_it() -> None:
    with pytest.raises(Interrupted) as caught, naming_what_exists(LastSeen("demo", "z", "READY")):
        raise KeyboardInterrupt
    assert caught.value.exists == tuple(LastSeen("demo", "z", "READY").exists())
    assert str(caught.value.fix) == "tpukit delete demo --zone z"


def test_an_error_about_something_on_the_slice_names_the_slice_too_and_once() -> None:
    """A job that outlasts `up` exists, and so does its slice, which bills."""
    seen, job = LastSeen("demo", "z", "READY"), "job a on the worker"
    with pytest.raises(TpukitError) as caught, naming_what_exists(seen), naming_what_exists(seen):
        raise TpukitError("it failed", exists=(job,), fix=Fix(note="run it again"))
    assert caught.value.exists == (*seen.exists(), job)
    assert str(caught.value.otherwise) == "tpukit delete demo --zone z"


def test_an_interruption_before_the_first_look_says_that_nobody_has_looked() -> None:
    for zone, place in (("z", ["--zone", "z"]), ("", [])):
        with pytest.raises(Interrupted) as caught, naming_what_exists(LastSeen("demo", zone)):
            raise KeyboardInterrupt
        error = caught.value
        assert error.exists == ()
        assert "was not looked up yet" in error.why
        assert error.fix == Fix.command("tpukit", "describe", "demo", *place)
        assert error.otherwise == Fix.command("tpukit", "delete", "demo", *place)
    looked = LastSeen("demo", "z")
    looked.looked = True
    with pytest.raises(Interrupted) as caught, naming_what_exists(looked):
        raise KeyboardInterrupt
    assert caught.value.why == ""


def test_a_name_that_is_somebody_else_s_and_a_slice_never_seen_are_not_ours_to_name() -> None:
    for error, seen in (
        (NameTaken("taken", retry="other-zone"), LastSeen("demo", "z", "READY")),
        (TpukitError("refused"), LastSeen("demo", "z")),
    ):
        with pytest.raises(TpukitError) as caught, naming_what_exists(seen):
            raise error
        assert caught.value.exists == ()


def test_a_list_without_the_slice_s_zone_does_not_say_that_the_slice_is_gone(cloud: Cloud) -> None:
    silent = json_reply(200, {"unreachable": [f"projects/{PROJECT}/locations/{ZONE}"]})
    gone = json_reply(404, {"error": {"code": 404, "status": "NOT_FOUND", "message": "none"}})
    with scripted(silent, gone) as server:
        tpu = CloudTpu(cloud.session, PROJECT, server.url)
        with pytest.raises(NotFound, match="cannot read slice demo"):
            in_list(tpu.list, tpu.get, ZONE, "demo")
    assert len(server.seen) == 2
