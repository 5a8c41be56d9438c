"""HTTP client for model servers: bounded retries, sizes and times, API keys, event streams.

What a server sends is bounded (`body`), and freed of the API key, where it comes in.
"""

import asyncio
import json
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar
from urllib.parse import urlsplit

from spsbench.errors import DataError, UnavailableError, UsageError
from spsbench.foreign import (
    SCHEMA_ERRORS,
    FieldError,
    NotJSONError,
    RangeError,
    cut,
    parse_json,
)
from spsbench.messages import ignore
from spsbench.serving.address import certificates, checked, is_local
from spsbench.serving.api_key import KEY, ApiKey
from spsbench.serving.body import Body, BrokenAnswerError, reason_of

AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))  # statuses that are retried
LONGEST_WAIT = 30.0  # seconds between two attempts
LONGEST_PAGE = 10.0  # seconds for a page that a server need not have
GRACE = 0.5  # seconds in which a connection may end after its stream, to be used again
MAX_TIMEOUT = 1e6  # of a timeout
MAX_RETRIES = 1000
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
FIRST = "/v1/models"  # the page by which a server is found
T = TypeVar("T")
Arriving = Callable[[Body], None]


class RefusedError(DataError):
    """A server that understands HTTP but refuses this request."""

    def __init__(self, line: str, status: int, reason: str) -> None:
        super().__init__(line)
        self.status, self.reason = status, reason


class FailedError(UnavailableError):
    """A server that answers every attempt of a request with HTTP 500."""


class ImpossibleAnswerError(DataError):
    """An answer in whose numbers something cannot be true."""


class AbortedError(UnavailableError):
    """A server that ends every attempt of a request before the text is whole."""


class AbortedAnswerError(BrokenAnswerError):
    """An answer whose `finish_reason` says that its text is not whole."""


class BusyError(Exception):
    """An answer with a status of `AGAIN`, its reason, and the seconds to wait."""

    def __init__(self, status: int, reason: str, wait: float) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.reason, self.wait = status, reason, wait


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts and retries of a request."""

    timeout: float = 120.0  # seconds without a new token; for the rest of an answer that has begun
    whole: float = 3600.0  # seconds for a whole answer, however many tokens arrive
    connect: float = 10.0
    retries: int = 3  # attempts after the first
    pause: float = 0.5  # seconds before the second attempt, doubled for each further attempt

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= MAX_TIMEOUT or not 0 <= self.retries <= MAX_RETRIES:
            raise UsageError(
                f"a timeout of {self.timeout:g} s and {self.retries} retries: expected a timeout "
                f"above 0 and up to {MAX_TIMEOUT:g} s, and retries from 0 to {MAX_RETRIES}"
            )


@dataclass(slots=True)
class Reply:
    """An answer with its arrival times."""

    events: Iterable[tuple[float, Any]]  # seconds after the request was sent, parsed JSON
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
    sending: Callable[[], AbstractContextManager[None]] = nullcontext  # around each attempt

    def __post_init__(self) -> None:
        self.address = checked(self.address)
        self._key = ApiKey(self.key_from)
        self.hide = self._key.hide  # applied to all that a server says, where it comes in
        self._http: Any = None
        self._one = asyncio.Lock()  # held by the retry of a request that timed out

    async def __aenter__(self) -> "Client":
        import httpx2

        local = is_local(urlsplit(self.address).hostname or "")
        verify = certificates() if self.address.startswith("https:") else False
        try:
            self._http = httpx2.AsyncClient(
                headers={"accept-encoding": "identity"} | self._key.headers,
                timeout=httpx2.Timeout(self.limits.timeout, connect=self.limits.connect),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # keeps none
                follow_redirects=False,
                trust_env=not local,  # no proxy on the local machine
                verify=verify,
            )
        except (ValueError, httpx2.InvalidURL) as error:  # its message may hold a password
            names = ", ".join(name for name in PROXIES if os.environ.get(name))
            raise DataError(
                f"a proxy that cannot be used ({names}): expected http://HOST:PORT. Correct the "
                "variable, or unset it"
            ) from error
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> Any:
        """Return the content of a page, parsed if JSON; None if the page is missing.

        `FIRST` has one attempt, so that a wrong address is named at once. Of all other pages a
        server need have none: one that it refuses, or does not give in time, is missing.

        Raises:
            SpsError: for `FIRST`, no server, one that wants a key, or no page of the schema.
        """
        if path == FIRST:
            return await self._page(path, 1, self.limits.timeout)
        with suppress(DataError, UnavailableError):
            longest = min(LONGEST_PAGE, self.limits.timeout)
            return await self._page(path, self.limits.retries + 1, longest)
        return None

    async def _page(self, path: str, attempts: int, longest: float) -> Any:
        async def ask(_: int) -> Body:
            body = Body(streamed=False)
            try:
                async with asyncio.timeout(longest):
                    await self._exchange("GET", path, body)
            except (TimeoutError, BrokenAnswerError) as error:
                if path == FIRST:
                    raise
                raise DataError(str(error)) from error  # no further attempt
            # transformers serve has 500 where it cannot list models, and answers all the same.
            if path == FIRST and body.status in AGAIN - {500}:
                raise BusyError(body.status, self._reason(body), 0.0)
            return body

        body = await self._tried(path, ask, attempts)
        if body.status in (401, 403):
            raise self._refused(body)
        if body.status != 200:
            return None
        try:
            return self.hide(parse_json(bytes(body.content), strict=False))
        except NotJSONError:
            return self.hide(body.content.decode(errors="replace"))
        except FieldError as error:
            raise self._of_another_schema(path, str(error), "a list of models") from error

    async def post(
        self,
        path: str,
        payload: dict[str, Any],
        read: Callable[[Reply], T],
        expected: str = "that of the OpenAI API",
        arriving: Arriving = ignore,
    ) -> T:
        """Send `payload` and return what `read` makes of the complete answer.

        A transient failure is retried, and so is an answer that `read` finds broken.

        Args:
            path: below the server's address.
            payload: the JSON to send.
            read: makes the result of a reply.
            expected: names the schema.
            arriving: called with the body of each attempt before it comes.

        Raises:
            RefusedError: the server refuses the request.
            DataError: an answer of another schema.
            UnavailableError: all attempts failed.
        """
        sampling = payload.get("sampling_params") or {}
        tokens = int(payload.get("max_tokens") or sampling.get("max_new_tokens") or 0)

        async def ask(attempt: int) -> T:
            body = Body(streamed=bool(payload.get("stream")), tokens=tokens)
            arriving(body)
            with self.sending():
                began = await self._exchange("POST", path, body, payload)
            if body.status in AGAIN:
                raise BusyError(body.status, self._reason(body), waiting(body.headers))
            if body.status != 200:
                raise self._refused(body)
            stamped = ((at - began, event) for at, event in body.parsed(self.hide))
            with self.reading(path, expected):
                return read(Reply(stamped, body.end - began, attempt))

        return await self._tried(path, ask, self.limits.retries + 1)

    @contextmanager
    def reading(self, path: str, expected: str) -> Iterator[None]:
        """Turn what reading an answer raises in this block into one line with endpoint and field.

        Raises:
            DataError: the answer is of another schema.
            ImpossibleAnswerError: it is of the schema, with a number that cannot be true.
        """
        try:
            yield
        except RangeError as error:
            line = f"an impossible answer ({self.address}{path}: {error})"
            raise ImpossibleAnswerError(f"{line}. Update the server") from error
        except BrokenAnswerError:
            raise
        except SCHEMA_ERRORS as error:
            kind = "" if isinstance(error, FieldError) else f"{type(error).__name__} "
            raise self._of_another_schema(path, kind + cut(str(error), 200), expected) from error

    def _of_another_schema(self, path: str, reason: str, expected: str) -> DataError:
        return DataError(
            f"an answer of another schema ({self.address}{path}: {reason}): expected {expected}. "
            "Check the URL"
        )

    async def _tried(self, path: str, ask: Callable[[int], Awaitable[T]], attempts: int) -> T:
        """Return what `ask` returns for the number of an attempt, the first that succeeds.

        A request that timed out is closed, and tried again when no other such request is: a server
        that is too slow for several at a time has one of them to answer.
        """
        import httpx2

        gate: AbstractAsyncContextManager[None] = nullcontext()
        for attempt in range(1, attempts + 1):
            wait = min(self.limits.pause * 2 ** min(attempt - 1, 16), LONGEST_WAIT)
            kind, said = UnavailableError, ""
            try:
                async with gate:
                    return await ask(attempt)
            except BusyError as error:
                reason, said = str(error), f", {error.reason}"
                kind = FailedError if error.status == 500 else UnavailableError
                wait = min(max(wait, error.wait), LONGEST_WAIT)
            except (TimeoutError, httpx2.ReadTimeout):
                reason = f"timed out after {self.limits.timeout:g} s without progress"
                gate = self._one
            except httpx2.ConnectTimeout:
                reason = f"no connection within {self.limits.connect:g} s"
            except (httpx2.HTTPError, UnicodeError) as error:  # the latter by a host's name
                words = self.hide(str(error)).strip()
                reason = cut(words, 200) if words else type(error).__name__
            except BrokenAnswerError as error:
                kind = AbortedError if isinstance(error, AbortedAnswerError) else kind
                reason = str(error)
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
            "with a whole answer. Look at the server's log, or raise `timeout` or `retries`"
        )

    async def _exchange(
        self, method: str, path: str, body: Body, payload: dict[str, Any] | None = None
    ) -> float:
        """Send a request, add its uncompressed answer to `body`, and return when it was sent.

        A stream is whole with its last line: the connection may stay open.

        Raises:
            TimeoutError: no progress for `limits.timeout` seconds; the connection is closed.
            BrokenAnswerError: too large, or without an end.
        """
        content = None if payload is None else json.dumps(payload).encode()
        headers = {} if payload is None else {"content-type": "application/json"}
        began, now = time.perf_counter(), asyncio.get_running_loop().time
        latest = now() + self.limits.whole
        request = self._http.stream(method, self.address + path, content=content, headers=headers)
        try:
            async with (
                asyncio.timeout(self.limits.timeout) as clock,
                request as answer,
                aclosing(answer.aiter_raw()) as raw,
            ):
                body.status, body.headers = answer.status_code, answer.headers
                self._refuse_compressed(path, answer.headers)
                body.streamed &= body.status == 200
                async for piece in raw:
                    if body.end:
                        continue
                    is_alive = body.take(time.perf_counter(), piece)
                    if is_alive or body.end:
                        silence = GRACE if body.end else self.limits.timeout
                        clock.reschedule(min(now() + silence, latest))
        except TimeoutError:
            if not body.end and now() >= latest:
                reason = f"no end of the answer within {self.limits.whole:g} s"
                raise BrokenAnswerError(reason) from None
            if not body.end:
                raise
        body.close(time.perf_counter())
        return began

    def _refuse_compressed(self, path: str, headers: Any) -> None:
        encoding = headers.get("content-encoding", "").strip()
        if encoding.lower() not in ("", "identity"):
            raise DataError(
                f"a compressed answer ({self.address}{path}: {cut(self.hide(encoding))}): expected "
                "none, as the request says. Turn compression off in the server or its proxy"
            )

    def _reason(self, body: Body) -> str:
        return reason_of(bytes(body.content), self.hide)

    def _refused(self, body: Body) -> RefusedError:
        reason, status = self._reason(body), body.status
        remedies = dict.fromkeys((301, 302, 307, 308, 404, 405), "Check the URL and `model`")
        remedies |= dict.fromkeys((401, 403), f"Set {self.key_from}")
        todo = remedies.get(status, "Change what the server names, or look at its log")
        line = f"refused (HTTP {status}, {self.address}: {reason}): expected an answer. {todo}"
        return RefusedError(line, status, reason)


def waiting(headers: Any) -> float:
    """Return the seconds of a Retry-After header; 0 without a number there."""
    try:
        seconds = float(headers.get("retry-after", 0))
    except ValueError:
        return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
