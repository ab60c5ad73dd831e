"""The chat endpoint as evaluator, against a small server that speaks the protocol and fails on purpose."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skpo.analysis.endpoint import Asked, Endpoint, RetryError, read_answer
from skpo.cli.app import app
from skpo.errors import ConfigError, RunError


class Server(ThreadingHTTPServer):
    """Answers with the gold answer of the problem, "ok" or what `script` says for the next requests: (status, body)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[tuple[int, bytes]] = []
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.lock, self.running, self.most = threading.Lock(), 0, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
            self.server.seen.append(body)
            self.server.keys.append(self.headers.get("Authorization"))
            status, answer = self.server.script.pop(0) if self.server.script else (200, self.answer(body))
        if self.path != "/v1/chat/completions":
            status, answer = 404, b"no such path"
        with self.server.lock:
            self.server.running -= 1
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "0.01")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def answer(self, body: dict[str, Any]) -> bytes:
        """Right where the beginning holds "good", wrong otherwise."""
        text = " so #2" if "good" in body["messages"][-1]["content"] else " so #3"
        return completion(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def completion(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    return json.dumps({"choices": [{"index": 0, "message": message}], "usage": {"completion_tokens": 3}}).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def endpoint(server: Server, **options: Any) -> Endpoint:
    return Endpoint(server.url, "m", wait=0.01, **options)


ASKED = Asked("1+1=", "good", 0)


def test_request_and_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    assert endpoint(server, key_variable="MY_KEY").ask(ASKED) == (" so #2", 3)
    (body,) = server.seen
    assert server.keys == ["Bearer secret"]
    assert (body["model"], body["seed"], body["temperature"]) == ("m", 0, 1.0)
    assert "1+1=" in body["messages"][1]["content"]
    assert body["messages"][1]["content"].endswith("good")


@pytest.mark.parametrize(
    "failure",
    [(429, b"slow down"), (500, b""), (503, b"busy"), (200, b"<html>"), (200, b'{"choices": []}'), (200, b'{"choices": [{"message": {"content": null}}]}')],
)  # fmt: skip
def test_failures_that_pass_are_tried_again(server: Server, failure: tuple[int, bytes]) -> None:
    server.script = [failure, failure]
    one = endpoint(server)
    assert one.ask(ASKED)[0] == " so #2"
    assert one.retried == 2


def test_failures_that_stay_are_told(server: Server) -> None:
    server.script = [(500, b"broken")] * 3
    kept: list[str] = []
    one = endpoint(server, tries=3, concurrency=1)
    failures = one.ask_all([ASKED, Asked("1+1=", "bad", 0)], lambda a, text, n: kept.append(text))
    assert len(failures) == 1
    assert "HTTP 500" in failures[0]
    assert kept == [" so #3"]


def test_refusals_stop_at_once(server: Server) -> None:
    server.script = [(401, b"bad key")] * 9
    with pytest.raises(RunError, match=r"401.*\$OPENAI_API_KEY"):
        endpoint(server, concurrency=1).ask_all([ASKED, Asked("1+1=", "bad", 0)], lambda *_: None)
    assert len(server.seen) <= 2


def test_no_server_is_a_failure_that_may_pass() -> None:
    with pytest.raises(RetryError):
        Endpoint("http://127.0.0.1:9/v1", "m", tries=1).ask(ASKED)
    with pytest.raises(ConfigError):
        Endpoint("host/v1", "m")


def test_concurrency_is_limited(server: Server) -> None:
    asked = [Asked("q", "good", i) for i in range(12)]
    endpoint(server, concurrency=2).ask_all(asked, lambda *_: None)
    assert len(server.seen) == 12
    assert server.most <= 2


def test_malformed_answers() -> None:
    for raw in (b"", b"[]", b"null", b'{"choices": [{}]}', b'{"choices": [{"message": {"content": 3}}]}'):
        with pytest.raises(RetryError):
            read_answer(raw)


def test_command_asks_and_resumes(server: Server, tmp_path: Path) -> None:
    """Method "a" writes "good" early, so that all its pieces from there on are continued rightly; "b" never does."""
    problems = tmp_path / "p.jsonl"
    problems.write_text('{"prompt": "1+1=", "answer": "2", "id": "x", "verifier": "exact"}\n')
    for name, text in (("a", "a good #2"), ("b", "b fine #2")):
        row = {"id": "x", "samples": [{"text": "no #1", "score": 0.0}, {"text": text, "score": 1.0}]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    words = [
        "analyze", "implicit-advantage", "--run", f"a={tmp_path / 'a.jsonl'}", "--run", f"b={tmp_path / 'b.jsonl'}",
        "--problems", str(problems), "--endpoint", server.url, "--endpoint-model", "m", "--positions", "3",
        "--continuations", "2", "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "8 of 8 requests" in done.output  # two methods, two cuts, two continuations; the end needs none
    assert len(server.seen) == 8
    rows = json.loads((tmp_path / "out" / "analysis-implicit.json").read_text())["rows"]
    found = {(r["method"], round(r["position"], 2)): (r["reward"], r["advantage"]) for r in rows}
    assert found == {
        ("a", 0.33): (0.0, 0.0), ("b", 0.33): (0.0, 0.0), ("a", 0.67): (1.0, 1.0), ("b", 0.67): (0.0, -1.0),
        ("a", 1.0): (1.0, 0.0), ("b", 1.0): (1.0, 0.0),
    }  # fmt: skip
    again = CliRunner().invoke(app, words)
    assert "0 of 8 requests" in again.output
    assert len(server.seen) == 8
