"""A corpus made from the discovery documents: one wrong thing each, and all that is right."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import pytest

from emulator.conftest import PLACE
from tpukit.emulator.api.discovery.documents import find_document

Path = tuple[str | int, ...]
NODE = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
SPEC = {"parent": PLACE, "node": NODE}
RULE = {"name": "r", "allowed": [{"IPProtocol": "tcp"}]}
FIREWALLS = "/compute/v1/projects/p/global/firewalls?requestId=7f3c9a52-5f0f-4c7f-9f2e-2f6a8d9b1c30"
DISK = "projects/p/zones/us-central1-a/disks/d"
#: Values that mean something to the service, by the end of a field's path.
MEANT: dict[str, Any] = {
    "acceleratorType": "v2-8",
    "runtimeVersion": "tpu-vm-base",
    "network": "default",
    "subnetwork": "default",
    "email": "tpu@p.iam.gserviceaccount.com",
    "scope": "https://www.googleapis.com/auth/cloud-platform",
    "sourceDisk": DISK,
    "reservationName": f"{PLACE}/reservations/r",
    "sourceServiceAccounts": "a@b.cd",
    "targetServiceAccounts": "a@b.cd",
    "cidrBlock": "10.0.0.0/29",
    "tags": "t",
    "parent": PLACE,
    "nodeCount": 2,
    "nodeIdPrefix": "np",
    "name": "r",
    "sourceRanges": "10.0.0.0/8",
    "destinationRanges": "10.0.0.0/8",
    "targetTags": "t",
    "sourceTags": "t",
    "IPProtocol": "udp",
    "ports": "22",
    "direction": "INGRESS",
    "fingerprint": "AAAA",
}
WRONG = {"boolean": "yes", "integer": "many", "number": "much", "string": 5, "object": 5}
WRONG_TEXT = {
    "google-datetime": "tomorrow",
    "google-duration": "1 minute",
    "int64": "9223372036854775808",
    "uint64": "-1",
    "int32": 2**31,
    "uint32": -1,
    "byte": "a b",
}


@dataclass
class Method:
    """A create that the corpus varies: where it is sent, its message, and what is right for it."""

    document: str
    message: str
    target: str
    base: dict[str, Any]

    @cached_property
    def schemas(self) -> dict[str, Any]:
        return find_document(self.document).document["schemas"]

    def leaves(self, schema: Any = None, path: Path = ()) -> Iterator[tuple[Path, Any]]:
        """Yield every field that a client may set, at any depth, with its schema."""
        schema = schema or self.schemas[self.message]
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"]]
        if "properties" in schema:
            for name, inner in schema["properties"].items():
                if not inner.get("readOnly") and name != "selfLink":
                    yield from self.leaves(inner, (*path, name))
        elif schema["type"] == "array":
            yield from self.leaves(schema["items"], (*path, 0))
        elif "additionalProperties" in schema:
            yield from self.leaves(schema["additionalProperties"], (*path, "k"))
        else:
            yield path, schema

    def call(self, api: Any, number: int, body: Any, query: str = "") -> tuple[int, Any]:
        """Send a body in a project of its own."""
        given = json.loads(json.dumps(body).replace("projects/p/", f"projects/p{number}/"))
        target = self.target.replace("projects/p/", f"projects/p{number}/")
        return api.call("POST", f"{target}&{query}", given)


METHODS = [
    Method("tpu.v2", "Node", f"/v2/{PLACE}/nodes?nodeId=x", NODE),
    Method("tpu.v2alpha1", "Node", f"/v2alpha1/{PLACE}/nodes?nodeId=x", NODE),
    *(
        Method(
            f"tpu.{version}",
            "QueuedResource",
            f"/{version}/{PLACE}/queuedResources?queuedResourceId=x",
            {"tpu": {"nodeSpec": [SPEC]}},
        )
        for version in ("v2", "v2alpha1")
    ),
    Method("compute.v1", "Firewall", FIREWALLS, RULE),
]


def placed(base: Any, path: Path, value: Any) -> Any:
    """Return a copy of a JSON value in which `path` leads to `value`; None takes it away."""
    deepcopy = copy.deepcopy(base)
    here = deepcopy
    for step, then in pairwise(path):
        empty: Any = [] if then == 0 else {}
        if isinstance(here, list):
            here.extend([empty] if not here else [])
            here = here[0]
        else:
            here = here.setdefault(step, empty)
    if isinstance(here, list):
        here[:] = [value]
    elif value is None:
        here.pop(path[-1], None)
    else:
        here[path[-1]] = value
    return deepcopy


def right_value(path: Path, schema: Any) -> Any:
    name = path[-1] if path[-1] != 0 else path[-2]
    if name in MEANT:
        return MEANT[name]
    if "enum" in schema:
        return schema["enum"][-1]
    form = schema.get("format", "")
    texts = {"google-datetime": "2099-01-01T00:00:00.5Z", "google-duration": "60s", "int64": "5"}
    values = {"boolean": True, "integer": 5, "number": 0.5, "any": {}}
    return texts.get(form) or values.get(schema["type"], "text")


def completed(body: Any, path: Path) -> Any:
    """Return a body with what one of its fields cannot be without."""
    if "acceleratorConfig" in path:
        place = path.index("acceleratorConfig")
        body = placed(body, path[: place + 1], {"type": "V3", "topology": "2x2"})
        body = placed(body, (*path[:place], "acceleratorType"), None)
    if "nodeIdPrefix" in path or "workloadType" in path:
        body = placed(body, (*path[:-1], "nodeCount"), 2)
    if "dataDisks" in path and path[-1] != "sourceDisk":
        place = path.index("dataDisks")
        body = placed(body, (*path[: place + 2], "sourceDisk"), DISK)
    if "denied" in path:
        body = placed(placed(body, ("denied", 0, "IPProtocol"), "tcp"), ("allowed",), None)
    return body


def snaked(value: Any) -> Any:
    """Return a body with the fields as protobuf spells them."""
    if isinstance(value, list):
        return [snaked(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", k).lower(): snaked(v) for k, v in value.items()}


def mistakes(method: Method) -> Iterator[tuple[Any, str]]:
    """Yield bodies with one thing wrong, and the name that the refusal has to have."""
    for path, schema in method.leaves():
        steps = [step for step in path if isinstance(step, str)]
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", steps[-1]).lower()
        name = "[0].value" if name == "k" else name
        if schema["type"] == "any":
            continue
        if "enum" in schema:
            yield placed(method.base, path, "NOT_THERE"), name
        if text := WRONG_TEXT.get(schema.get("format", "")):
            yield placed(method.base, path, text), name
        yield (
            placed(method.base, path, WRONG[schema["type"]] if "format" not in schema else {}),
            name,
        )
        yield placed(method.base, path, [1]), name
        if path[-1] != 0 and path[-1] != "k":
            misspelt = f"{path[-1]}x"
            yield placed(method.base, (*path[:-1], misspelt), right_value(path, schema)), misspelt


def right_ones(method: Method) -> Iterator[Any]:
    for path, schema in method.leaves():
        body = completed(placed(method.base, path, right_value(path, schema)), path)
        yield body
        if method.message != "Firewall":
            yield snaked(body)


@pytest.mark.process
def test_every_mistake_of_the_corpus_is_refused_by_its_name(api):
    made = [(method, *mistake, "") for method in METHODS for mistake in mistakes(method)]
    queries = ("nodeID=a", "request_idd=a", "alt=html", "prettyPrint=5x", "pageSize=1")
    made += [(m, m.base, query.partition("=")[0], query) for m in METHODS for query in queries]
    for number, (method, body, name, query) in enumerate(made):
        status, answer = method.call(api, number, body, query)
        assert (status, answer["error"].get("status")) == (400, "INVALID_ARGUMENT"), body
        assert name in answer["error"]["message"], body
        assert answer["error"]["details"][0]["fieldViolations"], body
    assert len(made) >= 300
    state = api.server.service.context.state
    assert (state.nodes, state.queued_resources, state.firewalls) == ({}, {}, {})


@pytest.mark.full_size
def test_everything_right_of_the_corpus_is_accepted(api):
    made = [(method, body) for method in METHODS for body in right_ones(method)]
    refused = [
        (method.document, body, answer["error"]["message"])
        for number, (method, body) in enumerate(made)
        for status, answer in [method.call(api, number, body)]
        if status != 200
    ]
    assert refused == []
    assert len(made) >= 300
