"""HTTP client for model servers: bounded retries, sizes and times, API keys, event streams.

What a server sends is bounded, and freed of the API key, here. A stream is stored as bytes with
arrival times and parsed after its end, so that parsing of one answer does not delay the clock of
another.
"""

import asyncio
import json
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, NamedTuple, TypeVar
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
from spsbench.serving.address import certificates, checked, is_local
from spsbench.serving.api_key import KEY, ApiKey
from spsbench.serving.arriving import Arriving
from spsbench.serving.body import (
    LARGEST,
    MAX_PIECES,
    PIECES,
    BrokenAnswerError,
    EndOfStream,
    Pieces,
    Progress,
    parsed,
    reason_of,
)

AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))  # statuses that are retried
LONGEST_WAIT = 30.0  # seconds between two attempts
LONGEST_PAGE = 10.0  # seconds for a page that a server need not have
GRACE = 0.5  # seconds in which a connection may end after its stream, to be used again
MAX_TIMEOUT = 1e6  # of a timeout
MAX_RETRIES = 1000
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
T = TypeVar("T")
FIRST = "/v1/models"  # the page by which a server is found


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


class Body(NamedTuple):
    """An answer as it came."""

    status: int
    headers: Any
    pieces: Pieces
    began: float

    @property
    def content(self) -> bytes:
        """Return the bytes in one."""
        return b"".join(piece for _, piece in self.pieces)


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
        self.hide = self._key.hide
        self.hide_in_text = self._key.hide_in  # of a model, in which a short key is no secret
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
            RefusedError: the server wants a key.
            DataError: `FIRST` is compressed or nested too deeply.
            UnavailableError: no server answers, or the server is busy.
        """
        first = path == FIRST

        async def ask(_: int) -> Body:
            if first:
                async with asyncio.timeout(self.limits.timeout):
                    body = await self._exchange("GET", path)
                # transformers serve has 500 where it cannot list models, and answers all the same.
                if body.status in AGAIN - {500}:
                    raise BusyError(body.status, reason_of(body.content, self.hide), 0.0)
                return body
            try:
                async with asyncio.timeout(min(LONGEST_PAGE, self.limits.timeout)):
                    return await self._exchange("GET", path)
            except (TimeoutError, DataError, BrokenAnswerError):
                return Body(404, {}, [], 0.0)

        try:
            body = await self._tried(path, ask, 1 if first else self.limits.retries + 1)
        except UnavailableError:
            if first:
                raise
            return None
        if first and body.status in (401, 403):
            raise self._refused(body)
        if body.status != 200:
            return None
        content = body.content
        try:
            return self._key.hide_in(parse_json(content, strict=False))
        except NotJSONError:
            return self.hide(content.decode(errors="replace"))
        except FieldError as error:
            if not first:
                return None
            raise self._of_another_schema(path, str(error), "a list of models") from error

    async def post(
        self,
        path: str,
        payload: dict[str, Any],
        read: Callable[[Reply], T],
        expected: str = "that of the OpenAI API",
        arriving: Arriving | None = None,
    ) -> T:
        """Send `payload` and return what `read` makes of the complete answer.

        A transient failure is retried, and so is an answer that `read` finds broken. `arriving`
        sees the pieces of a stream.

        Raises:
            RefusedError: the server refuses the request.
            DataError: an answer of another schema.
            UnavailableError: all attempts failed.
        """

        async def ask(attempt: int) -> T:
            if arriving is not None:
                arriving.begin()
            with self.sending():
                body = await self._exchange("POST", path, payload, arriving)
            if body.status in AGAIN:
                reason = reason_of(body.content, self.hide)
                raise BusyError(body.status, reason, waiting(body.headers))
            if body.status != 200:
                raise self._refused(body)
            seconds = body.pieces[-1][0] - body.began
            streamed = bool(payload.get("stream"))
            events = parsed(body.pieces, streamed=streamed, clean=self._key.hide_in)
            stamped = ((at - body.began, event) for at, event in events)
            with self.reading(path, expected):
                return read(Reply(stamped, seconds, attempt))

        return await self._tried(path, ask, self.limits.retries + 1)

    @contextmanager
    def reading(self, path: str, expected: str) -> Iterator[None]:
        """Turn what reading an answer raises in this block into one line with endpoint and field.

        Raises:
            DataError: the answer is of another schema.
            ImpossibleAnswerError: it is of the schema, with a number that cannot be true.
        """
        where = f"{self.address}{path}"
        try:
            yield
        except RangeError as error:
            line = f"an impossible answer ({where}: {self.hide(str(error))})"
            raise ImpossibleAnswerError(f"{line}. Update the server") from error
        except BrokenAnswerError:
            raise
        except SCHEMA_ERRORS as error:
            kind = "" if isinstance(error, FieldError) else f"{type(error).__name__} "
            reason = kind + cut(str(error), 200)
            raise self._of_another_schema(path, reason, expected) from error

    def _of_another_schema(self, path: str, reason: str, expected: str) -> DataError:
        return DataError(
            f"an answer of another schema ({self.address}{path}: {self.hide(reason)}): expected "
            f"{expected}. Check the URL"
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
                reason = self.hide(str(error))
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
        self,
        method: str,
        path: str,
        payload: dict[str, Any] | None = None,
        arriving: Arriving | None = None,
    ) -> Body:
        """Send a request and return its answer, of at most `LARGEST` bytes that no one compressed.

        A stream is whole with its last line: the connection may stay open.

        Raises:
            TimeoutError: no progress for `limits.timeout` seconds; the connection is closed.
                Progress is a token of a stream, and the first byte of another answer.
            BrokenAnswerError: too large, or without an end.
        """
        content, headers = None, {}
        if payload is not None:
            content = json.dumps(payload).encode()
            headers = {"content-type": "application/json"}
        tokens = _tokens_asked(payload or {})
        end = EndOfStream() if payload is not None and payload.get("stream") else None
        progress = Progress(tokens)
        most = MAX_PIECES + PIECES * tokens
        pieces: Pieces = []
        size, ended, has_begun = 0, 0.0, False
        began, now = time.perf_counter(), asyncio.get_running_loop().time
        latest = now() + self.limits.whole
        request = self._http.stream(method, self.address + path, content=content, headers=headers)
        try:
            async with (
                asyncio.timeout(self.limits.timeout) as clock,
                request as answer,
                aclosing(answer.aiter_raw()) as raw,
            ):
                self._refuse_compressed(path, answer.headers)
                async for piece in raw:
                    if ended:
                        continue
                    pieces.append((time.perf_counter(), piece))
                    size += len(piece)
                    if size > LARGEST or len(pieces) > most:
                        raise BrokenAnswerError(
                            f"more than {LARGEST >> 20} MiB or {most:,} pieces in one answer"
                        )
                    if end is None:
                        is_alive = not has_begun and not piece.isspace()
                        has_begun = has_begun or is_alive
                    else:
                        is_alive = progress.is_in(piece)
                        ended = pieces[-1][0] if end.is_in(piece) else 0.0
                        if arriving is not None:
                            arriving.take(piece)
                    if ended or is_alive:
                        silence = GRACE if ended else self.limits.timeout
                        clock.reschedule(min(now() + silence, latest))
        except TimeoutError:
            if not ended and now() >= latest:
                reason = f"no end of the answer within {self.limits.whole:g} s"
                raise BrokenAnswerError(reason) from None
            if not ended:
                raise
        pieces.append((ended or time.perf_counter(), b""))
        return Body(answer.status_code, answer.headers, pieces, began)

    def _refuse_compressed(self, path: str, headers: Any) -> None:
        encoding = headers.get("content-encoding", "").strip()
        if encoding.lower() not in ("", "identity"):
            raise DataError(
                f"a compressed answer ({self.address}{path}: {cut(self.hide(encoding))}): expected "
                "none, as the request says. Turn compression off in the server or its proxy"
            )

    def _refused(self, body: Body) -> RefusedError:
        reason, status = reason_of(body.content, self.hide), body.status
        remedies = dict.fromkeys((301, 302, 307, 308, 404, 405), "Check the URL and `model`")
        remedies |= dict.fromkeys((401, 403), f"Set {self.key_from}")
        todo = remedies.get(status, "Change what the server names, or look at its log")
        line = f"refused (HTTP {status}, {self.address}: {reason}): expected an answer. {todo}"
        return RefusedError(line, status, reason)


def _tokens_asked(payload: Mapping[str, Any]) -> int:
    sampling = payload.get("sampling_params") or {}
    return int(payload.get("max_tokens") or sampling.get("max_new_tokens") or 0)


def waiting(headers: Any) -> float:
    """Return the seconds of a Retry-After header, which is a number or a date; 0 without one."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
            date = date if date.tzinfo else date.replace(tzinfo=UTC)
            seconds = (date - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError, IndexError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
