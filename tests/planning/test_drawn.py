"""The words and lines that a plan ends in."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from spsbench.metrics.intervals import Estimate
from spsbench.metrics.summaries import summaries
from spsbench.planning.candidates import candidate_of, cells_of
from spsbench.planning.forecast.recommendation import Measured, Verdict, unpredicted
from spsbench.planning.planner import Planner
from spsbench.planning.report import command, missing
from spsbench.settings.cell import Cell
from spsbench.settings.commands import Planning
from spsbench.settings.execution import Access, OutputFolder
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import RoundRecord
from spsbench.spec import Spec
from tests.simulation import cell as simulated
from tests.simulation import failure, record

ARS, SPS = simulated(0), simulated(4)
ROUNDS = [RoundRecord(0, 0, 0, 1, None, 1.0, 0.0, 1.0)]


def measured(value):
    estimate = Estimate(value, value - 0.05, value + 0.05, 10)
    return Measured(estimate, estimate, estimate)


def test_what_no_text_foretells_may_still_win():
    best = unpredicted("tree d, K = 4, match", measured(1.5))
    assert "Speculate with tree d, K = 4, match: 1.50x (1.45 to 1.55) measured" in str(best)
    assert "Do not speculate" in str(unpredicted("tree d, K = 4, match", measured(0.9)))
    alone = Estimate(1.5, None, None, 3)
    few = unpredicted("tree d, K = 4, match", Measured(alone, alone, alone))
    assert few.verdict is Verdict.UNDECIDED
    assert "Not decided: tree d" in str(few)


def test_the_command_has_what_is_not_usual():
    cell = Cell.of(
        target=ModelSpec("my model", dtype="bfloat16"),
        draft=ModelSpec("small", "abc", dtype="bfloat16", engine=Spec("eager")),
        verifier=Spec("block"),
        schedule=Spec("ema"),
        temperature=0.7,
        top_p=0.9,
    )
    answer = unpredicted("x", measured(1.5))
    assert command(cell, answer) == (
        "sps generate --target 'my model' --dtype bfloat16 --draft small --draft-revision abc "
        "--draft-engine eager "
        "--verifier block --schedule ema --temperature 0.7 --top-p 0.9 PROMPT"
    )
    rule = cell.but(draft=None, drafter=Spec("ngram"), schedule=Spec.parse("constant:lookahead=3"))
    assert "--drafter ngram --verifier block --k 3" in command(rule, answer)
    assert "--k 0 " in command(rule, unpredicted("x", measured(0.8)))
    asked = rule.but(chat=True, system="Be brief.")
    assert command(asked, answer).endswith("--chat --system 'Be brief.' PROMPT")
    open_ = replace(answer, verdict=Verdict.UNDECIDED)
    assert command(asked, open_).endswith("--compare PROMPT")
    quantised = cell.but(draft=ModelSpec("my model", dtype="bfloat16", weights="int4"))
    assert "--draft 'my model' --draft-weights int4" in command(quantised, answer)
    assert "--temperature" not in command(replace(rule, sampling=type(rule.sampling)()), answer)


def test_a_plan_in_a_chat_is_used_in_a_chat():
    cells = cells_of({"drafter": [Spec("ngram")]}, "2")
    planner = Planner(
        cells=cells,
        spec=Spec("xsum"),
        task=None,
        planning=Planning(),
        place=OutputFolder(),
        access=Access(),
        model_cache=None,
        chat=True,
        system="Be brief.",
    )
    (cell,) = planner.cells
    assert "--chat --system 'Be brief.' PROMPT" in command(cell, unpredicted("x", measured(1.5)))


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([], "0 of its generations failed, and none succeeded"),
        ([failure(SPS, "a")], "1 of its generations failed, and none succeeded"),
        ([record(SPS, "a", 0, ROUNDS, flags=("first",))], "all of its timings are of first calls"),
        (
            [record(SPS, "a", 0, ROUNDS), record(ARS, "a", 0, ROUNDS, flags=("first",))],
            "no prompt was timed with it and with ArS",
        ),
    ],
)
def test_a_missing_figure_has_its_reason(records, told, monkeypatch):
    rows = summaries([ARS, SPS], records)
    found = [SimpleNamespace(whole=rows)]
    monkeypatch.setattr("spsbench.planning.report.tables", lambda folder: found)
    name = str(candidate_of(SPS))
    assert missing(Path("run"), [SPS]) == {name: told}
