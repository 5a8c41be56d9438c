"""HTTP client for model servers: bounded retries, timeouts, API keys, event streams.

A key comes from an environment variable only and never appears in an error, a record or a page. A
stream is stored as bytes with arrival times and parsed after its end, so that parsing of one answer
does not delay the clock of another.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from spsbench.errors import DataError, UnavailableError, UsageError, first_line

KEY, BASELINE_KEY = "SPS_API_KEY", "SPS_BASELINE_API_KEY"
AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))  # statuses that are retried
LONGEST_WAIT = 30.0  # seconds, upper limit for Retry-After
LARGEST = 64 * 2**20  # bytes of one answer
LOOPBACK = ("localhost", "127.0.0.1", "::1")
DONE = b"[DONE]"
T = TypeVar("T")
FIRST = "/v1/models"  # the page by which a server is found


class RefusedError(DataError):
    """A server that understands HTTP but refuses this request."""

    def __init__(self, line: str, status: int, reason: str) -> None:
        super().__init__(line)
        self.status, self.reason = status, reason


class FailedError(UnavailableError):
    """A server that answers every attempt of a request with HTTP 500."""


class BrokenAnswerError(Exception):
    """An answer that is truncated or not JSON."""


class BusyError(Exception):
    """An answer with a status of `AGAIN`, its reason, and the seconds to wait."""

    def __init__(self, status: int, reason: str, wait: float) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.reason, self.wait = status, reason, wait


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts and retries of a request."""

    timeout: float = 120.0  # seconds for a whole answer
    connect: float = 10.0
    retries: int = 3  # attempts after the first
    pause: float = 0.5  # seconds before the second attempt, doubled for each further attempt

    def __post_init__(self) -> None:
        if not self.timeout > 0 or self.retries < 0:
            raise UsageError(
                f"a timeout of {self.timeout:g} s and {self.retries} retries: expected a timeout "
                "above 0 and retries from 0"
            )


@dataclass(slots=True)
class Reply:
    """An answer with its arrival times."""

    events: list[tuple[float, Any]]  # seconds after the request was sent, parsed JSON
    seconds: float  # until the last byte
    attempts: int = 1


@dataclass
class Client:
    """A connection pool to one server.

    Use it as an async context manager; `address` has neither a path below /v1 nor a key.
    """

    address: str
    key_from: str = KEY
    limits: Limits = field(default_factory=Limits)
    failures: dict[str, int] = field(default_factory=dict)  # failed attempts by reason

    def __post_init__(self) -> None:
        self.address = checked(self.address)
        self._key = os.environ.get(self.key_from, "")
        self._http: Any = None

    async def __aenter__(self) -> "Client":
        import httpx2

        own = (urlsplit(self.address).hostname or "") in LOOPBACK
        self._http = httpx2.AsyncClient(
            headers={"accept-encoding": "identity"}
            | ({"authorization": f"Bearer {self._key}"} if self._key else {}),
            timeout=httpx2.Timeout(self.limits.timeout, connect=self.limits.connect),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=not own,  # no proxy on the local machine
            verify=certificates() if self.address.startswith("https:") else False,
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> Any:
        """Return the content of a page, parsed if JSON; None if the page is missing.

        `FIRST` has one attempt, so that a wrong address is named at once.

        Raises:
            RefusedError: the server wants a key.
            UnavailableError: no server answers, or the server is busy.
        """
        first = path == FIRST

        async def ask() -> Any:
            answer = await self._http.get(self.address + path)
            # transformers serve has 500 where it cannot list models, and answers all the same.
            if first and answer.status_code in AGAIN - {500}:
                raise BusyError(answer.status_code, reason_of(answer.content), 0.0)
            return answer

        answer, _ = await self._tried(path, ask, 1 if first else self.limits.retries + 1)
        if answer.status_code in (401, 403):
            raise self._refused(answer.status_code, answer.content)
        if answer.status_code != 200:
            return None
        try:
            return answer.json()
        except ValueError:
            return answer.text

    async def post(self, path: str, payload: dict[str, Any]) -> Reply:
        """Send `payload` and return the complete answer, with retries on transient failures.

        Raises:
            RefusedError: the server refuses the request.
            UnavailableError: all attempts failed.
        """

        async def ask() -> Reply:
            status, headers, pieces, began = await self._read(path, payload)
            if status == 200:
                events = parsed(pieces, streamed=bool(payload.get("stream")))
                stamped = [(at - began, event) for at, event in events]
                return Reply(stamped, pieces[-1][0] - began)
            body = b"".join(piece for _, piece in pieces)
            if status in AGAIN:
                raise BusyError(status, reason_of(body), waiting(headers))
            raise self._refused(status, body)

        reply, attempts = await self._tried(path, ask, self.limits.retries + 1)
        reply.attempts = attempts
        return reply

    async def _tried(
        self, path: str, ask: Callable[[], Awaitable[T]], attempts: int
    ) -> tuple[T, int]:
        """Return what `ask` returns, and the number of the attempt that succeeded."""
        import httpx2

        for attempt in range(1, attempts + 1):
            wait = self.limits.pause * 2 ** (attempt - 1)
            kind, said = UnavailableError, ""
            try:
                async with asyncio.timeout(self.limits.timeout):
                    return await ask(), attempt
            except BusyError as error:
                reason, said = str(error), f", {self._hidden(error.reason)}"
                kind = FailedError if error.status == 500 else UnavailableError
                wait = min(max(wait, error.wait), LONGEST_WAIT)
            except (TimeoutError, httpx2.ReadTimeout):
                reason = f"no end of the answer within {self.limits.timeout:g} s"
            except httpx2.HTTPError as error:
                reason = self._hidden(first_line(error)) if str(error) else type(error).__name__
            except BrokenAnswerError as error:
                reason = self._hidden(str(error))
            self.failures[reason] = self.failures.get(reason, 0) + 1
            if attempt < attempts:
                await asyncio.sleep(wait)
        if path == FIRST:
            raise UnavailableError(
                f"no server ({self.address}: {reason}{said}): expected one that answers. "
                "Check host and port, or start it"
            )
        tried = f"{attempts} attempt{'s' * (attempts > 1)}"
        raise kind(
            f"no answer in {tried} ({self.address}{path}: {reason}{said}): expected HTTP 200 "
            "with a whole answer. Look at the server's log, or raise --timeout or --retries"
        )

    async def _read(
        self, path: str, payload: dict[str, Any]
    ) -> tuple[int, Any, list[tuple[float, bytes]], float]:
        body = json.dumps(payload).encode()
        headers = {"content-type": "application/json"}
        began = time.perf_counter()
        pieces: list[tuple[float, bytes]] = []
        size = 0
        stream = self._http.stream("POST", self.address + path, content=body, headers=headers)
        async with stream as answer:
            async for piece in answer.aiter_raw():
                pieces.append((time.perf_counter(), piece))
                size += len(piece)
                if size > LARGEST:
                    raise BrokenAnswerError(f"more than {LARGEST >> 20} MiB in one answer")
            pieces.append((time.perf_counter(), b""))
            return answer.status_code, answer.headers, pieces, began

    def _refused(self, status: int, body: bytes) -> RefusedError:
        reason = self._hidden(reason_of(body))
        todo = f"Set {self.key_from}" if status in (401, 403) else "Check the URL and --model"
        line = f"refused (HTTP {status}, {self.address}: {reason}): expected an answer. {todo}"
        return RefusedError(line, status, reason)

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


@cache
def certificates() -> Any:
    """Return the TLS context of all clients; to read the certificates takes 50 ms."""
    import httpx2

    return httpx2.create_ssl_context()


def checked(url: str) -> str:
    """Return the address of a server without path, slash or /v1.

    Raises:
        UsageError: the address is not HTTP, or has a key or a query.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            f"a URL with a key or a query ({parts.scheme}://{parts.hostname}/...): expected host, "
            f"port and path alone. Keys come from {KEY} and {BASELINE_KEY} in the environment"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise UsageError(f"no URL of a server ({url}): expected one like http://localhost:8000")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def parsed(pieces: list[tuple[float, bytes]], *, streamed: bool) -> list[tuple[float, Any]]:
    """Return the JSON of an answer, or of each of its events, with times of arrival.

    Raises:
        BrokenAnswerError: half an event, no end, or no JSON.
    """
    if not streamed:
        return [(pieces[-1][0], loaded(b"".join(piece for _, piece in pieces)))]
    events, left, done = [], b"", False
    for at, piece in pieces:
        *lines, left = (left + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            done = done or data == DONE
            if data != DONE:
                events.append((at, loaded(data)))
                done = done or ended(events[-1][1])
    if left.strip():
        raise BrokenAnswerError("the stream ends within an event")
    if not done:
        raise BrokenAnswerError("the stream ends without [DONE] or a finish_reason")
    return events


def loaded(data: bytes) -> Any:
    """Parse JSON that is an object without an error in it."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise BrokenAnswerError(f"no JSON ({first_line(error)})") from error
    if not isinstance(value, dict):
        raise BrokenAnswerError("JSON, but no object")
    if value.get("error") and not value.get("choices"):
        raise BrokenAnswerError(f"an error in the stream ({reason_of(data)})")
    return value


def reason_of(body: bytes) -> str:
    """Return the message of an error page in one line."""
    text = body.decode(errors="replace")
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = text
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and name in value:
            value = value[name]
    return " ".join(str(value).split())[:200] or "no reason given"


def waiting(headers: Any) -> float:
    """Return the seconds of a Retry-After header; 0 without one."""
    try:
        return float(headers.get("retry-after", 0))
    except ValueError:
        return 0.0


def ended(event: Any) -> bool:
    """Return whether an event gives the reason of the end: the last of `transformers serve`."""
    choices = event.get("choices") if isinstance(event, dict) else None
    return any(each.get("finish_reason") for each in choices or () if isinstance(each, dict))
