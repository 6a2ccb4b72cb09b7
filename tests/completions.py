"""A server of OpenAI's completions protocol in this process: transformers' own greedy generation behind HTTP."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class Served:
    """What the server does; tests change it while it runs."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    window: int | None = 4096
    tells_ids: bool = True
    disturb: Callable[[int], tuple[int, bytes] | None] = lambda number: None  # an answer in place of the right one
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)  # requests for completions
    keys: list[str | None] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def get(self, path: str) -> tuple[int, bytes]:
        if path == "/version":
            return 200, b'{"version": "0.32.0"}'
        window = {} if self.window is None else {"max_model_len": self.window}
        model = {"id": "served", "object": "model", "owned_by": "vllm", **window}
        return 200, json.dumps({"object": "list", "data": [model]}).encode()

    def post(self, body: dict[str, Any]) -> tuple[int, bytes]:
        with self.lock:
            number = len(self.asked)
            self.asked.append(body)
        if instead := self.disturb(number):
            return instead
        with self.lock:
            return 200, json.dumps({"object": "text_completion", "choices": [self.completed(body)]}).encode()

    @torch.no_grad()
    def completed(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["temperature"] == 0
        assert body["model"] == "served"
        ids = torch.tensor([body["prompt"]])
        mask, most = torch.ones_like(ids), body["max_tokens"]
        made = self.model.generate(ids, attention_mask=mask, max_new_tokens=most, do_sample=False, pad_token_id=0)
        written = made[0, ids.shape[1] :].tolist()
        choice: dict[str, Any] = {"index": 0, "text": self.tokenizer.decode(written, skip_special_tokens=True)}
        if self.tells_ids:
            choice["token_ids"] = written
        return choice


@contextmanager
def serving(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **how: Any) -> Iterator[Served]:
    """Serve a model on a free port of the loopback address."""
    served = Served(model, tokenizer, **how)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(*served.get(self.path))

        def do_POST(self) -> None:
            served.keys.append(self.headers.get("Authorization"))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply(*served.post(body))

        def reply(self, status: int, content: bytes) -> None:
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                return  # the client did not wait

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        served.url = f"http://127.0.0.1:{http.server_port}"
        try:
            yield served
        finally:
            http.shutdown()
            thread.join()
