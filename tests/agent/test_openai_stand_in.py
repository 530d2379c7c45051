"""The stand-in answers as a server of models does, and each answer says what it is."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from support.agent_program import agent_words
from support.processes import eventually

from tpukit.agent.loopback import free_ports

pytestmark = pytest.mark.process

MODEL = "Qwen/Qwen3-0.6B"
SAYS = f"This is tpukit's CPU stand-in for {MODEL}: no model computed it."


class Server:
    """The stand-in as a process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port

    def ask(self, path: str, body: object = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        given = body if isinstance(body, str) else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, None if body is None else given)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def document(self, path: str, body: object = None, status: int = 200) -> Any:
        code, text = self.ask(path, body)
        assert code == status, text
        return json.loads(text)

    def counter(self, name: str) -> float:
        """Return a counter, summed over its labels."""
        _, text = self.ask("/metrics")
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    @property
    def answers(self) -> bool:
        try:
            return self.ask("/health")[0] == 200
        except OSError:
            return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    words = agent_words(tmp_path_factory.mktemp("home"), "serve_openai")
    process = subprocess.Popen(words, stdin=subprocess.PIPE)
    started = Server(process, *free_ports(1))
    assert process.stdin
    request = {"port": started.port, "model": MODEL}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.close()
    eventually(lambda: started.answers)
    yield started
    process.kill()
    process.wait()


def test_it_listens_only_on_the_loopback(server: Server) -> None:
    listening = psutil.Process(server.process.pid).net_connections()
    assert {each.laddr for each in listening if each.status == "LISTEN"} == {
        ("127.0.0.1", server.port)
    }


def test_it_lists_its_model_as_a_stand_in(server: Server) -> None:
    (model,) = server.document("/v1/models")["data"]
    assert (model["id"], model["owned_by"]) == (MODEL, "tpukit, a CPU stand-in")


def test_an_answer_to_a_chat_says_that_no_model_computed_it(server: Server) -> None:
    messages = [{"role": "system", "content": "no"}, {"role": "user", "content": "hi there"}]
    said = server.document("/v1/chat/completions", {"model": MODEL, "messages": messages})
    (choice,) = said["choices"]
    assert choice["message"] == {"role": "assistant", "content": f"{SAYS} You wrote: hi there"}
    assert (said["object"], choice["finish_reason"]) == ("chat.completion", "stop")
    usage = said["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_the_parts_of_a_message_are_read(server: Server) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}]
    body = {"messages": [{"role": "user", "content": parts}]}
    text = server.document("/v1/chat/completions", body)["choices"][0]["message"]["content"]
    assert text.endswith("You wrote: look")


def test_a_completion_is_cut_at_the_most_tokens(server: Server) -> None:
    said = server.document("/v1/completions", {"prompt": "hi", "max_tokens": 3})
    assert said["choices"][0]["text"] == "This is tpukit's"
    assert said["choices"][0]["finish_reason"] == "length"
    assert said["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("chat", [True, False])
def test_a_stream_has_the_same_text_in_pieces(server: Server, chat: bool) -> None:
    given = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi"}
    body = {**given, "stream": True, "max_tokens": 5}
    _, text = server.ask("/v1/chat/completions" if chat else "/v1/completions", body)
    *events, last = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert last == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    pieces = [each["delta"].get("content", "") if chat else each["text"] for each in choices]
    assert "".join(pieces) == "This is tpukit's CPU stand-in"
    assert [each["finish_reason"] for each in choices][-2:] == [None, "length"]


def test_a_stream_ends_with_the_usage_if_asked(server: Server) -> None:
    body = {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}
    _, text = server.ask("/v1/completions", body)
    events = [json.loads(line[6:]) for line in text.split("\n\n")[:-2]]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == len(events) - 2
    assert not [event for event in events[:-1] if "usage" in event]


def test_the_counters_grow_with_the_answers(server: Server) -> None:
    names = ("vllm:request_success_total", "vllm:generation_tokens_total")
    before = [server.counter(name) for name in names]
    server.document("/v1/completions", {"prompt": "hi", "max_tokens": 3})
    assert [server.counter(name) for name in names] == [before[0] + 1, before[1] + 3]
    assert server.counter("vllm:num_requests_running") == 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": "hi", "model": "other"}, 404),
        ("/v1/completions", "no JSON", 400),
        ("/v1/completions", "[]", 400),
        ("/v1/chat/completions", {"messages": []}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, 400),
        ("/v1/embeddings", {"input": "hi"}, 404),
    ],
)
def test_a_wrong_request_is_refused_as_the_api_does(
    server: Server, path: str, body: object, status: int
) -> None:
    error = server.document(path, body, status)["error"]
    assert error["code"] == status
    assert error["message"]
