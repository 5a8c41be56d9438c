"""The identity of a method, and the label by which files know it."""

import pytest

from spsbench.settings.cell import constant
from spsbench.settings.grid import make_request
from spsbench.settings.method import Drafting, Method
from spsbench.spec import Spec

LABELS = {
    "none": Drafting(Spec("none")),
    "ngram:n=3,match=first": Drafting(Spec("ngram", (("n", 3), ("match", "first")))),
    "model nano-draft": Drafting(Spec("model"), "nano-draft"),
    "model d@main int8 float16": Drafting(Spec("model"), "d@main", "int8", "float16"),
    "model shape:64x2:nano (random)": Drafting(Spec("model"), "shape:64x2:nano", random=True),
    "eagle3 /my models/head bfloat16": Drafting(
        Spec("eagle3"), "/my models/head", dtype="bfloat16"
    ),
    "./my parts/p.py:Mine:n=2": Drafting(Spec("./my parts/p.py:Mine", (("n", 2),))),
    "nano-draft": Drafting(Spec("nano-draft")),
}


@pytest.mark.parametrize(("label", "drafting"), LABELS.items())
def test_a_label_in_a_file_is_read_as_it_was_written(label, drafting):
    assert Drafting.parse(label) == drafting
    assert str(drafting) == label


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 0},
        {"draft": "d", "draft_dtype": "float16", "draft_weights": "int8"},
        {"draft": "/a b/c", "draft_revision": "main"},
        {"draft": "d", "draft_weights": "random-int4"},
        {"drafter": "ngram:n=1"},
        {"drafter": "x:path=/a b/c"},
    ],
    ids=str,
)
def test_the_method_of_a_cell_is_that_of_its_label(options):
    method = Method.of(make_request(**{"target": "nano", **options}))
    assert Drafting.parse(str(method.drafting)) == method.drafting
    assert hash(method) == hash(method._replace(drafting=Drafting.parse(str(method.drafting))))


def test_groups_of_methods_leave_out_k_or_the_schedule():
    four = Method(Drafting.parse("ngram"), "match", constant(4))
    entropy = four._replace(schedule=Spec("entropy"))
    assert (str(four), str(four.group)) == ("ngram, K = 4, match", "ngram, match")
    assert str(entropy) == str(entropy.at_any_k) == "ngram, entropy, match"
    assert four.at_any_k == four.group == entropy.group
    usual = four._replace(schedule=Spec("constant"))  # its K is the schedule's own default
    assert (usual.k, str(usual)) == (None, "ngram, constant, match")
