"""An OpenAI-compatible chat endpoint as evaluator: told to go on where a partial solution stops (SKPO, arXiv 2604.08690, appendix D).

Speaks `POST {url}/chat/completions` with the standard library. The key comes from an environment variable and is never shown.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from skpo.analysis.lab import digest
from skpo.errors import ConfigError, RunError

INSTRUCTION = (
    "You are given a problem and the beginning of a solution. Continue the solution from exactly where it stops, without repeating "
    "or restarting it, to its final answer. Reply with the continuation alone."
)
LONGEST_WAIT = 60.0  #: seconds between two tries, at most


class RetryError(Exception):
    """A failure that may pass: 408, 409, 429, 5xx, a broken connection, an answer that can't be read. after: seconds asked for."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


@dataclass(frozen=True)
class Asked:
    """One continuation to ask for. number: tells continuations of one partial solution apart (also sent as the seed)."""

    problem: str
    partial: str
    number: int


@dataclass
class Endpoint:
    """url: up to and with /v1. concurrency: requests at a time. tries: per request, with waits of `wait`, twice that, ... seconds."""

    url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    temperature: float = 1.0
    max_tokens: int = 1024
    concurrency: int = 4
    tries: int = 6
    wait: float = 1.0
    timeout: float = 120.0
    retried: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _pause_until: float = 0.0

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigError(f"endpoint {self.url}: expected a URL such as https://host/v1")
        self.url = self.url.rstrip("/")

    def body(self, asked: Asked) -> dict[str, Any]:
        """The request as sent."""
        content = f"Problem:\n{asked.problem}\n\nBeginning of the solution:\n{asked.partial}"
        return {
            "model": self.model,
            "messages": [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": content}],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": asked.number,
        }

    def hash(self, asked: Asked) -> str:
        """What an answer is kept under: the endpoint, and the request as sent."""
        return digest(self.url, self.body(asked))

    def ask_all(self, wanted: Sequence[Asked], keep: Callable[[Asked, str, int], None]) -> list[str]:
        """Ask for all, `concurrency` at a time; `keep(asked, text, tokens)` gets each answer as it comes, in this thread.

        Returns the reasons of requests that failed every try. Raises RunError for a refusal that no retry mends (a wrong
        key, an unknown model), after what is under way has ended.
        """
        failures: list[str] = []
        with ThreadPoolExecutor(self.concurrency) as pool:
            running = {pool.submit(self.ask, a): a for a in wanted}
            try:
                for future in as_completed(running):
                    try:
                        text, tokens = future.result()
                    except RetryError as error:
                        failures.append(str(error))
                    else:
                        keep(running[future], text, tokens)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return failures

    def ask(self, asked: Asked) -> tuple[str, int]:
        """One continuation and its tokens (0 where the endpoint doesn't say), with retries."""
        data = json.dumps(self.body(asked)).encode()
        for attempt in range(self.tries):
            self._wait_for_turn()
            try:
                return self._post(data)
            except RetryError as error:
                if attempt == self.tries - 1:
                    raise
                self._back_off(attempt, error.after)
        raise AssertionError("unreachable")

    def _back_off(self, attempt: int, after: float | None) -> None:
        """Wait before the next try; where the endpoint says for how long, all requests wait."""
        with self._lock:
            self.retried += 1
            if after is not None:
                self._pause_until = max(self._pause_until, time.monotonic() + min(after, LONGEST_WAIT))
        time.sleep(min(LONGEST_WAIT, self.wait * 2**attempt) * random.uniform(0.5, 1.0))

    def _wait_for_turn(self) -> None:
        while (left := self._pause_until - time.monotonic()) > 0:
            time.sleep(left)

    def _post(self, data: bytes) -> tuple[str, int]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.key_variable):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self.url}/chat/completions", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                return read_answer(response.read())
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(300).decode("utf-8", "replace").strip()
            reason = f"HTTP {error.code} from {self.url}: {said}"
            if error.code in (408, 409, 429) or error.code >= 500:
                raise RetryError(reason, _seconds(error.headers.get("Retry-After"))) from None
            hint = f" Is the key in ${self.key_variable}?" if error.code in (401, 403) else ""
            raise RunError(f"{reason}{hint}") from None
        except (OSError, http.client.HTTPException) as error:
            raise RetryError(f"{self.url}: {error or type(error).__name__}") from None


def read_answer(raw: bytes) -> tuple[str, int]:
    """Text and tokens of a chat completion. Raises RetryError for anything else than one."""
    try:
        answer = json.loads(raw)
        text = answer["choices"][0]["message"]["content"]
        tokens = (answer.get("usage") or {}).get("completion_tokens") or 0
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise RetryError(f"an answer that is no chat completion: {raw[:80].decode('utf-8', 'replace')!r}") from None
    if not isinstance(text, str):
        raise RetryError("a chat completion without text")
    return text, int(tokens) if isinstance(tokens, int | float) else 0


def _seconds(text: str | None) -> float | None:
    """Retry-After in seconds; None where it is missing or a date."""
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        return None
