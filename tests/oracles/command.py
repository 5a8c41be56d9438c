"""The command line in this process, in another one, and on a terminal of its own."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spsbench.cli.main import main
from tests.cli.forked import Forked
from tests.folders import byte_tokenizer, random_model, save

PROGRAM = "import sys; from spsbench.cli.main import main; sys.argv[0] = 'sps'; main()"
COMMAND = (sys.executable, "-W", "error::ResourceWarning", "-c", PROGRAM)

PATIENCE = 250  # seconds; a busy machine may need a minute to import torch


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Stdin(io.TextIOWrapper):
    """Bytes as standard input, or a terminal at which nobody types."""

    def __init__(self, content: bytes, terminal: bool) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Pair(NamedTuple):
    target: str
    draft: str


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A target and a smaller draft that often agrees with it; contexts of 512 and 256 tokens."""
    folder = tmp_path_factory.mktemp("pair")
    save(folder / "target", random_model())
    save(folder / "draft", random_model(noise=0.1, context=256))
    return Pair(str(folder / "target"), str(folder / "draft"))


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of three layers, for which something may be trained."""
    folder = tmp_path_factory.mktemp("target") / "tiny"
    return str(save(folder, random_model(num_hidden_layers=3), byte_tokenizer()))


@pytest.fixture
def sps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`sps(*arguments, stdin=bytes)`, or `typed=bytes` at a terminal, in this process."""
    # The suite has imported these libraries already; the command must decide before it does.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    for name in ("NO_COLOR", "SPS_DEBUG", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, stdin: bytes | None = None, typed: bytes = b"") -> Ran:
        monkeypatch.setattr("sys.stdin", Stdin(stdin or typed, terminal=stdin is None))
        monkeypatch.setattr("sys.argv", ["sps", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Ran(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def generate(sps: Callable[..., Ran], pair: Pair) -> Callable[..., Ran]:
    """`sps generate` with the pair."""

    def run(*arguments: str, stdin: bytes | None = None) -> Ran:
        return sps(
            "generate", *arguments, "--target", pair.target, "--draft", pair.draft, stdin=stdin
        )

    return run


def environment(**more: str) -> dict[str, str]:
    """This process's, without what would change colours or threads."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "SPS_DEBUG")}
    return kept | {"TERM": "xterm", "OMP_NUM_THREADS": "1"} | more


def apart(*arguments: str, stdin: bytes = b"", cwd: Path | None = None, **env: str) -> Ran:
    """The command in a process of its own, without a terminal."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=environment(**env),
        timeout=PATIENCE,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


class Terminal:
    """The command on a terminal; stderr comes apart. `forked` where the start is no matter."""

    def __init__(self, *arguments: str, forked: bool = False, **env: str) -> None:
        self._master, slave = pty.openpty()
        self.process: Any
        if forked:
            self.process = Forked(*arguments, env=environment(**env), terminal=slave)
        else:
            self.process = subprocess.Popen(
                [*COMMAND, *arguments],
                stdin=slave,
                stdout=slave,
                stderr=subprocess.PIPE,
                env=environment(**env),
                start_new_session=True,
            )
        os.close(slave)
        self.out = ""

    def expect(self, text: str, seconds: float = PATIENCE) -> str:
        """Wait until `text` is on the screen; what came before it and was not yet expected."""
        until = time.monotonic() + seconds
        while text not in self.out:
            if not self._read(until - time.monotonic()):
                raise AssertionError(f"{text!r} did not come: {self.out!r}")
        before, _, self.out = self.out.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> Ran:
        """Wait for the end, and what has come since."""
        while self._read(PATIENCE):
            pass
        _, err = self.process.communicate(timeout=PATIENCE)
        os.close(self._master)
        return Ran(self.process.returncode, self.out.replace("\r\n", "\n"), err.decode())

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], max(seconds, 0))[0]:
            return False
        try:
            content = os.read(self._master, 65536)
        except OSError:  # the other side has closed
            return False
        self.out += content.decode(errors="replace")
        return bool(content)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """`terminal(*arguments)` starts the command; what still runs at the end is killed."""
    started: list[Terminal] = []

    def start(*arguments: str, forked: bool = False, **env: str) -> Terminal:
        started.append(Terminal(*arguments, forked=forked, **env))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()
