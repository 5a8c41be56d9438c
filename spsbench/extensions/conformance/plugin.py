"""The pytest plug-in `sps`: a server under test, and claims about it, each a run of `sps check`.

A claim that fails shows the verdict, its evidence, and the command that repeats it alone. One that
cannot be decided is an expected failure, or fails where `--sps-undecided fail` says so. Nothing
else of the package is imported: checks run in processes of their own.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import pytest

READY = 120.0  # seconds until a server must answer
UNDECIDED = 6  # exit code of `sps check`
BY_WEIGHTS = {"law", "greedy", "logprobs"}  # parts that use weights
OPTIONS = {
    "server": "address of the server under test, such as http://127.0.0.1:8000",
    "command": "command that starts the server, whose processes end with the tests",
    "weights": "model of the server, to score texts with",
    "budget": "most that a claim may spend: tokens=20000,minutes=10, or one of them",
    "undecided": "what becomes of a claim that cannot be decided: xfail (default) or fail",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--sps-NAME`, else the variable `SPS_NAME`, else `sps_NAME` of pytest's file."""
    group = parser.getgroup("sps", "a server under test by sps check")
    for name, text in OPTIONS.items():
        group.addoption(f"--sps-{name}", help=text)
        parser.addini(f"sps_{name}", text)


@dataclass(frozen=True)
class Server:
    """A running server, and what a claim about it may spend; 0 is no limit."""

    url: str
    tokens: int = 0
    minutes: float = 0.0
    undecided: str = "xfail"  # or "fail": what becomes of a claim that cannot be decided
    weights: str | None = None  # the model of the server, where claims name none


@pytest.fixture(scope="session")
def sps_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield the server under test once it answers; one that a command starts ends after the tests.

    Settings are of options, SPS_* or ini, in this order; without an address tests are skipped.
    pytest.UsageError: a budget or `undecided` that is none.
    """
    config = request.config
    settings = {
        name: config.getoption(f"--sps-{name}")
        or os.environ.get(f"SPS_{name.upper()}")
        or config.getini(f"sps_{name}")
        for name in OPTIONS
    }
    if not settings["server"]:
        pytest.skip("no server: give --sps-server URL, SPS_SERVER, or sps_server in pyproject.toml")
    budget = dict(
        part.partition("=")[::2] for part in (settings["budget"] or "").split(",") if part
    )
    undecided = settings["undecided"] or "xfail"
    try:
        tokens, minutes = int(budget.pop("tokens", 0)), float(budget.pop("minutes", 0))
        if budget or undecided not in ("xfail", "fail"):
            raise ValueError
    except ValueError:
        line = "expected --sps-budget tokens=N,minutes=N and --sps-undecided xfail or fail"
        raise pytest.UsageError(line) from None
    url, command = settings["server"].rstrip("/"), settings["command"]
    if command:
        fail_if_taken(url)
    process = subprocess.Popen(shlex.split(command), start_new_session=True) if command else None
    try:
        wait_until_ready(url, process)
        yield Server(url, tokens, minutes, undecided, settings["weights"] or None)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL) if process else ():
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)  # type: ignore[union-attr]
                process.wait(10)  # type: ignore[union-attr]


def fail_if_taken(url: str) -> None:
    """Fail the test where something listens at `url`: it would be tested, not the command's."""
    address = urlsplit(url)
    with suppress(OSError):
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), 2).close()
        pytest.fail(f"something answers at {url} before the command has run", pytrace=False)


def wait_until_ready(url: str, process: Any) -> None:
    """Wait until `/v1/models` below `url` answers; fail the test where it does not.

    The server's `process` has `READY` seconds, if it lives; None: the server must answer at once.
    """
    from urllib.request import urlopen

    deadline = time.monotonic() + READY
    while True:
        try:
            return urlopen(f"{url}/v1/models", timeout=5).close()  # type: ignore[no-any-return]
        except OSError as error:
            if process is None or process.poll() is not None or time.monotonic() > deadline:
                code = process and process.poll()
                why = error if code is None else f"its command ended with {code}"
                pytest.fail(f"no server at {url}: {why}", pytrace=False)
        time.sleep(0.2)


def claim(server: Server, *parts: str, **options: Any) -> dict[str, Any]:
    """Run parts of `sps check`; return its results in JSON if all held and are as expected.

    Else the test fails; it is an expected failure where nothing could be decided in the server's
    budget, unless `undecided` is fail. `options` are those of `sps check`: None and False are left
    out, True is a flag, a list is repeated.
    """
    __tracebackhide__ = True
    weights = server.weights if BY_WEIGHTS & {*parts} else None
    words = ["check", server.url, *(word for part in parts for word in ("--only", part))]
    for name, value in {"max_tokens": server.tokens or None, "weights": weights, **options}.items():
        flag = f"--{name.replace('_', '-')}"
        listed = value if isinstance(value, list | tuple) else [value]
        for item in (item for item in listed if item is not None and item is not False):
            words += [flag] if item is True else [flag, str(item)]
    command = [sys.executable, "-m", "spsbench", *words, "--format", "json", "--keep"]
    code, evidence, result = UNDECIDED, f"not decided in {server.minutes} min", dict[str, Any]()
    with TemporaryDirectory() as folder, suppress(subprocess.TimeoutExpired, ValueError):
        command.append(f"{folder}/answers.jsonl")
        seconds = 60 * server.minutes or None
        ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        code, evidence = ran.returncode, ran.stderr.strip()
        result = json.loads(ran.stdout)
        evidence = "\n- ".join([result["sentence"], *result["notes"]])
    evidence += f"\nagain: sps {shlex.join(words)}"
    if code == UNDECIDED and server.undecided == "xfail":
        pytest.xfail(evidence)
    if code != 0:
        pytest.fail(evidence, pytrace=False)
    return result


def _assertion(text: str, *parts: str) -> Callable[..., None]:
    """Return (server, **options) -> None: a `claim` of `parts`, failing as that; doc is `text`."""

    def assert_parts(server: Server, **options: Any) -> None:
        claim(server, *parts, **options)

    assert_parts.__doc__ = text
    return assert_parts


assert_sampled = _assertion("Assert that sampled text has the distribution of the model.", "law")
assert_greedy = _assertion("Assert that greedy text is the model's own.", "greedy")
assert_cache = _assertion("Assert that a repeated prompt has the same greedy text.", "cache")
assert_mixed = _assertion("Assert that greedy text is the same next to sampled text.", "mixed")
assert_json = _assertion("Assert that greedy answers under schemas are the model's own.", "json")
assert_logprobs = _assertion("Assert that log-probabilities are those of the weights.", "logprobs")
assert_agents = _assertion(
    "Assert that calls of tools fit their schemas, and streams equal whole answers.",
    *("tools", "stream"),
)


def assert_acceptance(server: Server, *, expect: str | Path, **options: Any) -> None:
    """Assert that drafts are accepted as a file of `sps check --write-expect` says."""
    claim(server, "law", "greedy", expect=expect, **options)
