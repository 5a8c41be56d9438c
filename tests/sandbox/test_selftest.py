"""The self-test: levels that hold, a level that does not, and what is kept of the answers."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spsbench.sandbox import choice, selftest
from spsbench.sandbox.choice import NONE, choose, survey
from spsbench.sandbox.interpreter import INSIDE
from spsbench.sandbox.landlocked import Landlocked
from spsbench.sandbox.level import Level
from spsbench.sandbox.limits import Limits
from spsbench.sandbox.program import run
from spsbench.sandbox.selftest import Answer
from spsbench.sandbox.verdict import SandboxError

ROOT = Path(__file__).parents[2]
SYSTEM_PYTHON = "/usr/bin/python3"
MASKED = f"""
import errno, sys
sys.path.insert(0, {str(INSIDE)!r})
import seccomp, kernel, ctypes, struct
code = [seccomp.load(0)]
for number in (444, 445, 446):
    code += seccomp.when(number, [seccomp.result(seccomp.REFUSE | errno.ENOSYS)])
code = b"".join(struct.pack("<HBBI", *one) for one in [*code, seccomp.result(seccomp.ALLOW)])
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
kernel.prctl(22, 2, ctypes.byref(seccomp.Program(len(code) // 8, code)), 0, 0)
"""
TELL = """
from spsbench.sandbox.choice import AUTO, survey
from spsbench.sandbox.selftest import test
import json
print(json.dumps({level.name: test(level) for level in AUTO if not level.missing()}))
"""


def answers(command: list[str], program: str = TELL, **environment: str) -> dict[str, Answer]:
    """What the levels answer in another process."""
    done = subprocess.run(
        [*command, "-c", program],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd="/",
    )
    return {name: Answer(*told) for name, told in json.loads(done.stdout).items()}


def test_every_way_out_is_closed(level: Level) -> None:
    answer = selftest.test(level)
    assert answer.holds, answer.reason
    assert int(answer.reason.split()[0]) >= 55


def test_without_a_sandbox_the_probes_get_out() -> None:
    answer = selftest.test(NONE)
    assert not answer.holds
    assert int(answer.reason.split()[0]) >= 30


def test_each_probe_but_a_few_is_seen_to_get_out() -> None:
    with selftest.canaries() as given:
        text = selftest.PROBES.read_text()
        outcome = run(f"GIVEN = {given!r}\n{text}", NONE, Limits(10.0))
    told = json.loads(outcome.output.splitlines()[0])
    names = re.findall(r"@probe\ndef (\w+)", text)
    assert told["tried"] == len(names)
    need_more_than_a_user = 22  # root's, or of a kernel built otherwise
    assert len(told["open"]) >= len(names) - need_more_than_a_user


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv")
def test_it_holds_for_an_ordinary_user(tmp_path: Path) -> None:
    python = sys.executable if choice.AUTO[1]._uid() is not None else SYSTEM_PYTHON
    if not Path(python).exists() or not os.stat(ROOT).st_mode & 0o005:
        pytest.skip("no interpreter or checkout that another user may read")
    home = tmp_path / "home"
    home.mkdir()
    user = ["setpriv", "--reuid", "4242", "--regid", "4242", "--clear-groups", python]
    try:
        told = answers(user, HOME=str(home))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"another user cannot import it: {error.stderr[-200:]}")
    assert all(answer.holds for answer in told.values()), told
    assert "landlock" in told


def test_without_bubblewrap_landlock_is_taken(no_bwrap: None) -> None:
    if Landlocked().missing():
        pytest.skip("no Landlock")
    assert survey()["bwrap"] == Answer(False, "not installed")
    assert choose("auto").name == "landlock"


@pytest.mark.skipif(not shutil.which("bwrap"), reason="no bubblewrap")
def test_inside_a_sandbox_without_user_namespaces_landlock_still_holds() -> None:
    outer = ["bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/"]
    if subprocess.run([*outer, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    told = answers([*outer, sys.executable])
    assert not told["bwrap"].holds
    assert told["landlock"].holds


def test_with_landlock_masked_everything_is_refused() -> None:
    masked = (
        f"{MASKED}\nfrom spsbench.sandbox.choice import choose\n"
        "from spsbench.sandbox.verdict import SandboxError\n"
        "try:\n    choose('auto')\nexcept SandboxError as error:\n    print(error, error.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", masked],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "no sandbox on this machine" in done.stdout
    assert "landlock: ABI 0" in done.stdout
    assert "Install bubblewrap" in done.stdout
    assert done.stdout.strip().endswith("3")


def test_an_answer_is_kept_for_this_user_alone(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = Landlocked()
    if level.missing():
        pytest.skip("no Landlock")
    first = selftest.holds(level)
    assert cache.stat().st_mode & 0o777 == 0o600
    asked: list[Level] = []
    monkeypatch.setattr(selftest, "test", lambda level: asked.append(level) or Answer(False, "new"))
    assert selftest.holds(level) == first
    assert not asked

    cache.chmod(0o644)  # others could have written it
    assert selftest.holds(level) == Answer(False, "new")


def test_an_answer_is_not_believed_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    level = Landlocked()
    if level.missing():
        pytest.skip("no Landlock")
    selftest.holds(level)
    before = selftest.identity(level)
    monkeypatch.setattr(selftest, "boot_id", lambda: "another boot")
    assert selftest.identity(level) != before


def spoil(monkeypatch: pytest.MonkeyPatch, spoiled: Callable[[dict], None]) -> Level:
    """Landlock's level with something missing in how the runner locks itself in."""
    from contextlib import contextmanager

    level = Landlocked()
    if level.missing():
        pytest.skip("no Landlock")
    start = Landlocked.start

    @contextmanager
    def start_spoiled(self):
        with start(self) as one:
            spoiled(one.order)
            yield one

    monkeypatch.setattr(Landlocked, "start", start_spoiled)
    return level


def test_a_level_without_landlock_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    level = spoil(monkeypatch, lambda order: order.update(landlock=False))
    assert "read_host_file" in selftest.test(level).reason


def test_a_level_that_may_read_everything_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    level = spoil(monkeypatch, lambda order: order["readable"].append("/"))
    assert not selftest.test(level).holds


def test_a_level_that_is_not_confined_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    level = spoil(monkeypatch, lambda order: order.update(confined=False))
    assert not selftest.test(level).holds


def test_a_named_level_that_does_not_hold_is_refused(no_bwrap: None) -> None:
    with pytest.raises(SandboxError, match="bwrap does not hold on this machine"):
        choose("bwrap")
