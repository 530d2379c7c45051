"""Exchanges with Google's APIs, each a file, and what an emulator answers to the same requests.

A folder of `exchanges` is one conversation: its files are played in the order of their names, on an
emulator of its own. A file has these keys:

source      where the exchange is public, as owner/repository and path, or an issue
certainty   "google": Google's own answer. "mock": an answer that a mock of the API may have made.
            "pasted": words or fields as people quote them; a field that the file leaves out was not
            quoted, so that it is not compared
setup       requests to the emulator's control plane, before: "VERB path {JSON}"
wait        seconds that pass before the request
request     verb and path, or GRPC and the path of the method
sent        the JSON that was sent
status      the HTTP status, or the name of a gRPC code
headers     as they stood; Vary and its like may come several times
body        the JSON that was answered
text        the file of `texts` that has the words of this refusal
note        what else is to know
absent      fields that were not answered, if the certainty is "pasted"

{project}, {number}, {name} and {operation} stand for the project, its number, the resource and the
operation that was answered last. `<time>` and the other names of `FORMS` stand for any value of
that form: the recorders replace those.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
from google.cloud.tpu_v2 import OperationMetadata
from google.protobuf import json_format

from tpukit.emulator.api.grpc_methods import methods

EXCHANGES = Path(__file__).parent / "exchanges"
FORMS = {
    "<time>": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
    "<number>": r"[1-9]\d*",
    "<cidr>": r"\d+(\.\d+){3}/\d+",
    "<address>": r"\d+(\.\d+){3}",
    "<fingerprint>": r"[-\w+/]{11}=",
    "<account>": r"[^@\s]+@[^@\s]+",
    "<event>": r"0x[0-9a-f]+",
}
#: The hosts of the recorded requests, by the beginning of the path: links in answers lead there.
_HOSTS = {"v2": "tpu.googleapis.com", "compute": "compute.googleapis.com"}
_NAMES = re.compile(r"\{(project|number|name|operation)\}")


@dataclass(frozen=True)
class Exchange:
    """One request, and the answer that was recorded."""

    name: str
    source: str
    certainty: str
    request: str
    status: int | str
    body: Any
    sent: Any = None
    headers: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    wait: float = 0.0
    note: str = ""
    text: str = ""

    @classmethod
    def read(cls, path: Path) -> Exchange:
        given = tomllib.loads(path.read_text())
        texts = {key: json.loads(given[key]) for key in ("sent", "body") if key in given}
        lists = {key: tuple(given[key]) for key in ("headers", "setup", "absent") if key in given}
        return cls(name=f"{path.parent.name}/{path.stem}", **{**given, **texts, **lists})


@dataclass(frozen=True)
class Answer:
    status: int | str
    headers: tuple[str, ...]
    body: Any


@dataclass(frozen=True)
class Difference:
    """A field of an answer that is not as it was recorded."""

    exchange: str
    field: str
    recorded: Any
    answered: Any

    def __str__(self) -> str:
        return f"{self.exchange} {self.field}: recorded {self.recorded}, answered {self.answered}"


ABSENT = "(absent)"


@dataclass
class Conversation:
    """A client of one emulator, and the values that placeholders have."""

    url: str
    token: str
    number: str
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names |= {"project": "p", "number": self.number, "name": "test-1", "operation": ""}

    def play(self, exchange: Exchange) -> Answer:
        for line in exchange.setup:
            self._setup(line)
        if exchange.wait:
            self._call("POST", "/_emulator/v1/clock", {"advance": exchange.wait})
        verb, _, path = self.filled(exchange.request).partition(" ")
        call = self._grpc if verb == "GRPC" else partial(self._call, verb)
        answer = call(path, self.filled(exchange.sent))
        name = answer.body.get("name", "")
        if "operation" in name:
            self.names["operation"] = name.rpartition("/")[2]
        return answer

    def filled(self, value: Any) -> Any:
        """Return a value with what its placeholders stand for."""
        if isinstance(value, dict):
            return {key: self.filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        if isinstance(value, str):
            return _NAMES.sub(lambda found: self.names[found[1]], value)
        return value

    def _setup(self, line: str) -> None:
        verb, path, text = line.split(" ", 2)
        done = self._call(verb, path, self.filled(json.loads(text)))
        assert done.status == 200, done

    def _grpc(self, path: str, document: Any) -> Answer:
        """Call a method over gRPC; the metadata of an operation is shown as JSON shows it."""
        address = self._call("POST", "/_emulator/v1/grpc", {}).body["address"]
        method = methods()[path]
        request = json_format.ParseDict(document, method.request())
        token = [("authorization", f"Bearer {self.token}")]
        with grpc.insecure_channel(address) as channel:
            call = channel.unary_unary(
                path, method.request.SerializeToString, method.response.FromString
            )
            try:
                found = call(request, metadata=token, timeout=60)
            except grpc.RpcError as error:
                return Answer(error.code().name, (), {"error": error.details()})
        metadata = OperationMetadata.pb().FromString(found.metadata.value)
        shown = {"@type": found.metadata.type_url, **json_format.MessageToDict(metadata)}
        return Answer("OK", (), {"name": found.name, "metadata": shown})

    def _call(self, verb: str, path: str, document: Any = None) -> Answer:
        connection = HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        try:
            headers = {"Authorization": f"Bearer {self.token}"}
            if host := _HOSTS.get(path.split("/")[1]):
                headers["Host"] = host
            connection.request(verb, path, document and json.dumps(document), headers)
            response = connection.getresponse()
            lines = tuple(f"{name}: {value}" for name, value in response.getheaders())
            data = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return Answer(response.status, lines, json.loads(data) if is_json else {"": str(data)})
        finally:
            connection.close()


def conversations() -> Mapping[str, list[Exchange]]:
    """Return the exchanges of each folder, in their order."""
    found: dict[str, list[Exchange]] = {}
    for path in sorted(EXCHANGES.glob("*/*.toml")):
        found.setdefault(path.parent.name, []).append(Exchange.read(path))
    return found


def compared(exchange: Exchange, answer: Answer, talk: Conversation) -> list[Difference | None]:
    """Return an entry for every field compared: None for one that is as recorded."""
    recorded = dict(_fields("", talk.filled(exchange.body)))
    answered = dict(_fields("", answer.body))
    pairs: list[tuple[str, Any, Any]] = [("status", exchange.status, answer.status)]
    answered_headers = {line.lower() for line in answer.headers}
    for line in exchange.headers:
        pairs.append((f"header {line}", line, line if line.lower() in answered_headers else ABSENT))
    names = {*recorded, *exchange.absent}
    for name in sorted(names if exchange.certainty == "pasted" else names | answered.keys()):
        pairs.append((name, recorded.get(name, ABSENT), answered.get(name, ABSENT)))
    return [
        None if is_as(*pair) else Difference(exchange.name, name, *pair) for name, *pair in pairs
    ]


def _fields(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a document; an object or list that is empty is one."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _fields(f"{path}.{key}".lstrip("."), each)
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from _fields(f"{path}[{number}]", each)
    else:
        yield path, value


def is_as(recorded: Any, answered: Any) -> bool:
    """Return True if a value has the recorded type, and its constant or form."""
    if not isinstance(recorded, str):
        return type(recorded) is type(answered) and bool(recorded == answered)
    pattern = re.escape(recorded)
    for name, form in FORMS.items():
        pattern = pattern.replace(re.escape(name), form)
    return isinstance(answered, str) and re.fullmatch(pattern, answered) is not None
