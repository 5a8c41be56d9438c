"""The pytest plug-in `sps`: options, and the fixture of a server that is there or is started.

Nothing else of the package is imported before a test asks for the fixture.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

READY = 120.0  # seconds until a server must answer
OPTIONS = {
    "server": "address of the server under test, such as http://127.0.0.1:8000; also SPS_SERVER",
    "command": "command that starts the server, whose processes end with the tests",
    "weights": "model of the server, to score texts with",
    "budget": "most that a claim may spend: tokens=20000,minutes=10, or one of them",
    "undecided": "what becomes of a claim that cannot be decided: xfail (default) or fail",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--sps-NAME`, which a file of pytest's options may have as `sps_NAME`."""
    group = parser.getgroup("sps", "a server under test by sps check")
    for name, text in OPTIONS.items():
        group.addoption(f"--sps-{name}", help=text)
        parser.addini(f"sps_{name}", text)


@pytest.fixture(scope="session")
def sps_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield the server under test; one that a command starts ends after the tests."""
    from spsbench.extensions.conformance.claims import Server

    config = request.config
    given = {
        name: config.getoption(f"--sps-{name}")
        or os.environ.get(f"SPS_{name.upper()}")
        or config.getini(f"sps_{name}")
        for name in OPTIONS
    }
    if not given["server"]:
        pytest.skip("no server: give --sps-server URL, SPS_SERVER, or sps_server in pyproject.toml")
    budget = dict(part.partition("=")[::2] for part in (given["budget"] or "").split(",") if part)
    undecided = given["undecided"] or "xfail"
    try:
        tokens, minutes = int(budget.pop("tokens", 0)), float(budget.pop("minutes", 0))
        if budget or undecided not in ("xfail", "fail"):
            raise ValueError
    except ValueError:
        line = "expected --sps-budget tokens=N,minutes=N and --sps-undecided xfail or fail"
        raise pytest.UsageError(line) from None
    url, weights = given["server"].rstrip("/"), given["weights"] or None
    process = start(given["command"], url)
    try:
        yield Server(url, tokens or None, minutes or None, undecided, weights)
    finally:
        end(process)


def start(command: str | None, url: str) -> Any:
    """Run the command of a server, if any, and return its process when `/v1/models` answers."""
    import shlex
    import subprocess
    from urllib.request import urlopen

    process = subprocess.Popen(shlex.split(command), start_new_session=True) if command else None
    deadline = time.monotonic() + READY
    while True:
        try:
            urlopen(f"{url}/v1/models", timeout=5).close()
            return process
        except OSError as error:
            code = None if process is None else process.poll()
            if process is None or code is not None or time.monotonic() > deadline:
                end(process)
                why = error if code is None else f"its command ended with {code}"
                pytest.fail(f"no server at {url}: {why}", pytrace=False)
        time.sleep(0.2)


def end(process: Any) -> None:
    """End the process group of a server, after ten seconds by force; None: there is none."""
    import signal
    import subprocess

    for number in (signal.SIGTERM, signal.SIGKILL) if process is not None else ():
        try:
            os.killpg(process.pid, number)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
