"""Exported heads are read back as the same networks, in the form that the other engine takes."""

import json
import shlex

import pytest
import torch
from safetensors.torch import load_file

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.pair.export import export_drafter
from spsbench.settings.models import BUNDLED
from tests.heads import reference, writers
from tests.heads.head_faults import VOCAB, along
from tests.heads.stage import HeadSite, Known

IDS = "eagle_aux_hidden_state_layer_ids"


def test_descending_ids_are_sorted_with_the_columns_of_fc(target, exported):
    _, out, before, tensors = exported(writers.speculators, "vllm", ids=[4, 1, 3])
    assert json.loads((out / "config.json").read_text())[IDS] == [1, 3, 4]
    last, *others = before["fc.weight"].chunk(3, 1)
    assert torch.equal(tensors["fc.weight"], torch.cat([*others, last], 1))


IDS_OF_DRAFTS = [1, 2, 4, 6, 7, 9, 11]
OFFSETS = [1, 1, 2, 3, 3, 4, 5]


@pytest.fixture
def exported(target, tmp_path):

    def run(write, engine, **more):
        source, out = write(tmp_path / "head", target, **more), tmp_path / "out"
        target.save_pretrained(tmp_path / "tiny")
        result = export_drafter(str(source), engine, out, verifier=str(tmp_path / "tiny"))
        assert result.tried == (engine == "vllm")
        return source, out, *(load_file(f / "model.safetensors") for f in (source, out))

    return run


@pytest.mark.parametrize(("engine", "layer"), [("vllm", "layers.0."), ("sglang", "midlayer.")])
def test_an_eagle3_head_of_shifted_tokens_drafts_the_same(target, exported, engine, layer):
    """Row i is token i + d2t[i], here as before: logits are those of transformers' layer."""
    how = {"inner": {"model_type": "llama"}, "norm_before_residual": False}
    source, out, before, tensors = exported(writers.speculators, engine, **how)
    assert before["d2t"].tolist() == OFFSETS
    assert tensors["d2t"].tolist() == OFFSETS
    assert tensors["t2d"].nonzero().flatten().tolist() == IDS_OF_DRAFTS
    assert tensors.keys() == {name.replace("layers.0.", layer) for name in before}
    for name, tensor in before.items():
        assert torch.equal(tensors[name.replace("layers.0.", layer)], tensor)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, out)]
    if engine == "vllm":
        extra = {key: configs[1][key] for key in ("speculators_config", "torch_dtype")}
        assert configs[1] == configs[0] | extra
    text, sites = (1, 5, 3, 7), [HeadSite(folder, target) for folder in (source, out)]
    assert sites[0].drafter().layers == sites[1].drafter().layers
    config, wide = reference.read(source)
    values = config["transformer_layer_config"]
    hidden = Known(target, sites[0].drafter().layers).hidden(text[:-1])
    e = wide["embed_tokens.weight"][list(text[1:])]
    _, logits = reference.eagle3(values, wide, "layers.0", hidden, e)
    (root, *later), (again, *after) = (along(site, target, (2, 9), text)[0] for site in sites)
    torch.testing.assert_close(again[IDS_OF_DRAFTS], logits[-1], rtol=1e-4, atol=1e-5)
    assert int(again.isfinite().sum()) == len(IDS_OF_DRAFTS)
    torch.testing.assert_close([again, *after], [root, *later], rtol=0, atol=0)


def test_a_medusa_head_of_shifted_tokens_ranks_them_the_same(target, exported):
    """vLLM loads a row for every token: a token without one is as likely as the map's last."""
    source, out, before, tensors = exported(writers.medusa, "vllm", dialect="vLLM")
    ids, names = before.pop("token_map"), [f"lm_heads.{i}.weight" for i in range(3)]
    assert ids.tolist() == [1, 3, 6, 8, 11]
    assert tensors.keys() == before.keys()
    for name, tensor in before.items():
        rows = tensors[name][ids] if name in names else tensors[name]
        assert torch.equal(rows, tensor)
        assert name not in names or len(tensors[name]) == VOCAB
    assert "truncated_vocab_size" not in json.loads((out / "config.json").read_text())
    found, again = (along(HeadSite(f, target), target, (2, 9))[0] for f in (source, out))
    others = [token for token in range(VOCAB) if token not in ids]
    for old, new in zip(found, again, strict=True):
        torch.testing.assert_close(new[ids], old[ids])
        torch.testing.assert_close(new[others], old[ids[-1]].expand(len(others)))


def test_a_draft_model_is_copied_as_it_is(tmp_path):
    result = export_drafter("nano-draft", "hf", tmp_path / "out")
    assert result.drafter == "model"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names


@pytest.mark.parametrize(
    ("head", "engine", "verifier"),
    [
        ("nano-mlp", "vllm", None),
        ("nano-eagle3", "hf", None),
        ("nano-medusa", "sglang", None),
        ("nano-medusa", "vllm", "nano-eagle3"),
        ("smollm2-eagle3", "vllm", "nano"),
        *(("nano-eagle3", "vllm", name) for name in ("./nowhere", "a b/c", "org/na me", " ", "")),
        *(("nano-eagle3", "vllm", name) for name in ("a\nb", "/a\nb", "https://x.org/m")),
    ],
    ids=repr,
)
def test_what_an_engine_cannot_take_is_refused_before_a_folder_is_there(
    head, engine, verifier, tmp_path
):
    says = "hidden_size" if head == "smollm2-eagle3" else "expected"
    with pytest.raises((DataError, MissingError), match=says):
        export_drafter(head, engine, tmp_path / "out", verifier=verifier)
    assert not (tmp_path / "out").exists()


def changed(folder, head="nano-eagle3", **values):
    folder.mkdir()
    config = json.loads((BUNDLED[head] / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    (folder / "model.safetensors").symlink_to(BUNDLED[head] / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize("about", [None, [1], "x"])
def test_a_head_without_words_of_its_target_gets_those_of_the_verifier(about, tmp_path):
    head = changed(tmp_path / "head", speculators_config=about)
    export_drafter(head, "vllm", tmp_path / "out", verifier="nano")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == str(BUNDLED["nano"])
    with pytest.raises(DataError, match=r"expected the folder of its target\. Name it with"):
        export_drafter(head, "vllm", tmp_path / "other")


@pytest.mark.parametrize("stated", [" ", "smollm2", "no/such"])
def test_a_target_that_is_not_here_is_asked_for(stated, tmp_path, monkeypatch):
    monkeypatch.setattr("spsbench.models.folder.fetched_folder", lambda name: tmp_path / name)
    about = {"verifier": {"name_or_path": stated}}
    head = changed(tmp_path / "head", speculators_config=about)
    with pytest.raises(DataError, match="expected the folder of its target"):
        export_drafter(head, "vllm", tmp_path / "out")
    known = changed(tmp_path / "known", speculators_config=about, **{IDS: [2, 8, 13]})
    export_drafter(known, "vllm", tmp_path / "out", verifier="org/target")


def test_a_verifier_on_the_machine_of_the_server_is_written_with_a_note(tmp_path, caplog):
    caplog.set_level("INFO")
    export_drafter("nano-medusa", "vllm", tmp_path / "out", verifier="/models/my target")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["base_model_name_or_path"] == "/models/my target"
    assert "its sizes are not checked" in caplog.text


def test_a_folder_named_from_here_is_written_whole_with_its_architecture(tmp_path, monkeypatch):
    (tmp_path / "my target").symlink_to(BUNDLED["nano"])
    monkeypatch.chdir(tmp_path)
    export_drafter("nano-eagle3", "vllm", tmp_path / "out", verifier="./my target/")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["speculators_config"]["verifier"] == {
        "name_or_path": str(tmp_path / "my target"),
        "architectures": ["LlamaForCausalLM"],
    }


def test_hidden_states_that_vllm_would_read_once_are_refused(tmp_path):
    head = changed(tmp_path / "head", **{IDS: [2, 2, 13]})
    with pytest.raises(DataError, match="expected each once"):
        export_drafter(head, "vllm", tmp_path / "out", verifier="nano")


def test_a_draft_model_takes_no_verifier_and_says_so(tmp_path, caplog):
    caplog.set_level("INFO")
    export_drafter("nano-draft", "vllm", tmp_path / "out", verifier="nano")
    assert "names no target" in caplog.text


def test_a_folder_with_files_is_not_overwritten(tmp_path):
    (tmp_path / "note").write_text("kept")
    with pytest.raises(UsageError, match="empty folder"):
        export_drafter("nano-eagle3", "vllm", tmp_path)


def test_the_command_prints_the_folder_and_a_line_for_a_shell(sps, tmp_path):
    out = tmp_path / "it's out"
    ran = sps("models", "export", "nano-draft", "--for", "vllm", "--out", str(out))
    assert ran.out == f"{out}\n"
    (line,) = (line for line in ran.err.splitlines() if line.startswith("vllm serve"))
    config = json.loads(shlex.split(line)[-1])
    assert (config["method"], config["model"]) == ("draft_model", str(out))
