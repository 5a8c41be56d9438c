"""`sps verify rows` and `sps verify state` as commands."""

import json

import pytest

from spsbench.audit import passes
from spsbench.errors import Exit
from tests.serving.stub import Engine, Stub, serving


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


def test_verify_rows_of_servers_prints_a_table_and_json(sps):
    with serving(Stub(Engine(k=3))) as url, serving(Stub(Engine(k=0))) as baseline:
        ran = sps("verify", "rows", url, "--baseline", baseline)
        assert ran.code == Exit.OK
        assert "server, its own text" in ran.out
        assert "neighbouring tokens" in ran.out
        assert "held: servers: same bits" in ran.err
        content = json.loads(sps("verify", "rows", url, "--json").out)
    assert content["exit"] == Exit.OK
    assert content["rounding"] == 0.0
    assert content["comparisons"][0]["way"] == "server, as a prompt"


def test_verify_rows_of_a_server_with_another_law_exits_7(sps):
    class Scaled(Engine):
        def prompt_logits(self, prompt):
            return [1.1 * row for row in super().prompt_logits(prompt)]

    with serving(Stub(Scaled(k=0))) as url:
        ran = sps("verify", "rows", url)
    assert ran.code == Exit.BIAS
    assert "two laws" in ran.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nano", "--baseline", "http://127.0.0.1:9"), "--baseline with a model"),
        (("http://127.0.0.1:9", "--dtype", "float32"), "--dtype with a server"),
        (("http://127.0.0.1:9?key=1",), "a URL with a key or a query"),
        (("ftp://127.0.0.1",), "no URL of a server"),
        (("http://127.0.0.1:9", "--timeout", "0"), "expected a timeout above 0"),
        (("http://127.0.0.1:9", "--rounding", "-1"), "0 to 100"),
    ],
)
def test_verify_rows_refuses_options_of_the_other_kind(sps, arguments, reason):
    ran = sps("verify", "rows", *arguments)
    assert ran.code == Exit.USAGE
    assert reason in " ".join(ran.err.split())
    assert "Traceback" not in ran.err
