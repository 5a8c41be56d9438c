"""Fixtures of the whole suite: one thread, and tiny random models of four architectures."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from spsbench import generation, messages, registry
from spsbench.audit.exact import rules
from spsbench.benchmark import models as benchmark_models
from spsbench.hardware.memory import read_bandwidth
from spsbench.registry import Entry, Kind
from tests.oracles.models import tiny

pytest_plugins = ("tests.oracles.command", "tests.oracles.servers")

gc.disable()  # while modules are imported and tests collected
torch.set_num_threads(int(os.environ.get("SPSBENCH_TEST_THREADS", "1")))  # `make test-portable`
generation.WARM_UP_SECONDS = 0.0  # tests read no figure of time
benchmark_models.read_bandwidth = partial(read_bandwidth, size=1 << 20)  # likewise
messages.PATIENCE = 3600.0  # what a command says must not depend on how fast this machine is
for suite in Path(__file__).parent.glob("extensions/*/suite.py"):  # of extensions that are there
    import_module(f"tests.extensions.{suite.parent.name}.suite")
# The mirror of the hub that the user of this machine may have chosen has no say.
os.environ.pop("HF_ENDPOINT", None)
# A shell's background job is born with Ctrl-C ignored, and so would be the commands tested here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep the collector off what imports and collection made: it stays until the end."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 100)


def pytest_sessionfinish() -> None:
    """Collect what tests left; let what is imported for the summary see all that is alive."""
    gc.collect()
    gc.unfreeze()


def pytest_unconfigure() -> None:
    """Spare pytest its five last looks at all that was ever imported."""
    gc.freeze()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The lines that a user would be told, each different one once."""
    lines: list[str] = []
    with messages.lines_to(lines.append):
        yield lines


@pytest.fixture(scope="session")
def model() -> Callable[..., PreTrainedModel]:
    """`model("llama", vocab=12, seed=0, dtype=torch.float64, ...)`, made once for the session."""
    made: dict[str, PreTrainedModel] = {}

    def make(architecture: str, **options: object) -> PreTrainedModel:
        key = f"{architecture} {sorted(options.items(), key=str)}"
        if key not in made:
            made[key] = tiny(architecture, **options)
        return made[key]

    return make


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kind, str, str], None]:
    """`registered("drafters", "mine", "tests.x:Mine")`: a part of another package, by its name."""

    def register(kind: Kind, name: str, where: str) -> None:
        entry = Entry(kind, name, where, "from elsewhere")
        monkeypatch.setattr(registry, "BUILT_IN", (*registry.BUILT_IN, entry))

    return register


@pytest.fixture
def few_settings(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Walk few cases of rules: slow tests walk the whole table."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(rules, "TEXTS", (rules.TEXTS[0], rules.TEXTS[-1]))
        monkeypatch.setattr(rules, "ROUNDS", (*rules.ROUNDS[:2], rules.ROUNDS[-1]))
