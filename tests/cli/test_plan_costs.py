"""`sps plan --show-costs` and what it is not asked together with."""

import json

import pytest

from spsbench.metrics.costs_file import dumps
from spsbench.planning.folder import Kept
from spsbench.settings.cell_from_options import make_cell
from tests.planning.forecast.made import costs


@pytest.fixture
def plan(tmp_path):
    """A folder of a plan, as far as its costs go."""
    folder = tmp_path / "plan"
    folder.mkdir()
    (folder / "costs.json").write_text(dumps(costs()))
    Kept(cells=[make_cell()], identity={}, texts=[], costs="costs.json").save(folder)
    return folder


def test_a_plan_and_a_file_show_the_same(sps, plan):
    of_plan = sps("plan", str(plan), "--show-costs")
    of_file = sps("plan", "--costs", str(plan / "costs.json"), "--show-costs")
    assert of_plan.code == of_file.code == 0, of_plan.err + of_file.err
    assert of_plan.out == of_file.out
    assert "v(5)" in of_plan.out
    assert "not explained" in of_plan.out


def test_tables_as_values(sps, plan):
    alone, rounds = json.loads(sps("plan", str(plan), "--show-costs", "--json").out)
    assert alone["rows"][0][0] == "100"
    assert len(rounds["headings"]) == len(rounds["rows"][0])


@pytest.mark.parametrize(
    ("asked", "code", "told"),
    [
        (["--show-costs"], 2, "Name one of the two"),
        (["nowhere", "--show-costs"], 66, "no plan"),
        (["--costs", "nowhere", "--show-costs"], 66, "nowhere"),
        (["--show-costs", "--plot", "x"], 2, "no --plot"),
        (["xsum", "--shapes", "16x1"], 2, "--shapes with xsum"),
    ],
)
def test_what_cannot_be_shown(sps, asked, code, told):
    ran = sps("plan", *asked)
    assert (ran.code, told in ran.err) == (code, True), ran.err
