"""What drafts by default is named, wherever something drafts by default."""

import logging

import pytest

from spsbench.benchmark.bench import plan_experiment
from spsbench.messages import lines_to
from spsbench.models.prepare import note_default_drafters
from spsbench.settings.execution import Access
from spsbench.settings.grid import Sweep, make_request
from spsbench.settings.options import parse

OWN = "hybrid:first=suffix,then=eagle3 smollm2-eagle3 int8 under schedule payoff:costs=here"
LOOKUP = "ngram (prompt lookup), since none was named; name a draft model with `draft`"


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"target": "smollm2"}, f"{OWN}, since none was named"),
        ({"target": "nano"}, "model nano-draft, since none was named"),
        ({"target": "/a/folder"}, LOOKUP),
        ({"target": "/a/folder", "decoder": "hf"}, LOOKUP),
        (  # which is refused later, by its own line
            {"target": "nano", "schedule": "constant:lookahead=many"},
            "model nano-draft, since none was named",
        ),
        ({"target": "nano", "k": 0}, None),
        ({"target": "smollm2", "drafter": "suffix"}, None),
        ({"target": "/a/folder", "draft": "/another"}, None),
        ({"decoder": "openai:url=http://127.0.0.1:1"}, None),
    ],
)
def test_the_default_of_each_target_is_named(caplog, options, line):
    with caplog.at_level(logging.INFO):
        note_default_drafters([make_request(**options)], options)
    assert caplog.messages == ([] if line is None else [f"note: drafting with {line}"])


def test_a_bench_names_it(caplog):
    lines = []
    with lines_to(lines.append):
        for asked in ({"k": "2,4"}, {"drafter": ("ngram",)}):
            plan_experiment(
                [*parse({"task": "xsum", "limit": 1, **asked}, Sweep)], Access(offline=True)
            )
    assert [line for line in lines if "drafting" in line] == [
        "note: drafting with model nano-draft, since none was named"
    ]
