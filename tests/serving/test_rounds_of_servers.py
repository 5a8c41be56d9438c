"""Rounds of vLLM through `bench`, alone and in batches: those that the server made, or sums."""

from collections.abc import Sequence
from typing import Any

import pytest

from spsbench.settings.records import Record
from spsbench.store.records import records
from tests.oracles.servers import PROMPTS, TOKENS
from tests.oracles.stub import Engine, K, Made, Stub, serving

STOP = " w7"


def texts_of(stub: Stub, of_run: Sequence[Record]) -> list[tuple[Record, Made]]:
    """Each record with the text that the server made for it."""
    by_ids = {tuple(made.ids): made for made in stub.texts}
    return [(record, by_ids[tuple(record.tokens)]) for record in of_run]


@pytest.mark.parametrize("batch", ["1", str(PROMPTS)])
def test_every_pass_is_a_round_and_the_budget_cuts_the_last_one(bench: Any, batch: str) -> None:
    stub = Stub(Engine(as_vllm=True))
    with serving(stub) as url:
        made = bench(f"openai:url={url}", batch=batch, max_new_tokens=TOKENS + 1)
    (row,) = made.rows()
    pairs = texts_of(stub, list(records(made.folder)))
    assert len(pairs) == PROMPTS
    cut = 0
    for record, text in pairs:
        assert [(r.drafted, r.accepted) for r in record.rounds] == list(
            zip(text.drafted, text.accepted, strict=True)
        )
        assert record.rounds[0][:4] == (0, 0, 0, 1)
        assert sum(r.emitted for r in record.rounds) == TOKENS + 1
        cut += record.rounds[-1].emitted <= record.rounds[-1].accepted
    assert cut, "no text whose last round was cut: take another budget"
    passes = sum(len(text.accepted) for _, text in pairs)
    assert row["block_efficiency"] == pytest.approx(PROMPTS * (TOKENS + 1) / passes)


@pytest.mark.parametrize(("batch", "told"), [("1", True), (str(PROMPTS), False)])
def test_texts_that_a_stop_string_ends_have_sums_or_nothing(
    bench: Any, batch: str, told: bool
) -> None:
    stub = Stub(Engine(as_vllm=True))
    with serving(stub) as url:
        made = bench(f"openai:url={url}", batch=batch, stop=[STOP], max_new_tokens=64)
    ended = [record for record in records(made.folder) if record.finish == "stop"]
    assert ended
    for record in ended:
        assert STOP not in record.text
        spans = [r for r in record.rounds if r.emitted]
        if told:
            assert len(spans) == 1
            assert spans[0].accepted <= K * spans[0].passes
            assert spans[0].passes <= spans[0].emitted
        else:
            assert all(r.passes == 0 for r in record.rounds)
    (row,) = made.rows()
    assert (row["alpha_counted"] is None) or len(ended) < PROMPTS
