"""Prediction layers of the target's own class: against transformers' own, and against themselves.

The layer's arithmetic is transformers' in both; what is held is what is around it: names and
conversions of files, order, norms, positions, masks, caches, rollbacks, the wiring of depths.
"""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.cache_utils import MtpCache

import spsbench
from spsbench.engines.eager import EagerLM
from spsbench.engines.session.recurrent import RecurrentLM
from spsbench.errors import DataError, UsageError
from spsbench.heads.head import read_head
from spsbench.heads.mtp import MtpLadder
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.sps import Sps
from spsbench.methods.verifiers.tree_rejection import Recursive
from tests.decoding import rounds_of
from tests.folders import byte_tokenizer
from tests.heads import stage
from tests.heads.head_faults import PROMPT, TREE, VOCAB, WARP, Compared, compared
from tests.heads.released import KINDS, reference, released, wide
from tests.heads.stage import HeadSite, Known, proof_of, whole

pytestmark = pytest.mark.numeric

TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])
NO_REFERENCE = ("ernie4_5_moe",)  # whose tensors `MtpModel` does not find
QUICK = ("deepseek_v3", "qwen3_5_text")  # latent and experts; gated, beside recurrent layers
slow = pytest.mark.slow


def marked(kinds, quick=QUICK):
    return [kind if kind in quick else pytest.param(kind, marks=slow) for kind in kinds]


def sessions(kind):
    """The sessions over a kind of target."""
    return RecurrentLM if kind.startswith("qwen3_") else EagerLM


def hidden_and_logits(folder, model, **answers):
    """The network, the features that it has read, and its logits after each of `TOKENS`."""
    site = HeadSite(folder, model, **answers)
    network, target = site.drafter()._frontier.network, site.target()
    with torch.inference_mode():
        out = model(input_ids=TOKENS[None], output_hidden_states=True)
        rows = network.fuse([out.hidden_states[-1][0][:-1]])
        return network, network.scores(whole(network, rows, TOKENS[1:], target), target.head)


@torch.inference_mode()
def reference_logits(mtp, model, depth=1):
    """Logits of the last of `depth` layers of transformers', along the true tokens."""
    hidden = model(input_ids=TOKENS[None], output_hidden_states=True).hidden_states[-1]
    cache = MtpCache(config=mtp.config)
    for k in range(depth):
        ids = TOKENS[None, 1 + k :]
        places = torch.arange(1 + k, 1 + k + ids.shape[1])[None]
        hidden = mtp.forward_layer(k, hidden[:, : ids.shape[1]], places, cache, input_ids=ids)
    return mtp._project_to_logits(hidden)[0]


@pytest.mark.parametrize("kind", marked(sorted(KINDS.keys() - NO_REFERENCE)))
def test_logits_are_those_of_transformers(tmp_path, kind):
    model = released(tmp_path, kind)
    _, logits = hidden_and_logits(tmp_path, model)
    expected = reference_logits(reference(tmp_path, model), model)
    assert float((logits - expected).abs().max()) <= 1e-5
    assert float(expected.abs().max()) > 1


QUICK_DRAFTS = {("deepseek_v3", True), ("qwen3_5_text", False)}
CACHED = ("llama", "glm4_moe_lite", "glm4_moe", "mistral", "qwen2", "qwen3", "qwen3_next")
CACHED += ("qwen3_5_moe_text", *QUICK)


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        pytest.param(kind, tree, marks=[] if (kind, tree) in QUICK_DRAFTS else slow)
        for kind in CACHED
        for tree in (False, True)
    ],
)
def test_drafts_over_real_caches_are_as_from_scratch(tmp_path, kind, tree):
    with wide():
        model = released(tmp_path, kind, vocab=VOCAB, dtype=torch.float64)
        how = {"rule": Recursive(), **TREE} if tree else {}
        seen = compared(HeadSite(tmp_path, model), model, engine=sessions(kind), **how)
    assert seen.seen > VOCAB // 2
    assert seen.worst <= 1e-12


LAWS = ("deepseek_v3", "glm4_moe", "qwen3_5_text", "qwen3_next")  # latent, expert, gated, recurrent
WAYS = {
    "chain": (Sps(), {"sampled": True}, 3),
    "tree": (Recursive(), {"shape": "2", "siblings": "distinct"}, 2),
}


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        pytest.param(kind, way, marks=[] if (kind, way) == ("glm4_moe", "tree") else slow)
        for kind in LAWS
        for way in WAYS
    ],
)
def test_the_distribution_is_the_targets_by_enumeration(tmp_path, monkeypatch, kind, way):
    rule, more, tokens = WAYS[way]
    monkeypatch.setattr(stage, "EagerLM", sessions(kind))
    with wide():
        model = released(tmp_path, kind, vocab=3, dtype=torch.float64, scale=1.5)
        site = HeadSite(tmp_path, model)
        known = Known(model, site.drafter().layers)
        how = {"prompt": (0, 2, 1), "schedule": Constant(2), "tokens": tokens, "real": True}
        proof = proof_of(rule, site, known, more=more, **how)
    assert proof.exact
    assert float(proof.distance) <= 1e-12


@pytest.mark.needs_fast
@pytest.mark.parametrize("engine", ["eager", "fast"])
@pytest.mark.parametrize(
    "kind", marked(("deepseek_v3", "glm4_moe", "qwen3_next", "qwen3_5_text"), ())
)
def test_greedy_texts_are_the_targets(tmp_path, kind, engine):
    released(tmp_path, kind, vocab=len(byte_tokenizer()))
    byte_tokenizer().save_pretrained(tmp_path)
    how = {"temperature": 0.0, "max_new_tokens": 24, "engine": engine, "offline": True, "k": 3}
    pair = spsbench.load(target=str(tmp_path), draft=str(tmp_path), drafter="mtp", **how)
    text = pair.generate("the cat")
    assert pair.engines()["head"].startswith("transformers")
    assert text.tokens == pair.generate("the cat", k=0).tokens
    assert pair.generate(["the cat", "a dog"], batch=2)[0].tokens == text.tokens


def test_experts_are_in_memory_once(tmp_path):
    model = released(tmp_path, "deepseek_v3")
    site = HeadSite(tmp_path, model)
    network = site.drafter()._frontier.network
    held = {tensor.data_ptr() for tensor in site.head().tensors.values()}
    assert {weight.data_ptr() for weight in network.parameters()} <= held
    assert any("gate_up_proj" in name for name in site.head().tensors)
    again = HeadSite(tmp_path, model)
    again._head = site.head()
    experts = [n for n, _ in again.drafter()._frontier.network.named_parameters() if "expert" in n]
    assert experts


@pytest.mark.parametrize("layout", ["nextn", pytest.param("mimo2", marks=slow)])
@pytest.mark.parametrize("kind", marked(("llama", "deepseek_v3", "glm4_moe"), ("deepseek_v3",)))
def test_layers_one_a_depth_draft_as_transformers_does(tmp_path, kind, layout):
    model = released(tmp_path / layout, kind, vocab=VOCAB, count=3, layout=layout)
    same = released(tmp_path / "nextn", kind, vocab=VOCAB, count=3)  # with names that it knows
    mtp = reference(tmp_path / "nextn", same, 3)
    drafter = HeadSite(tmp_path / layout, model).drafter()
    assert isinstance(drafter._frontier.network, MtpLadder)
    known = Known(model, drafter.layers)

    @torch.inference_mode()
    def law(text, drafted):
        tokens = [*text, *drafted]
        hidden, cache = known.hidden(text[:-1])[0][None], MtpCache(config=mtp.config)
        for k in range(len(drafted) + 1):
            ids = torch.tensor([tokens[1 + k : len(text) + k]])
            places = torch.arange(1 + k, len(text) + k)[None]
            hidden = mtp.forward_layer(k, hidden, places, cache, input_ids=ids)
        return WARP(mtp._project_to_logits(hidden[:, -1:])[0])[0]

    watched = Compared(drafter, law)
    accepted = set()
    for seed in (1, 2, 3):
        lm = EagerLM(model, layers=watched.layers)
        how = {"prompt": PROMPT, "k": 4, "seed": seed, "verifier": Sps(), "warp": WARP}
        accepted |= {turn.accepted for turn in rounds_of(lm, watched, 14, **how)}
    assert len(accepted) > 1
    assert watched.worst <= 1e-5


def test_a_tree_over_layers_one_a_depth_is_refused(tmp_path):
    model = released(tmp_path, "llama", vocab=VOCAB, count=2)
    with pytest.raises(UsageError, match="one a depth"):
        HeadSite(tmp_path, model).drafter(shape="2x1")


WINDOW = 5


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", ["mistral", "mellum"])
def test_a_window_hides_what_transformers_hides(tmp_path, kind, tree):
    """Mistral's windows are of all layers; Mellum's prediction layer may be a sliding one."""
    slides = "sliding_attention"
    kinds = {"layer_types": ["full_attention", slides], "mtp_layer_types": [slides]}
    more = {"sliding_window": WINDOW, **(kinds if kind == "mellum" else {})}
    with wide():
        model = released(tmp_path, kind, vocab=VOCAB, dtype=torch.float64, **more)
        network, logits = hidden_and_logits(tmp_path, model)
        assert network.shape.window == WINDOW
        if kind == "mellum":  # transformers' reference has no windows where all layers have one
            expected = reference_logits(reference(tmp_path, model), model)
            assert float((logits - expected).abs().max()) <= 1e-5
        how = {"rule": Recursive(), **TREE} if tree else {}
        assert compared(HeadSite(tmp_path, model), model, **how).worst <= 1e-12


def planted(folder, change):
    """Write the tensors of a folder anew, as `change` returns them."""
    (path,) = folder.glob("*.safetensors")
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def test_a_raw_feature_is_that_before_the_targets_last_norm(tmp_path):
    model = released(tmp_path, "deepseek_v3")
    tapped = []
    model.get_decoder().norm.register_forward_pre_hook(lambda part, args: tapped.append(args[0][0]))
    network, logits = hidden_and_logits(tmp_path, model, feature="raw", feedback="raw")
    target = HeadSite(tmp_path, model).target()
    with torch.inference_mode():
        rows = whole(network, tapped[1][:-1], TOKENS[1:], target)
        expected = network.scores(rows, target.head)
    assert float((logits - expected).abs().max()) <= 1e-4
    _, normed = hidden_and_logits(tmp_path, model)
    assert float((logits - normed).abs().max()) > 0.1


@pytest.mark.parametrize("kind", QUICK)
def test_weights_of_norms_count_from_where_it_is_said(tmp_path, kind):
    """A converter has added 1, or taken it away: the flag undoes that."""
    model = released(tmp_path, kind)
    _, plain = hidden_and_logits(tmp_path, model)
    zero = kind == "qwen3_5_text"
    moved = 1.0 if zero else -1.0

    def shift(tensors):
        ours = [n for n in tensors if n.startswith(("mtp.", "model.layers.2.")) and "norm" in n]
        return tensors | {name: tensors[name] + moved for name in ours}

    planted(tmp_path, shift)
    _, logits = hidden_and_logits(tmp_path, model, norms="one" if zero else "zero")
    assert float((logits - plain).abs().max()) <= 1e-5


def test_a_head_without_a_norm_has_the_targets(tmp_path):
    model = released(tmp_path, "ernie4_5_moe", moe_layer_start_index=2)  # a dense layer
    network, _ = hidden_and_logits(tmp_path, model)
    assert (network.shape.own_norm, network.shape.raw_feature) == (False, True)
    rows = torch.randn(3, 32)
    expected = model.lm_head(model.model.norm(rows))
    assert torch.allclose(network.scores(rows, model.lm_head), expected, atol=1e-5)


def test_an_output_layer_of_its_own_is_used(tmp_path):
    model = released(tmp_path, "glm4_moe")
    network, plain = hidden_and_logits(tmp_path, model)
    assert not hasattr(network, "lm_head")
    name = "model.layers.2.shared_head.head.weight"
    planted(tmp_path, lambda tensors: tensors | {name: tensors[name] * 2})
    network, logits = hidden_and_logits(tmp_path, model)
    assert torch.allclose(logits, plain * 2, atol=1e-4)


def renamed(tensors, old, new):
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


REFUSED = {
    "DeepSeek-V4's sum": lambda t: renamed(t, "mtp.fc.", "mtp.0.e_proj."),
    "Qwen4's sum": lambda t: renamed(t, "mtp.fc.", "mtp.fc_embedding."),
    "FP8": lambda t: t | {"mtp.fc.weight": t["mtp.fc.weight"].to(torch.float8_e4m3fn)},
    "NVFP4": lambda t: t | {"mtp.fc.weight": t["mtp.fc.weight"].to(torch.uint8)},
    "Nemotron-H's pattern": lambda t: (
        t | {"mtp.layers.1.mixer.up_proj.weight": t["mtp.fc.weight"] * 1}
    ),
}
NAMED = {
    "DeepSeek-V4's sum": "mtp.0.e_proj.weight",
    "Qwen4's sum": "mtp.fc_embedding.weight",
    "FP8": "F8_E4M3",
    "NVFP4": "U8",
    "Nemotron-H's pattern": "mtp.layers.1.mixer.up_proj.weight",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_read_is_refused_by_name_before_a_weight(tmp_path, what):
    model = released(tmp_path, "qwen3_5_text")
    unread = {"mtp.norm.weight": torch.full((32,), torch.nan)}  # refused where it is read
    planted(tmp_path, lambda tensors: REFUSED[what](tensors) | unread)
    how = {"names": ("tiny", "tiny"), "drafter": "mtp", "overrides": {}, "allow_pickle": False}
    with pytest.raises(DataError, match=NAMED[what]) as error:
        read_head(tmp_path, model.config.to_dict(), **how)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "no_such_model"}, "no_such_model"),
        ({"layer_types": ["linear_attention"] * 2}, "linear_attention"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "dynamic",
        ),
    ],
)
def test_a_layer_that_no_class_builds_is_refused_by_kind(tmp_path, change, named):
    model = released(tmp_path, "qwen3_5_text")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=named):
        HeadSite(tmp_path, model)
