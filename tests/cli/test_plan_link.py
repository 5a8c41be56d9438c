"""`sps plan --link` as a user meets it."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("quickly")
OVER = ("--parallel", "tp:4", "--link", "0.05ms")


def test_a_pair_without_texts(sps, pair):
    """Its costs are measured on one rank; the rest is the formula."""
    asked = ("--target", pair.target, "--draft", pair.draft, "--engine", "eager", "--offline")
    ran = sps("plan", *OVER, *asked, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    rows = {(row["ranks"], row["draft"]): row for row in found["rows"]}
    assert list(rows) == [(1, "rank 0"), (2, "rank 0"), (2, "shared")]
    assert any(note.startswith("Not over 4 ranks: num_key_value_heads") for note in found["notes"])
    one, two = rows[1, "rank 0"], rows[2, "rank 0"]
    waits = (2 * 2 + 1 + 1 + 2) * 5e-5  # two layers, the embeddings, a gather, two messages
    assert two["waiting_seconds"] == pytest.approx(waits)
    assert two["pass_seconds"] == pytest.approx(one["pass_seconds"] / 2 + waits)
    assert two["draft_token_seconds"] == one["draft_token_seconds"]
    assert found["answer"].startswith("Over 2 ranks a pass takes")


@pytest.mark.slow
def test_a_finished_plan_is_laid_over_ranks(sps, pair, tmp_path):
    """Along its texts; a link that takes no time makes a shared target no dearer."""
    rows = [{"id": str(i), "prompt": f"one two three {i} one two"} for i in range(5)]
    prompts, folder = tmp_path / "prompts.jsonl", tmp_path / "plan"
    prompts.write_text("\n".join(map(json.dumps, rows)))
    asked = ["plan", "--prompts", str(prompts), "--target", pair.target, "--draft", pair.draft]
    asked += ["--engine", "eager", "-n", "8", "--limit", "3", "--held-back", "2", "--k", "1..3"]
    made = sps(*asked, "--confirm", "0", "--out", str(folder))
    assert made.code == 0, made.err
    table = sps("plan", str(folder), "--parallel", "tp:2", "--link", "0ms")
    assert table.code == 0, table.err
    assert "over 1 rank" in table.out
    found = json.loads(sps("plan", str(folder), *OVER[:2], "--link", "0ms", "--json").out)
    one, alone, shared = found["rows"]
    assert (one["ranks"], alone["ranks"], shared["draft"]) == (1, 2, "shared")
    assert alone["token_seconds"] < one["token_seconds"]
    assert shared["draft_token_seconds"] == pytest.approx(one["draft_token_seconds"] / 2)
    slow = json.loads(sps("plan", str(folder), *OVER[:2], "--link", "9s", "--json").out)
    assert [row["draft"] for row in slow["rows"] if row["wins"]] == ["rank 0", "rank 0"]
    assert slow["rows"][1]["over_one_rank"] < 0.01


def test_what_cannot_be_meant(sps, tmp_path):
    for words, told in (
        (["--link", "1ms"], "--parallel tp:N"),
        (["--link", "1ms", "--parallel", "pp:2"], "expected tp:N"),
        (["--link", "soon", "--parallel", "tp:2"], "expected a time"),
        ([*OVER, "--format", "csv"], "table or json"),
        ([str(tmp_path), *OVER], "the folder of a plan"),
    ):
        ran = sps("plan", *words)
        assert (ran.code, told in ran.err) == (2, True), (words, ran.err)
