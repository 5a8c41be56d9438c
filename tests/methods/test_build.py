"""From a cell to parts: what is refused before a model is touched, and what is put together."""

import json

import pytest

from spsbench.errors import UsageError
from spsbench.loop.types import Drafter, Drawn
from spsbench.methods.resolve import resolve
from spsbench.plugins import fix_spec
from spsbench.reports.page.answer import lossless
from spsbench.settings.cell import Cell, CellRequest
from spsbench.settings.labels import method
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec

SAMPLED = CellRequest(target=ModelSpec("t"), draft=ModelSpec("d"))
LOOKED_UP = CellRequest(target=ModelSpec("t"), drafter=Spec("ngram"))


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    ("cell", "verifier"),
    [
        (SAMPLED, "sps"),
        (LOOKED_UP, "match"),
        (CellRequest(target=ModelSpec("t"), drafter=Spec("none")), "sps"),
        (SAMPLED.but(verifier=Spec("block")), "block"),
        (SAMPLED.but(verifier=Spec("match")), "match"),
    ],
)
def test_the_verifier_that_goes_with_the_drafter(cell, verifier):
    resolved = resolve(cell)
    assert resolved.verifier == Spec(verifier)
    assert resolved.to_request(verifier=cell.verifier) == cell
    assert resolve(resolved.to_request()) == resolved
    plain = resolved.auto_regressive
    assert (resolve(plain.to_request()), resolve(plain.to_request()).id) == (plain, plain.id)


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    "changes",
    [
        {"target": ModelSpec("t", engine=Spec("beam"))},
        {"draft": ModelSpec("d", engine=Spec("beam"))},
        {"draft": None},
        {"drafter": Spec("ngram")},
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"draft": None, "drafter": Spec("ngram"), "verifier": Spec("sps")},
        {"draft": None, "drafter": Spec("ngram"), "verifier": Spec("block")},
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused(changes):
    with pytest.raises(UsageError) as refused:
        resolve(SAMPLED.but(**changes))
    assert "\n" not in str(refused.value)


class Needy(Drafter):
    """Has an argument without a default."""

    drawn = Drawn.POINT

    def __init__(self, width: int) -> None:
        self.width = width

    def draft(self, context, k, noise, go_on):
        raise NotImplementedError


@pytest.mark.needs_fast
def test_a_drafter_that_cannot_be_made_is_a_line(registered):
    registered("drafters", "needy", "tests.methods.test_build:Needy")
    with pytest.raises(UsageError):
        resolve(LOOKED_UP.but(drafter=Spec("needy")))
    assert resolve(LOOKED_UP.but(drafter=Spec("needy", (("width", 3),))))


RULE = """
from spsbench.loop.types import Guarantee
from spsbench.methods.verifiers.sps import Sps


class Mine(Sps):
    guarantee = {}
"""


@pytest.mark.needs_fast
@pytest.mark.parametrize("claim", ["Guarantee.LOSSY", "'lossy'", "Guarantee.EXACT"])
def test_a_rule_of_a_file_is_called_lossy_everywhere_where_it_says_so(tmp_path, claim):
    (tmp_path / "mine.py").write_text(RULE.format(claim))
    rule = fix_spec(Spec(f"{tmp_path / 'mine.py'}:Mine"))
    cell = resolve(SAMPLED.but(verifier=rule))
    is_lossy = "lossy" in claim.lower()
    assert ("(lossy)" in method(cell)) == is_lossy
    assert lossless(cell, None).status == ("bad" if is_lossy else "open")  # a claim is no proof
    read = Cell.from_json(json.loads(json.dumps(cell.to_json())))
    assert (read, read.guarantee, read.id) == (cell, cell.guarantee, cell.id)
    assert (
        cell.id == Cell.from_request(SAMPLED.but(verifier=rule)).id
    )  # as in runs that do not say it


@pytest.mark.needs_fast
def test_a_rule_that_promises_something_unknown_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(RULE.format("'loss'"))
    with pytest.raises(UsageError):
        resolve(SAMPLED.but(verifier=fix_spec(Spec(f"{tmp_path / 'mine.py'}:Mine"))))


@pytest.mark.needs_fast
def test_the_json_of_a_cell_names_no_guarantee_of_a_built_in_rule():
    assert "guarantee" not in resolve(SAMPLED.but(verifier=Spec("lenient"))).to_json()
