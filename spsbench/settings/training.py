"""What a training is asked: which text, how long, by which loss, and when it is to stop."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from spsbench.settings.option import (
    MACHINE,
    METHOD,
    RUN,
    SAMPLING,
    SIZE,
    WORK,
    Check,
    Option,
    at_least,
    between,
    one_of,
)
from spsbench.settings.setting import Setting, settings_of
from spsbench.settings.table import TARGET
from spsbench.spec import Spec

COUNT = between(1, 1 << 24)
LEARNERS = re.compile(r"dp(:([2-9]|[1-9]\d{1,3}))?", re.ASCII)
KINDS = ("eagle3", "eagle", "medusa", "mlp", "blockwise", "falcon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Of `sps train draft` and `sps train head`."""

    prompts: Annotated[
        tuple[str, ...],
        Option(
            "What the target is asked: a file (.jsonl, .txt), a task, or self: it asks the rest of "
            "--count itself; repeatable.",
            WORK,
            metavar="FILE|TASK|self",
            shown="self",
        ),
    ] = ()
    texts: Annotated[
        Path | None, Option("Texts of an earlier training of this target.", WORK, metavar="FILE")
    ] = None
    not_from: Annotated[
        tuple[str, ...],
        Option(
            "What it will be tested on: no text of it is learnt.",
            WORK,
            metavar="FILE|TASK",
        ),
    ] = ()
    chat: Annotated[
        str, Option("In the target's chat template.", WORK, one_of("auto", "on", "off"))
    ] = "auto"
    count: Annotated[int, Option("Texts that the target writes.", SIZE, COUNT)] = 1024
    tokens: Annotated[int, Option("Of each text at most.", SIZE, between(2, 1 << 20))] = 160
    prompt_tokens: Annotated[int, Option("Of a prompt at most.", SIZE, between(1, 1 << 20))] = 96
    together: Annotated[int, Option("Texts written at a time.", SIZE, COUNT)] = 32
    held_out: Annotated[int, Option("Texts on which acceptance is watched.", SIZE, COUNT)] = 48
    minutes: Annotated[
        float,
        Option("Time to learn, once --count texts are written.", SIZE, between(0.001, 1e6)),
    ] = 60.0
    steps: Annotated[int | None, Option("Steps, instead of what --minutes allow.", SIZE, COUNT)] = (
        None
    )
    batch_tokens: Annotated[int, Option("Tokens a step.", SIZE, COUNT)] = 2048
    micro_tokens: Annotated[
        int, Option("Tokens at a time: gradients add up, memory does not.", SIZE, COUNT)
    ] = 1024
    evaluations: Annotated[int, Option("How often acceptance is looked at.", SIZE, COUNT)] = 20
    loss: Annotated[
        Spec | None,
        Option(
            "ce, kl, reverse-kl, jsd:beta=0.5, tv, acceptance, hybrid or top-k:k=10.",
            METHOD,
            shown="hybrid; eagle, falcon: kl",
        ),
    ] = None
    rate: Annotated[
        float | None,
        Option("Learning rate at its highest.", METHOD, between(1e-9, 10), shown="by kind"),
    ] = None
    depth: Annotated[
        int | None,
        Option("Tokens ahead that are learnt.", METHOD, between(1, 16), shown="by kind"),
    ] = None
    on_policy: Annotated[
        float,
        Option("Share of the steps on texts of the draft model's own.", METHOD, between(0, 1)),
    ] = 0.0
    temperature: Annotated[
        float, Option("Of the texts, and of the use that is made of it.", SAMPLING, at_least(0))
    ] = 1.0
    top_p: Annotated[float, Option("Likewise.", SAMPLING, between(1e-6, 1, "0 < top_p <= 1"))] = 1.0
    seed: Annotated[int, Option("Of texts, weights and order.", SAMPLING, between(0, 1 << 62))] = 0
    patience: Annotated[
        int, Option("Looks without a rise until it stops; 0: never.", RUN, between(0, 10_000))
    ] = 6
    worth: Annotated[
        float, Option("Stop where less speed-up is foreseen; 0: never.", RUN, between(0, 100))
    ] = 1.0
    costs: Annotated[
        Path | None, Option("A table of costs: nothing is measured.", RUN, metavar="FILE")
    ] = None
    cost_seconds: Annotated[
        float, Option("What measuring the costs may take; 0: not at all.", RUN, between(0, 1e5))
    ] = 10.0
    store_features: Annotated[
        bool, Option("Keep the target's hidden states on disk while it learns.", RUN)
    ] = False
    recompute: Annotated[
        bool, Option("Compute activations again for the gradient: less memory.", MACHINE)
    ] = False
    parallel: Annotated[
        str | None,
        Option(
            "Processes that learn together: dp:2; under torchrun dp.",
            MACHINE,
            Check(
                lambda value: LEARNERS.fullmatch(value) is not None,
                "dp:N with N of 2 or more, or dp under torchrun",
            ),
            metavar="dp:N",
        ),
    ] = None
    save_as: Annotated[
        str, Option("Numbers of the result.", RUN, one_of("bfloat16", "float16", "float32"))
    ] = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTraining(Training):
    """Of `sps train draft`."""

    layers: Annotated[
        int | None,
        Option("Layers, cut from the target.", METHOD, between(1, 1024), shown="a fifth of them"),
    ] = None
    start: Annotated[
        Path | None,
        Option(
            "A model's folder to begin with; a config.json alone: random weights.",
            METHOD,
            flags=("from",),
            metavar="FOLDER",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraining(Training):
    """Of `sps train head`."""

    kind: Annotated[str, Option(f"{', '.join(KINDS)}.", METHOD, one_of(*KINDS))] = "eagle3"
    draft_vocab: Annotated[
        int | None,
        Option(
            "eagle3, medusa: of how many of the commonest tokens.",
            METHOD,
            COUNT,
            shown="32000 or all",
        ),
    ] = None
    block: Annotated[
        int | None, Option("falcon: tokens a pass.", METHOD, between(1, 16), shown="2")
    ] = None
    inner: Annotated[
        int | None,
        Option("Width of its inner layer.", METHOD, COUNT, shown="the target's"),
    ] = None


NO_CHOICE = ("engine", "weights", "parallel")  # what learns is run by transformers, whole

OF_TRAINED: Mapping[str, Setting] = {
    each.name: each for each in TARGET.values() if each.name not in NO_CHOICE
}
OF_DRAFT: Mapping[str, Setting] = {each.name: each for each in settings_of(DraftTraining)}
OF_HEAD: Mapping[str, Setting] = {each.name: each for each in settings_of(HeadTraining)}
