"""HTTP client for model servers: bounded retries, sizes and times, API keys, event streams.

What a server sends is bounded, and freed of the API key, where it comes in.
"""

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, NoReturn
from urllib.parse import urlsplit

from spsbench.errors import DataError, UnavailableError, UsageError, as_it_is
from spsbench.serving.address import KEY, ApiKey, check_address, is_local
from spsbench.serving.answers import AnswerReader, AttemptError, reason_in
from spsbench.untrusted import FieldError, NotJSONError, RangeError, cut, parse_json

LARGEST = 64 * 2**20  # bytes of one answer
MAX_EVENTS = 2**16  # events of a stream beside 16 a token: each takes 10 us and more
SPARE = 16  # events beside those of the tokens that renew the clock of a stream
LAST_LINE = re.compile(rb"\r?data:[ \t]*+\[DONE\]\s*+")
AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))  # statuses that are retried
LONGEST_WAIT = 30.0  # seconds between two attempts
MAX_ERROR_PAGE = 2**16  # bytes of an error page that is read
LONGEST_PAGE = 10.0  # seconds for a page that a server need not have
GRACE = 0.5  # seconds in which a connection may end after its stream, to be used again
MAX_TIMEOUT = 1e6  # seconds
MAX_RETRIES = 1000
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
VARIABLES = (*PROXIES, "SSL_CERT_FILE", "SSL_CERT_DIR")
FIRST = "/v1/models"  # the page by which a server is found
REMEDIES = {  # by status of a refusal
    **dict.fromkeys((301, 302, 307, 308, 404, 405), "Check the URL and `model`"),
    **dict.fromkeys((401, 403), "Set {key}"),
}


class RefusedError(DataError):
    """A server that understands HTTP but refuses this request."""

    def __init__(self, line: str, status: int, reason: str) -> None:
        super().__init__(line)
        self.status, self.reason = status, reason


class FailedError(UnavailableError):
    """A server that answers every attempt of a request with HTTP 500."""


class ImpossibleAnswerError(DataError):
    """An answer in whose numbers something cannot be true."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
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


class ResponseBody:
    """An answer, whole or as a stream of events, each read once by `reader`, if there is one.

    No more events than the `tokens` that were asked for, and some to spare, are progress.
    """

    def __init__(
        self, reader: AnswerReader | None = None, *, streamed: bool = False, tokens: int = 0
    ) -> None:
        self.streamed, self.status = streamed, 0
        self.headers: Any = {}
        self.content = bytearray()  # where it streams, the line that has not ended
        self.end = 0.0  # time of the last event of a stream, 0 before; of the last byte
        self.reader, self._asked, self.attempt = reader, tokens, 1
        self._size = self._events = self._tokens = 0  # bytes, events, those that hold a token

    def take(self, at: float, piece: bytes) -> bool:
        """Add a piece that came at second `at`, and read it; return whether it is progress.

        Progress is the first byte of a whole answer that is no blank, or a token of a stream, up to
        the number asked for and `SPARE`. AttemptError: too much, or an event that cannot be used.
        """
        self._size += len(piece)
        most = MAX_EVENTS + 16 * self._asked
        if self._size > LARGEST or self._events > most:
            raise AttemptError(f"more than {LARGEST >> 20} MiB or {most:,} events in one answer")
        self.content += piece
        before = self._tokens
        if not self.streamed:
            self._tokens = int(self._tokens or not piece.isspace())
        elif b"\n" in piece:
            *lines, self.content = self.content.split(b"\n")
            for line in lines:
                self._add(at, bytes(line))
        if self.streamed and len(self.content) < 40 and LAST_LINE.fullmatch(self.content):
            self.end = at
        return before < self._tokens <= self._asked + SPARE

    def _add(self, at: float, line: bytes) -> None:
        if LAST_LINE.fullmatch(line):
            self.end = at
        elif line.startswith(b"data:") and self.reader and not self.end:  # no comment or name
            self._events += 1
            self._tokens += self.reader.add(at, line[5:])

    def close(self, at: float) -> None:
        """Read what is left of the answer, and set `end`; AttemptError: a stream without an end."""
        if self.streamed:
            self._add(at, bytes(self.content))
            # the last event of `transformers serve` gives the reason of the end
            if not self.end and not (self.reader and self.reader.answer.finish):
                raise AttemptError("the stream ends without [DONE] or a finish_reason")
        elif self.reader and self.status == 200:
            self.reader.add(at, bytes(self.content))
        self.end = self.end or at


@dataclass
class Client:
    """A connection pool to one server: an async context manager."""

    address: str  # with neither a path below /v1 nor a key
    key_from: str = KEY
    limits: HttpLimits = field(default_factory=HttpLimits)
    failures: Counter[str] = field(default_factory=Counter)  # failed attempts by reason
    sending: Callable[[], AbstractContextManager[None]] = nullcontext  # around each attempt

    def __post_init__(self) -> None:
        self.address = check_address(self.address)
        self._key = ApiKey(self.key_from)
        self.hide = self._key.hide  # applied to all that a server says, where it comes in
        self._http: Any = None
        self._one = asyncio.Lock()  # held by the retry of a request that timed out

    async def __aenter__(self) -> "Client":
        import httpx2

        local = is_local(urlsplit(self.address).hostname or "")
        headers = {"accept-encoding": "identity", "content-type": "application/json"}
        try:
            verify = certificates() if self.address.startswith("https:") else False
            self._http = httpx2.AsyncClient(
                headers=headers | self._key.headers,
                timeout=httpx2.Timeout(None, connect=self.limits.connect),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # keeps none
                follow_redirects=False,
                trust_env=not local,  # no proxy on the local machine
                verify=verify,
            )
        except (OSError, ValueError, httpx2.InvalidURL) as error:  # may hold a proxy's password
            names = ", ".join(name for name in VARIABLES if os.environ.get(name))
            raise DataError(
                f"a proxy or certificates that cannot be used ({names or 'of this system'}): "
                "expected http://HOST:PORT, or a file in PEM. Correct the variable, or unset it"
            ) from error
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> Any:
        """Return the content of a page, parsed if it is JSON, else text; None unless status 200.

        `FIRST`, the list of models, has one attempt. UnavailableError: no server gives it.
        RefusedError: status 401 or 403. A server need have no other page: one that it refuses, or
        does not give within `LONGEST_PAGE` or `limits.timeout` seconds, is None.
        """
        if path == FIRST:
            return await self._page(path, 1)
        with suppress(DataError, UnavailableError, TimeoutError):
            async with asyncio.timeout(min(LONGEST_PAGE, self.limits.timeout)):
                return await self._page(path, self.limits.retries + 1)
        return None

    async def _page(self, path: str, attempts: int) -> Any:
        """Return a page, parsed if JSON; None unless status 200. RefusedError: status 401, 403."""
        # transformers serve has 500 where it cannot list models, and answers all the same
        again = AGAIN - {500} if path == FIRST else frozenset()
        body = await self._tried(path, attempts, again, ResponseBody)
        if body.status in (401, 403):
            self._refuse(body)
        if body.status != 200:
            return None
        try:
            return self.hide(parse_json(bytes(body.content), strict=False))
        except NotJSONError:
            return self.hide(body.content.decode(errors="replace"))

    async def post(
        self, path: str, payload: dict[str, Any], schema: type[AnswerReader]
    ) -> AnswerReader:
        """Send `payload`, again after a transient failure; return the reader with the whole answer.

        It is `done`; the answer has seconds and number of the last attempt. RefusedError: a status
        other than 200 and `AGAIN`. UnavailableError: no answer, or one of `AGAIN` each time.
        DataError: another schema, or impossible numbers.
        """
        sampling = payload.get("sampling_params") or {}
        tokens = int(payload.get("max_tokens") or sampling.get("max_new_tokens") or 0)
        streamed, attempts = bool(payload.get("stream")), self.limits.retries + 1

        def make() -> ResponseBody:
            return ResponseBody(schema(self.hide), streamed=streamed, tokens=tokens)

        with self.reading(path, schema.name):
            body = await self._tried(path, attempts, AGAIN, make, payload)
            if body.status != 200 or body.reader is None:
                self._refuse(body)
            answer = body.reader.done()
        answer.seconds, answer.attempts = body.end, body.attempt
        return body.reader

    @contextmanager
    def reading(self, path: str, expected: str) -> Iterator[None]:
        """Raise RangeErrors of a block as ImpossibleAnswerError, other FieldErrors as DataError."""
        try:
            yield
        except RangeError as error:
            line = f"an impossible answer ({self.address}{path}: {error})"
            raise ImpossibleAnswerError(f"{line}. Update the server") from error
        except FieldError as error:
            raise DataError(
                f"an answer of another schema ({self.address}{path}: {error}): expected "
                f"{expected}. Check the URL"
            ) from error

    async def _tried(
        self,
        path: str,
        attempts: int,
        again: Set[int],
        make: Callable[[], ResponseBody],
        payload: dict[str, Any] | None = None,
    ) -> ResponseBody:
        """Send a request, up to `attempts` times, until its status is not of `again`.

        Return the body, which `make` made anew for each attempt. Failures are counted by reason.
        The wait between two doubles, or is what the server says, up to `LONGEST_WAIT`. After a
        timeout, a request is tried again when no other such request is: a server that is too slow
        for several has one to answer. UnavailableError, of the last failure's `kind`: no attempt
        succeeds. DataError: a compressed answer.
        """
        import httpx2

        gate: Any = nullcontext()
        failure = AttemptError("")
        for attempt in range(1, attempts + 1):
            try:
                async with gate:
                    body = make()
                    body.attempt = attempt
                    with self.sending() if payload else nullcontext():
                        await self._exchange(path, body, payload)
                    if body.status in again:
                        self._refuse(body)
                    return body
            except AttemptError as error:
                failure = error
            except TimeoutError:
                failure = AttemptError(
                    f"timed out after {self.limits.timeout:g} s without progress"
                )
                gate = self._one
            except httpx2.ConnectTimeout:
                failure = AttemptError(f"no connection within {self.limits.connect:g} s")
            except (httpx2.HTTPError, UnicodeError) as error:  # the latter by a host's name
                words = as_it_is(cut(self.hide(str(error)).strip(), 200))
                failure = AttemptError(words or type(error).__name__)
            self.failures[str(failure)] += 1
            if attempt < attempts:
                wait = self.limits.pause * 2 ** min(attempt - 1, 16)
                wait = max(wait, failure.wait)  # which is the first one beside NaN
                await asyncio.sleep(min(wait, LONGEST_WAIT))
        reason = ", ".join(filter(None, (str(failure), failure.words)))
        if path == FIRST:
            raise UnavailableError(
                f"no server ({self.address}: {reason}): expected one that answers. "
                "Check host and port, or start it"
            )
        tried = f"{attempts} attempt{'s' * (attempts > 1)}"
        raise failure.kind(
            f"no answer in {tried} ({self.address}{path}: {reason}): expected HTTP 200 "
            "with a whole answer. Look at the server's log, or raise timeout or retries"
        )

    async def _exchange(
        self, path: str, body: ResponseBody, payload: dict[str, Any] | None
    ) -> None:
        """Send a request, and put status, headers and content of its answer into `body`.

        Times in it are seconds from now. After a stream's last line the connection has `GRACE`
        seconds to end. TimeoutError: no progress for `limits.timeout` seconds. AttemptError: no end
        in `limits.whole` seconds, or one that `body` refuses. DataError: a compressed answer.
        """
        content = None if payload is None else json.dumps(payload).encode()
        began, now = time.perf_counter(), asyncio.get_running_loop().time
        latest = now() + self.limits.whole
        method = "GET" if payload is None else "POST"
        request = self._http.stream(method, self.address + path, content=content)
        try:
            async with (
                asyncio.timeout(self.limits.timeout) as clock,
                request as answer,
                aclosing(answer.aiter_raw()) as raw,
            ):
                body.status, body.headers = answer.status_code, answer.headers
                encoding = answer.headers.get("content-encoding", "").strip()
                if encoding.lower() not in ("", "identity"):
                    raise DataError(
                        f"a compressed answer ({self.address}{path}: {cut(self.hide(encoding))}): "
                        "expected none, as the request says. Turn compression off in the server or "
                        "its proxy"
                    )
                body.streamed &= body.status == 200
                async for piece in raw:
                    if body.end:
                        continue
                    is_alive = body.take(time.perf_counter() - began, piece)
                    if is_alive or body.end:
                        silence = GRACE if body.end else self.limits.timeout
                        clock.reschedule(min(now() + silence, latest))
        except TimeoutError:
            if not body.end and now() < latest:
                raise
            if not body.end:
                raise AttemptError(f"no end of the answer within {self.limits.whole:g} s") from None
        body.close(time.perf_counter() - began)

    def _refuse(self, body: ResponseBody) -> NoReturn:
        """Raise AttemptError for `AGAIN`, `wait` by `retry-after` or 0; RefusedError otherwise."""
        status, reason = body.status, f"a page of {len(body.content) >> 10} KiB"
        if len(body.content) <= MAX_ERROR_PAGE:
            page: Any = body.content.decode(errors="replace")
            with suppress(FieldError):
                page = parse_json(page.encode(), strict=False)
            reason = reason_in(self.hide(page))  # freed of the key before it is cut
        if status in AGAIN:
            kind = FailedError if status == 500 else UnavailableError
            error = AttemptError(f"HTTP {status}", kind=kind, words=reason)
            with suppress(ValueError):
                error.wait = float(body.headers.get("retry-after", 0))
            raise error
        todo = REMEDIES.get(status, "Change what the server names, or look at its log")
        line = f"refused (HTTP {status}, {self.address}: {reason}): expected an answer. "
        raise RefusedError(line + todo.format(key=self.key_from), status, reason)


@cache
def certificates() -> Any:
    """Return the TLS context of all clients; to read the certificates takes 50 ms."""
    import httpx2

    return httpx2.create_ssl_context()
