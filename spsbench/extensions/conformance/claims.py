"""Claims about a server as functions for tests: each runs a part of `sps check` in a process.

A claim that fails shows the verdict, its evidence, and the command that repeats it alone. One that
cannot be decided is an expected failure, or fails where `--sps-undecided fail` says so.
"""

import json
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

BY_WEIGHTS = {"law", "greedy", "logprobs"}  # parts that use weights


@dataclass(frozen=True)
class Server:
    """A running server, and what a claim about it may spend.

    Args:
        tokens: most sampled tokens; None: as `sps check` has it.
        minutes: None: no limit.
        undecided: what becomes of a claim that cannot be decided: "xfail" or "fail".
        weights: model of the server, where claims name none.
    """

    url: str
    tokens: int | None = None
    minutes: float | None = None
    undecided: str = "xfail"
    weights: str | None = None


def claim(server: Server, *parts: str, **options: Any) -> dict[str, Any]:
    """Run parts of `sps check`, and end the test by the verdict.

    Args:
        options: of `sps check`, by name; None is left out, and True is a flag.

    Returns:
        The results in JSON, where all parts held and are as expected.
    """
    __tracebackhide__ = True
    weights = server.weights if BY_WEIGHTS & {*parts} else None
    words = ["check", server.url, *(word for part in parts for word in ("--only", part))]
    for name, value in {"max_tokens": server.tokens, "weights": weights, **options}.items():
        flag = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [flag] if each is True else [] if each is None else [flag, str(each)]
    again = f"again: sps {shlex.join(words)}"
    command = [sys.executable, "-m", "spsbench", *words, "--format", "json", "--keep"]
    seconds = None if server.minutes is None else 60 * server.minutes
    code, evidence, result = 6, f"not decided within {server.minutes} minutes", dict[str, Any]()
    with TemporaryDirectory() as folder, suppress(subprocess.TimeoutExpired, ValueError):
        command.append(f"{folder}/answers.jsonl")
        ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        code, evidence = ran.returncode, ran.stderr.strip()
        result = json.loads(ran.stdout)
        evidence = "\n- ".join([result["sentence"], *result["notes"]])
    if code == 6 and server.undecided == "xfail":
        pytest.xfail(f"{evidence}\n{again}")
    if code != 0:
        pytest.fail(f"{evidence}\n{again}", pytrace=False)
    return result


def assert_sampled(server: Server, **options: Any) -> None:
    """Assert that sampled text has the distribution of the model."""
    claim(server, "law", **options)


def assert_greedy(server: Server, **options: Any) -> None:
    """Assert that greedy text is the model's own."""
    claim(server, "greedy", **options)


def assert_cache(server: Server, **options: Any) -> None:
    """Assert that a prompt that comes again has the same greedy text."""
    claim(server, "cache", **options)


def assert_mixed(server: Server, **options: Any) -> None:
    """Assert that greedy text stays what it is in batches with sampled text."""
    claim(server, "mixed", **options)


def assert_json(server: Server, **options: Any) -> None:
    """Assert that greedy answers under JSON schemas are the model's own."""
    claim(server, "json", **options)


def assert_logprobs(server: Server, **options: Any) -> None:
    """Assert that stated log-probabilities are those of the weights."""
    claim(server, "logprobs", **options)


def assert_agents(server: Server, **options: Any) -> None:
    """Assert that calls of tools fit their schemas, and that streams equal whole answers."""
    claim(server, "tools", "stream", **options)


def assert_acceptance(server: Server, *, expect: str | Path, **options: Any) -> None:
    """Assert that drafts are accepted as a file of `sps check --write-expect` says."""
    claim(server, "law", "greedy", expect=expect, **options)
