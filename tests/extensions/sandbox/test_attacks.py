"""No attack reaches the host: as root and as a user, whatever the host lacks. Or nothing is run."""

import pytest

from spsbench.extensions.sandbox import levels
from spsbench.extensions.sandbox.levels import ProgramLimits
from spsbench.extensions.sandbox.runner import run_program
from spsbench.tables import read_table
from tests.extensions.sandbox import probes
from tests.extensions.sandbox.situations import HOSTS, USERS, needs_landlock, replaced, run_trial

RAW_CALL, KNOWN, MORE, RAW, CHEATS = read_table(__file__, "attacks.toml").values()
ATTACKS = KNOWN | MORE | {name: RAW_CALL + program for name, program in RAW.items()}
SOME = ("write outside", "loopback", "daemon", "kill the parent", "flood", "signal by ownership")
MORE_OF_THEM = ("datagram out of a pair", "early end", "open in the new way without a right")
SOME_ATTACKS = {name: ATTACKS[name] for name in (*SOME, *MORE_OF_THEM)}


def check(host, user, programs, tmp):
    found = run_trial(host, user, programs | CHEATS, tmp, timeout=0.5)
    expected = HOSTS[host][2]
    if expected is None:
        assert found["outcomes"] == {}
        assert not any(holds for _, holds, _ in found["levels"])
        return
    assert found["level"] == expected, found["levels"]
    assert found["reached"] == {}
    assert "left" not in found
    for name in programs:
        verdict, detail = found["outcomes"][name]
        assert verdict != "passed", name
        assert "NameError" not in detail, name
        assert "SyntaxError" not in detail, name
    assert found["outcomes"].keys() == (programs | CHEATS).keys()


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("host", HOSTS)
def test_attacks_reach_nothing(host, user, open_path):
    check(host, user, SOME_ATTACKS, open_path)


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("host", [host for host in HOSTS if HOSTS[host][2]])
def test_every_probe_is_refused(host, user, open_path):
    found = run_trial(host, user, {"probes": probes.program()}, open_path, timeout=20.0)
    assert found["outcomes"] == {"probes": ["passed", ""]}
    assert found["reached"] == {}


@needs_landlock
@pytest.mark.parametrize("part", ["landlock", "filter"])
def test_probes_escape_where_a_part_is_missing(part):
    limits = ProgramLimits(timeout=20.0)
    level = replaced(levels.landlock_level(limits), **{part: None})
    with probes.host() as targets:
        given = "".join(f"{key} = {value!r}\n" for key, value in targets.names.items())
        outcome = run_program(level, given + probes.program(), limits)
    escaped = {"landlock": "read a file", "filter": "change a mode"}[part]
    assert outcome.verdict == "ended early" or escaped in outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("host", HOSTS)
def test_all_attacks_reach_nothing(host, user, open_path):
    check(host, user, ATTACKS, open_path)


def test_without_a_sandbox_they_do(open_path):
    """The control: on these targets, attacks that are let through are seen."""
    names = ("write outside", "unlink", "class walk", "loopback", "parent's environment", "daemon")
    programs = {name: ATTACKS[name] for name in names}
    found = run_trial("bare", "user", programs, open_path, level="none")
    assert {name: outcome[0] for name, outcome in found["outcomes"].items()} == dict.fromkeys(
        names, "passed"
    )
    assert found["reached"].keys() >= {"write outside", "unlink", "class walk", "loopback"}
    assert found["left"].keys() == {"daemon"}
