"""Options of `sps train draft` and `sps train head`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from spsbench.settings.cell_from_options import TARGET
from spsbench.settings.commands import Chat, CostsFile
from spsbench.settings.options import (
    METHOD,
    RUN,
    SAMPLING,
    SIZE,
    WORK,
    Option,
    Setting,
    at_least,
    between,
    one_of,
    options_of,
)
from spsbench.spec import Spec

STUDENTS: Mapping[str, str] = {
    "eagle3": ".extensions.training.students.eagle3:Eagle3Student",
    "eagle": ".extensions.training.students.eagle:EagleStudent",
    "medusa": ".extensions.training.students.medusa:MedusaStudent",
    "mlp": ".extensions.training.students.mlp:MlpStudent",
    "blockwise": ".extensions.training.students.blockwise:BlockwiseStudent",
    "falcon": ".extensions.training.students.falcon:FalconStudent",
}
"""Kinds of heads that `sps train head` trains, and the classes that learn."""

COUNT = between(1, 1 << 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Options of both `sps train draft` and `sps train head`."""

    prompts: Annotated[
        tuple[str, ...],
        Option(
            "Prompts for the target: a file (.jsonl, .txt), a task, or self, where the "
            "target invents the prompts still missing from `count`; repeatable.",
            WORK,
            metavar="FILE|TASK|self",
            shown="self",
        ),
    ] = ()
    texts: Annotated[
        Path | None,
        Option("Reuse the texts of an earlier training of this target.", WORK, metavar="FILE"),
    ] = None
    references: Annotated[
        tuple[str, ...],
        Option(
            "Prompts with references by people, learned beside the target's texts; repeatable.",
            WORK,
            metavar="FILE|TASK",
        ),
    ] = ()
    whole: Annotated[
        bool, Option("Learn the tokens of prompts too, not of continuations alone.", WORK)
    ] = False
    not_from: Annotated[
        tuple[str, ...],
        Option(
            "Test set, whose texts are kept out of the training; repeatable.",
            WORK,
            metavar="FILE|TASK",
        ),
    ] = ()
    chat: Chat = "auto"
    count: Annotated[
        int, Option("Number of training texts that the target writes.", SIZE, COUNT)
    ] = 1024
    tokens: Annotated[int, Option("Maximum tokens per text.", SIZE, between(2, 1 << 20))] = 160
    prompt_tokens: Annotated[
        int, Option("Maximum tokens per prompt.", SIZE, between(1, 1 << 20))
    ] = 96
    together: Annotated[int, Option("Texts generated in one batch.", SIZE, COUNT)] = 32
    held_out: Annotated[
        int, Option("Number of held-out texts on which acceptance is measured.", SIZE, COUNT)
    ] = 48
    minutes: Annotated[
        float,
        Option("Minutes of training, after the texts are written.", SIZE, between(0.001, 1e6)),
    ] = 60.0
    steps: Annotated[
        int | None, Option("Number of training steps, instead of `minutes`.", SIZE, COUNT)
    ] = None
    batch_tokens: Annotated[int, Option("Tokens per training step.", SIZE, COUNT)] = 2048
    micro_tokens: Annotated[
        int,
        Option(
            "Tokens per micro-batch; gradients are accumulated up to `batch_tokens`.", SIZE, COUNT
        ),
    ] = 1024
    evaluations: Annotated[
        int, Option("Number of evaluations of acceptance during the training.", SIZE, COUNT)
    ] = 20
    loss: Annotated[
        Spec | None,
        Option(
            "Training loss: ce, kl, reverse-kl, jsd:beta=0.5, tv, acceptance, hybrid or "
            "top-k:k=10.",
            METHOD,
            shown="hybrid; eagle, falcon: kl",
        ),
    ] = None
    rate: Annotated[
        float | None,
        Option("Peak learning rate.", METHOD, between(1e-9, 10), shown="by kind"),
    ] = None
    depth: Annotated[
        int | None,
        Option(
            "Number of tokens ahead that the drafter learns to predict.",
            METHOD,
            between(1, 16),
            shown="by kind",
        ),
    ] = None
    start: Annotated[
        Path | None,
        Option(
            "Bundled name or folder of a draft model or a head to begin with; a config.json alone: "
            "from random weights.",
            METHOD,
            flags=("from",),
            metavar="NAME|FOLDER",
        ),
    ] = None
    on_policy: Annotated[
        float,
        Option(
            "Share of the steps that train on the draft model's own texts (on-policy).",
            METHOD,
            between(0, 1),
        ),
    ] = 0.0
    temperature: Annotated[
        float,
        Option(
            "Sampling temperature of the texts, and of the later use of the drafter.",
            SAMPLING,
            at_least(0),
        ),
    ] = 1.0
    top_p: Annotated[
        float,
        Option(
            "Nucleus sampling of the texts, and of the later use of the drafter.",
            SAMPLING,
            between(1e-6, 1, "0 < top_p <= 1"),
        ),
    ] = 1.0
    seed: Annotated[
        int,
        Option(
            "Random seed of the texts, the initial weights and the order.",
            SAMPLING,
            between(0, 1 << 62),
        ),
    ] = 0
    patience: Annotated[
        int,
        Option(
            "Stop after this many evaluations without a better one; 0 is never.",
            RUN,
            between(0, 10_000),
        ),
    ] = 6
    worth: Annotated[
        float,
        Option("Stop if the predicted speed-up is below this; 0 is never.", RUN, between(0, 100)),
    ] = 1.0
    costs: CostsFile = None
    cost_seconds: Annotated[
        float,
        Option(
            "Seconds to spend on measuring the cost of forward passes; 0 skips it.",
            RUN,
            between(0, 1e5),
        ),
    ] = 10.0
    save_as: Annotated[
        str,
        Option("Data type of the saved weights.", RUN, one_of("bfloat16", "float16", "float32")),
    ] = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTraining(Training):
    """Options of `sps train draft`."""

    layers: Annotated[
        int | None,
        Option(
            "Number of layers, copied from the target.",
            METHOD,
            between(1, 1024),
            shown="a fifth of them",
        ),
    ] = None
    window: Annotated[
        int | None,
        Option(
            "Newest tokens that each layer of the draft model attends to.",
            METHOD,
            between(1, 1 << 24),
            shown="all",
        ),
    ] = None
    pruned: Annotated[
        bool,
        Option("Copy half of each layer's attention heads and MLP channels, by weight.", METHOD),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraining(Training):
    """Options of `sps train head`."""

    kind: Annotated[
        str, Option(f"Kind of head: {', '.join(STUDENTS)}.", METHOD, one_of(*STUDENTS))
    ] = "eagle3"
    draft_vocab: Annotated[
        int | None,
        Option(
            "eagle3, medusa: draft vocabulary, the most frequent tokens.",
            METHOD,
            COUNT,
            shown="32000 or all",
        ),
    ] = None
    block: Annotated[
        int | None, Option("falcon: tokens drafted per pass.", METHOD, between(1, 16), shown="2")
    ] = None
    inner: Annotated[
        int | None,
        Option("Width of the head's inner layer.", METHOD, COUNT, shown="the target's"),
    ] = None


NO_CHOICE = ("engine", "weights", "parallel")  # what learns is run by transformers, whole

OF_TRAINED: Mapping[str, Setting] = {
    setting.name: setting for setting in TARGET.values() if setting.name not in NO_CHOICE
}
OF_DRAFT: Mapping[str, Setting] = options_of(DraftTraining)
OF_HEAD: Mapping[str, Setting] = options_of(HeadTraining)
