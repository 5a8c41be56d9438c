"""`sps check --adversary` against a stub whose drafts are those of the proposer's script."""

import json

import numpy as np
import pytest

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.errors import DataError
from spsbench.extensions.check import page
from spsbench.extensions.check.check import run_check
from spsbench.extensions.check.journal import Journal
from tests.extensions.check.stubs import of_stub, weights
from tests.extensions.vllm.test_proposer import proposer_of
from tests.oracles.stub import SIZE, Engine, K, Stub, draw, softmax
from tests.variants import first


class Scripted(Engine):
    """Judges the drafts of a script by one-sample match, with a fault of rollback."""

    def __init__(self, path, fault=""):
        super().__init__(as_vllm=True)
        self.proposer, self.fault = proposer_of(SIZE, 999, script=str(path)), fault

    def round(self, made, fed, temperature, rng, n, request, cut, start):
        row = np.array([fed], np.int32)
        drafts = self.proposer.propose([fed[-1:]], np.array([len(fed)]), row)[0] if made.ids else []
        q = softmax(stated := self.score(fed, [*drafts, 0]), temperature)
        kept, new = 0, draw(q[0], rng)
        while kept < len(drafts) and drafts[kept] == new:
            kept, new = kept + 1, draw(q[kept + 1], rng)
        if self.fault == "wrong at 2" and kept == 1 < len(drafts):
            new = (new + 1) % SIZE
        if self.fault == "rare" and temperature and kept < len(drafts) and rng.random() < 0.5:
            new = drafts[kept]
        made.logits += list(stated[: kept + 1])
        made.ids += [*drafts[:kept], new]
        made.accepted.append(kept)
        made.drafted.append(len(drafts))
        fed += made.ids[-kept - 1 :]


@pytest.mark.parametrize("fault", first(2, ["", "rare", "wrong at 2"]))
def test_each_scenario_has_a_verdict_and_names_the_fault(fault, tmp_path):
    path, kept = tmp_path / "script.json", tmp_path / "kept.jsonl"
    stub, given = Stub(Scripted(path, fault)), {"bias": 0.3, "most": 600, "temperatures": (1.0,)}
    result = of_stub(stub, weights(), adversary=str(path), journal=Journal(kept), **given)
    assert len(result.scenarios) == 12 + K + 4
    biased = {n for n, part in result.scenarios.items() if part.verdict is AuditVerdict.BIAS}
    due = {"": set(), "rare": {"rare, sampled"}}.get(fault, {f"{fault}, greedy"})
    assert due <= biased
    assert bool(fault) is bool(biased)
    assert "wrong at 1, greedy" not in biased
    assert not any(json.loads(path.read_bytes())["texts"][0][1])
    path.unlink()
    again = run_check(None, {"resume": kept}, load=lambda *_, **__: weights())
    assert page.sentence(again) == page.sentence(result)


def test_a_server_without_a_script_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(DataError):
        of_stub(Stub(Engine()), adversary=str(tmp_path / "a.json"))
