"""`generate_with` under transformers' own `generate`, against `generate` without it."""

import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig
from transformers.generation import configuration_utils as configs

import spsbench
from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.audit.statistical.referee import AuditText
from spsbench.audit.verify import audit_texts
from spsbench.extensions.transformers.generate import FIELDS
from spsbench.settings.models import BUNDLED
from tests.oracles.models import ROTARY, WINDOWED, tiny
from tests.stateful_models import stateful
from tests.variants import first

CASES = tomllib.loads((Path(__file__).parent / "cases.toml").read_text())
CASES["without_effect"] |= {
    "compile_config": configs.CompileConfig(),
    "continuous_batching_config": configs.ContinuousBatchingConfig(),
}
VALUES = {name: value for cases in CASES.values() for name, value in cases.items()}
PLAIN = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
SAMPLED = PLAIN | {"do_sample": True, "top_k": 0}
STATEFUL = ("mamba", "lfm2", "qwen3_5_text")
ONE, ROWS = torch.tensor([[7]]), torch.tensor([[7, 3], [2, 5], [9, 9]])


@pytest.fixture(scope="module")
def models():
    """A target, and a draft model that agrees with it now and then."""
    return [tiny("llama", dtype=torch.float32, noise=noise) for noise in (0.0, 0.3)]


def ours(models, ids, **options):
    """Return what `generate` returns with our callable."""
    callable_ = spsbench.generate_with(k=3, assistant_model=models[1])
    return models[0].generate(ids, custom_generate=callable_, **{**PLAIN, **options})


def test_every_field_of_a_generation_config_is_in_the_table_and_tried():
    named = [*FIELDS["honoured"], *FIELDS["without_effect"], *FIELDS["refused"]]
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert sorted(named) == sorted(fields) == sorted(VALUES)
    assert CASES["without_effect"].keys() == {*FIELDS["without_effect"]}
    refused = CASES["refused"].keys() | CASES["refused_by_transformers"].keys()
    assert refused == FIELDS["refused"].keys()


@pytest.mark.parametrize("name", [*CASES["greedy"], *CASES["without_effect"], *CASES["sampled"]])
def test_a_field_does_what_it_does_in_plain_generate(models, name):
    options = SAMPLED if name in CASES["sampled"] else PLAIN
    options = {**options, name: VALUES[name], "eos_token_id": VALUES.get(name + "s", 9)}
    options |= {"max_new_tokens": None} if name == "max_length" else {}
    options |= {"eos_token_id": VALUES[name]} if name == "eos_token_id" else {}
    options |= {"top_k": 1} if name == "num_return_sequences" else {}
    assert torch.equal(ours(models, ONE, **options), models[0].generate(ONE, **options))


@pytest.mark.parametrize("name", sorted({*configs.ALL_CACHE_IMPLEMENTATIONS} - {"quantized"}))
def test_the_kind_of_cache_is_without_effect(models, name):
    if name.startswith("offloaded") and torch.version.cuda and not torch.cuda.is_available():
        pytest.skip("transformers opens a stream of CUDA for it")
    text = ours(models, ONE, cache_implementation=name)
    assert torch.equal(text, models[0].generate(ONE, **PLAIN))


@pytest.mark.parametrize("name", [*CASES["refused"], *CASES["refused_by_transformers"]])
def test_a_field_that_cannot_be_honoured_is_refused(models, name):
    errors = spsbench.UsageError if name in CASES["refused"] else (ValueError, ImportError)
    options = {"custom_generate": spsbench.generate_with(), **PLAIN, name: VALUES[name]}
    with pytest.raises(errors, match=name if name in CASES["refused"] else None):
        models[0].generate(ONE, **options)


def test_what_else_cannot_be_honoured_is_refused(models):
    config = GenerationConfig(**PLAIN)
    config.of_another_version = 1
    for options in (
        {"generation_config": config},
        {"past_key_values": DynamicCache()},
        {"position_ids": torch.tensor([[3, 4]])},
        {"attention_mask": torch.tensor([[1, 0]])},
        {"inputs_embeds": torch.zeros(1, 2, 32)},
        {"synced_gpus": True},
    ):
        with pytest.raises(spsbench.UsageError):
            ours(models, torch.tensor([[7, 3]]), **options)
    for wrong in ({"temperature": 0.5}, {"drafter": "no such"}, {"draft": "x", "k": -1}):
        with pytest.raises(spsbench.UsageError):
            models[0].generate(ONE, custom_generate=spsbench.generate_with(**wrong), **PLAIN)


@pytest.mark.parametrize("architecture", ["gpt2", *first(6, ROTARY), *first(4, STATEFUL)])
def test_rows_padded_on_the_left_are_the_texts_of_plain_generate(architecture):
    eager = {"attention": "eager", "dtype": torch.float32}
    more = WINDOWED.get(architecture, {}) | (eager if architecture in ("gemma2", "gpt_oss") else {})
    keeps = {"registered": False} if architecture in STATEFUL else more
    make = stateful if architecture in STATEFUL else tiny
    target, draft = (make(architecture, noise=noise, **keeps) for noise in (0.0, 0.2))
    rows = [[5], [3, 1, 4, 1, 5, 9], [2, 7, 1]]
    expected = [target.generate(torch.tensor([row]), **PLAIN)[0, len(row) :] for row in rows]
    ids = torch.tensor([[0] * (6 - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (6 - len(row)) + [1] * len(row) for row in rows])
    for options in {"assistant_model": draft, "k": 3}, {"drafter": "suffix"}:
        method = spsbench.generate_with(**options)
        out = target.generate(ids, attention_mask=mask, custom_generate=method, **PLAIN)
        assert torch.equal(out[:, 6:], torch.stack(expected))
        assert [sum(r.emitted for r in row) for row in method.rounds] == [16] * 3


def second_three(input_ids, scores, **options):
    """End a row at its second 3."""
    return (input_ids[:, 2:] == 3).sum(-1) >= 2


def by_place(input_ids, scores):
    """Change scores in place, by the row of the batch and by the text so far."""
    for row, text in enumerate(input_ids.tolist()):
        scores[row, (text[-1] + row + len(text)) % 12] += 3.0
    return scores


def test_streamer_assistant_and_what_the_user_brings(models):
    brought = {**PLAIN, "stopping_criteria": [second_three], "logits_processor": [by_place]}
    method, stream, tokens = spsbench.generate_with(k=3), Mock(), []
    stream.put = lambda value: tokens.extend(value.flatten().tolist())
    more = {"custom_generate": method, "streamer": stream, "assistant_model": models[1]}
    out = models[0].generate(ROWS[:1], **more, **brought)
    assert torch.equal(out, models[0].generate(ROWS[:1], **brought))
    assert (tokens, stream.end.call_count) == (out[0].tolist(), 1)
    assert method.metrics.alpha is not None
    brought |= {"eos_token_id": [0, 9]}
    assert torch.equal(ours(models, ROWS, **brought), models[0].generate(ROWS, **brought))
    with pytest.raises(spsbench.UsageError):
        models[0].generate(ROWS, **more, **PLAIN)


def test_scores_and_logits_are_those_of_plain_generate(models):
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options |= PLAIN | {"repetition_penalty": 1.3}
    here, there = ours(models, ROWS, **options), models[0].generate(ROWS, **options)
    for name in "scores", "logits":
        assert torch.allclose(torch.stack(here[name]), torch.stack(there[name]), atol=1e-4)
    cut = SAMPLED | CASES["support"] | {"num_return_sequences": 9}
    out = ours(models, ONE, **{**options, **cut})
    kept = torch.stack(out.scores, 1).gather(2, out.sequences[:, 1:, None])
    assert bool(kept.isfinite().all())


def test_sampling_takes_one_number_of_torch_or_the_seed(models):
    def text(number, **options):
        torch.manual_seed(number)
        method = spsbench.generate_with(assistant_model=models[1], **options)
        out = models[0].generate(ONE, custom_generate=method, **SAMPLED)
        return out.tolist(), torch.rand(()).item()

    torch.manual_seed(1)
    assert text(1) == text(1) != text(2)
    assert text(1, seed=5)[0] == text(2, seed=5)[0] != text(1, seed=6)[0]
    torch.manual_seed(1)
    assert text(1, seed=5)[1] != text(1)[1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sampled_texts_have_the_distribution_of_the_target():
    """By the machinery of `verify run`, with texts of plain `generate` as its control."""
    sampling = {"temperature": 0.8, "top_k": 40, "max_new_tokens": 48}
    pair = spsbench.load(target="nano", draft="nano-draft", dtype="float32", **sampling)
    load = AutoModelForCausalLM.from_pretrained
    target, draft = (load(BUNDLED[n], dtype=torch.float32) for n in ("nano", "nano-draft"))
    method = spsbench.generate_with(assistant_model=draft, k=4)
    texts = {None: [], method: []}
    for number in range(40):
        prompt = tuple(pair.loaded.tokenizer.encode(("def f(", "The", "import os")[number % 3]))
        torch.manual_seed(number)
        for custom, kept in texts.items():
            ids = torch.tensor([prompt])
            out = target.generate(ids, custom_generate=custom, do_sample=True, **sampling)
            tokens = tuple(out[0, len(prompt) :].tolist())
            rounds = method.rounds[0] if custom else [None] * len(tokens)
            counts = [(r.emitted, r.drafted) if custom else (1, 0) for r in rounds]
            kept.append(
                AuditText(prompt, tokens, *map(tuple, zip(*counts, strict=True)), str(number))
            )
    finding = audit_texts(pair.cell, pair.loaded, *texts.values(), most=None)
    assert finding.verdict is AuditVerdict.HELD
