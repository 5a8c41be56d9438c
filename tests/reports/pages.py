"""Reports to make pages of: what is measured is simulated, what is written may be hostile."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spsbench.metrics.parity import Parity
from spsbench.metrics.summaries import summaries
from spsbench.reports.reporter import Report, Title
from spsbench.reports.run_tables import make_table
from spsbench.settings.cell import Cell
from spsbench.settings.records import DraftProbs, Record
from spsbench.spec import Spec
from tests.simulation import cell, run

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!--<script>",
    "\u202eright to left\u2066\u200b",
    "\x1b[31mred\x07\x00",
    "one\u2028two\u2029three",
    "half \ud800 a pair \udfff",
    "]]>\"'`${1+1}&lt;&#x3c;{{7*7}}",
    "x" * 1_000_000,
)


TEST = {"direction": "draft", "stratum": "all", "tokens": 90, "observed": 0.51, "expected": 0.5}
ARM: dict[str, Any] = {
    "name": "SpS",
    "texts": 3,
    "tokens": 90,
    "alarmed": False,
    "e_value_log10": 0.25,
    "tests": [TEST | {"bias": 0.01, "z": 0.4}],
    "impossible": [],
    "impossible_count": 0,
    "curve": [[0, 0.0], [40, -0.5], [90, 0.25]],
}
AUDIT: dict[str, Any] = {
    "name": "xsum, sps",
    "settings": {},
    "verdict": "held",
    "alarm_log10": 3.0,
    "line": "would have caught a bias of 0.1 or more with probability 0.99; found none",
    "controls": {
        "ars": {**ARM, "name": "ArS"},
        "injected": {"bias": 0.1, "caught": 20, "repeats": 20},
    },
    "sps": ARM,
}
DIVERGENCE = {"position": 5, "tokens": [3, 9], "gap": 0.0, "tolerance": 1e-6, "kind": "tie"}
GREEDY: dict[str, Any] = {
    "name": "xsum, greedy",
    "settings": {},
    "verdict": "held",
    "line": "1 identical, 1 tie, 0 bug",
    "counts": {"identical": 1, "tie": 1},
    "controls": {"ars_repeats": True, "planted_bug_caught": True},
    "prompts": [
        {"name": "p0", "kind": "identical", "divergence": None, "logits": None},
        {"name": "p1", "kind": "tie", "divergence": DIVERGENCE, "logits": [1.5, 1.5]},
    ],
}


class Spelled:
    """A tokenizer whose tokens are the hostile texts."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(HOSTILE[token % len(HOSTILE)] for token in token_ids)


def simulated(samples: int = 10, tokens: int = 24, **changes: object) -> list[Record]:
    """ArS and two of SpS over the same samples."""
    return [
        record
        for k, alpha in ((0, 0.5), (2, 0.7), (4, 0.7))
        for record in run(cell(k, max_new_tokens=tokens, **changes), alpha, samples, seed=k + 1)
    ]


def cells(tokens: int = 24, **changes: object) -> list[Cell]:
    return [cell(k, max_new_tokens=tokens, **changes) for k in (0, 2, 4)]


def report_of(
    records: Sequence[Record],
    of: Sequence[Cell],
    run: str = "run-1",
    parities: Sequence[tuple[Cell, Parity]] = (),
    by_group: bool = False,
) -> Report:
    rows = summaries(of, records, by_group=by_group)
    made = make_table(
        rows, Title(run, "made up"), records=lambda: iter(records), paper=True, parities=parities
    )
    return Report(run, [made])


def hostile() -> Report:
    """Names, groups, samples, texts and errors that would all like to be something else."""
    task = Spec("jsonl", (("path", HOSTILE[0] + HOSTILE[3]),))
    of = cells(task=task)[::2]  # too few K for the figure against K
    named = {old.id: new for old, new in zip(cells()[::2], of, strict=True)}
    records = [
        replace(
            record,
            cell=named[record.cell].id,
            sample=record.sample + HOSTILE[1],
            text="".join(HOSTILE[:-1]),
            group=HOSTILE[int(record.sample[1:]) % 2],
            laws=[
                DraftProbs([7] * r.drafted, [0.5] * r.drafted, [0.25] * r.drafted)
                for r in record.rounds
            ],
        )
        for record in simulated()
        if record.cell in named
    ]
    return report_of(records, of, run=HOSTILE[0] + HOSTILE[4], by_group=True)
