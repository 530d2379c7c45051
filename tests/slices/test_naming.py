"""Names that the API takes, and labels that say whose a slice is."""

from __future__ import annotations

import pytest
from support.local_cloud import Cloud

from tpukit.errors import (
    BadInput,
)
from tpukit.slices import naming


@pytest.mark.parametrize("name", ["a", "demo", "a-1", "x" * 63])
def test_a_name_that_the_api_takes_is_taken(name: str) -> None:
    assert naming.check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A",
        "1a",
        "-a",
        "a-",
        "a_b",
        "a b",
        "a.b",
        "x" * 64,
        "../x",
        "a;rm",
        "ä",
        "a\n",
        "\x1b[m",
    ],
)
def test_a_name_that_the_api_would_refuse_is_refused_before(name: str) -> None:
    with pytest.raises(BadInput, match="is not a slice name") as caught:
        naming.check_name(name)
    suggestion = str(caught.value.fix or "").removeprefix("for example: ")
    assert not suggestion or naming.check_name(suggestion)
    assert "\x1b" not in "".join(caught.value.lines())


@pytest.mark.parametrize("user", ["ada", "a.b@c", "___", "9", "-", "ü", "x" * 90, "a-" * 40])
@pytest.mark.parametrize("accelerator", ["v3-8", "v5litepod-256"])
def test_a_default_name_is_a_name_and_always_the_same(user: str, accelerator: str) -> None:
    name = naming.default_name(user, accelerator)
    assert naming.check_name(name) == name
    assert name.endswith(f"-{accelerator}")
    assert naming.default_name(user, accelerator) == name


def test_two_accounts_never_share_an_owner_and_a_former_label_is_known_if_it_is_unmistakable() -> (
    None
):
    same = [
        "ann.lee@x.com",
        "ann-lee@x.com",
        "ann.lee-x@com",
        f"{'a' * 70}@x.com",
        f"{'a' * 71}@x.com",
    ]
    labels = [naming.owner_label(account) for account in same]
    assert len({*labels}) == len(same)
    assert [naming.label(label) for label in labels] == labels
    assert naming.owner_label(labels[0]) == labels[0]
    for account, known in {"ada@x.com": True, "ada": True, "ann.lee@x.com": False}.items():
        former = {naming.OWNER: naming.label(account)}
        assert naming.is_owner(naming.owner_label(account), former) is known
    assert not naming.is_owner("ada", {})


def test_labels_that_a_user_gives_cannot_stand_in_for_ours(cloud: Cloud) -> None:
    given = {naming.OWNER: "eve", naming.MANAGED: "0", "team": "x"}
    labels = naming.labelled(cloud.request(labels=given), "Ada L", "n").labels
    assert labels == {
        naming.OWNER: "ada-l-71b1e478",
        naming.MANAGED: "1",
        naming.NONCE: "n",
        "team": "x",
    }
