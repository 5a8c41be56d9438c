"""`sps verify rows` and `sps verify state` as commands."""

import json

import pytest

from spsbench.audit import passes
from spsbench.errors import Exit


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(passes, "SIZES", (2,))
    monkeypatch.setattr(passes, "TOKENS", 4)


def test_verify_rows_prints_a_table_and_a_line(sps):
    ran = sps("verify", "rows", "nano", "--offline")
    assert ran.code == Exit.OK
    assert "transformers, attention sdpa" in " ".join(ran.out.replace("\u2502", " ").split())
    assert "held: engines:" in ran.err


def test_verify_rows_prints_json(sps):
    ran = sps("verify", "rows", "nano", "--offline", "--json")
    content = json.loads(ran.out)
    assert content["exit"] == ran.code == Exit.OK
    assert {one["kind"] for one in content["comparisons"]} <= {"same bits", "rounding"}


def test_verify_state_refuses_a_model_without_states(sps):
    ran = sps("verify", "state", "nano", "--offline")
    assert ran.code == Exit.USAGE
    assert "nano keeps no states" in ran.err
    assert "Traceback" not in ran.err
