"""The words and lines that a plan ends in."""

from dataclasses import replace

from spsbench.metrics.intervals import Estimate
from spsbench.planning.forecast.recommendation import BreakEven, Measured, Verdict, answer
from spsbench.planning.report import command
from spsbench.settings.cell import Cell
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec


def measured(value):
    estimate = Estimate(value, value - 0.05, value + 0.05, 10)
    return Measured(estimate, estimate, estimate)


def unpredicted(name, figures):
    return answer(name, None, figures, BreakEven(), 3)


def test_what_no_text_foretells_may_still_win():
    best = unpredicted("tree d, K = 4, match", measured(1.5))
    assert "Speculate with tree d, K = 4, match: 1.50x (1.45 to 1.55) measured" in str(best)
    assert "Do not speculate" in str(unpredicted("tree d, K = 4, match", measured(0.9)))
    alone = Estimate(1.5, None, None, 3)
    few = unpredicted("tree d, K = 4, match", Measured(alone, alone, alone))
    assert few.verdict is Verdict.UNDECIDED
    assert "Not decided: tree d" in str(few)


def test_the_command_has_what_is_not_usual():
    cell = Cell(
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
    assert "--temperature" not in command(rule.but(temperature=1.0, top_p=1.0), answer)
