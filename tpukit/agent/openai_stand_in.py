"""A small program in place of a server of language models, for emulated workers.

It has the routes of OpenAI's API and vLLM's counters. Each answer says that no model computed it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, Iterator

from tpukit.agent.loopback import LOOPBACK
from tpukit.agent.main import Home, Request

#: vLLM's default for completions: vllm-project/vllm:vllm/entrypoints/openai/completion/protocol.py.
_MOST_TOKENS = 16
Document = Dict[str, Any]


def serve_openai(home: Home, request: Request) -> None:
    """Serve the model named `model` on the loopback's `port`, until a signal ends it."""
    server = _Server((LOOPBACK, request["port"]), _Handler)
    server.model = request["model"]
    print("CPU stand-in: it serves no model, but has the routes of one", flush=True)
    server.serve_forever()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    model = ""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lock, self.numbers = threading.Lock(), itertools.count(1)
        self.running = self.prompt_tokens = self.tokens = 0
        self.finished = {"stop": 0, "length": 0}

    def count(self, prompt: int, answer: int, reason: str) -> None:
        with self.lock:
            self.prompt_tokens += prompt
            self.tokens += answer
            self.finished[reason] += 1

    def metrics(self) -> str:
        """Return the counters as vLLM does: vllm-project/vllm:vllm/v1/metrics/loggers.py."""
        label = f'engine="0",model_name={json.dumps(self.model)}'
        with self.lock:
            lines = [
                ("gauge", "num_requests_running", label, self.running),
                ("gauge", "num_requests_waiting", label, 0),
                ("counter", "prompt_tokens_total", label, self.prompt_tokens),
                ("counter", "generation_tokens_total", label, self.tokens),
                *(
                    ("counter", "request_success_total", f'{label},finished_reason="{name}"', count)
                    for name, count in self.finished.items()
                ),
            ]
        return "".join(
            f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{labels}}} {value:.1f}\n"
            for kind, name, labels, value in lines
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        path, model = self.path.partition("?")[0], self.server.model
        if path == "/health":
            self._send(b"", "text/plain")
        elif path == "/metrics":
            self._send(self.server.metrics().encode(), "text/plain; version=0.0.4")
        elif path == "/v1/models":
            card = {"id": model, "object": "model", "created": int(time.time())}
            card["owned_by"] = "tpukit, a CPU stand-in"
            self._send_json({"object": "list", "data": [card]})
        else:
            self._refuse(404, "Not Found")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            return self._refuse(404, "Not Found")
        try:
            asked = json.loads(body)
            prompt = _prompt(asked["messages"] if chat else asked["prompt"])
            most = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 0)
            model, stream = asked.get("model") or self.server.model, asked.get("stream")
            counts = (asked.get("stream_options") or {}).get("include_usage")
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            return self._refuse(400, f"{type(error).__name__}: {error}")
        if model != self.server.model:
            return self._refuse(404, f"The model `{model}` does not exist.")
        with self.server.lock:
            self.server.running += 1
        try:
            most = most or (1 << 20 if chat else _MOST_TOKENS)
            self._answer(chat, prompt, most, bool(stream), bool(counts))
        finally:
            with self.server.lock:
                self.server.running -= 1
        return None

    def _answer(self, chat: bool, prompt: str, most: int, stream: bool, counts: bool) -> None:
        told = f"This is tpukit's CPU stand-in for {self.server.model}: no model computed it."
        tokens = [f" {word}" for word in f"{told} You wrote: {prompt}".split()]
        tokens[0] = tokens[0][1:]
        reason = "stop" if len(tokens) <= most else "length"
        tokens = tokens[:most]
        usage = _usage(len(prompt.split()), len(tokens))
        kind = "chat.completion" if chat else "text_completion"
        head: Document = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{next(self.server.numbers)}",
            "object": f"{kind}.chunk" if chat and stream else kind,
            "created": int(time.time()),
            "model": self.server.model,
        }
        self.server.count(usage["prompt_tokens"], len(tokens), reason)
        if stream:
            events = [{**head, "choices": [choice]} for choice in _chunks(chat, tokens, reason)]
            last = [{**head, "choices": [], "usage": usage}] if counts else []
            self._send_events([*events, *last])
            return
        text = "".join(tokens)
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, "logprobs": None, "finish_reason": reason, **said}
        self._send_json({**head, "choices": [choice], "usage": usage})

    def _send_events(self, documents: list[Document]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(ConnectionError):  # the client has left
            for text in itertools.chain(map(json.dumps, documents), ["[DONE]"]):
                self.wfile.write(f"data: {text}\n\n".encode())

    def _refuse(self, code: int, message: str) -> None:
        kind = {400: "BadRequestError", 404: "NotFoundError"}[code]
        error = {"message": message, "type": kind, "param": None, "code": code}
        self._send_json({"error": error}, code)

    def _send_json(self, document: Document, code: int = 200) -> None:
        self._send(json.dumps(document).encode(), "application/json", code)

    def _send(self, body: bytes, kind: str, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Log requests that compute something; others come every few seconds."""
        if self.command == "POST":
            super().log_request(code, size)


def _prompt(given: Any) -> str:
    """Return the text of a prompt, or that of the last message of a chat."""
    if isinstance(given, list):
        last = given[-1]
        given = last["content"] if isinstance(last, dict) else last
    if isinstance(given, list):  # the parts of a message, or tokens
        given = " ".join(part.get("text", "") for part in given if isinstance(part, dict))
    return str(given)


def _usage(prompt: int, answer: int) -> dict[str, int]:
    total = prompt + answer
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": total}


def _chunks(chat: bool, tokens: list[str], reason: str) -> Iterator[Document]:
    """Yield the choices of a stream: one for each token, and the last one with the reason."""
    steps: list[tuple[Document, Any]] = [
        ({"delta": {"content": token}} if chat else {"text": token}, None) for token in tokens
    ]
    if chat:
        steps.insert(0, ({"delta": {"role": "assistant", "content": ""}}, None))
    steps.append(({"delta": {}} if chat else {"text": ""}, reason))
    for said, ended in steps:
        yield {"index": 0, "logprobs": None, "finish_reason": ended, **said}
