"""Options of `sps verify`, `sps plan` and `sps train`, one record each."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from spsbench.registry import STUDENTS
from spsbench.settings.cell_from_options import TARGET
from spsbench.settings.options import (
    AUDIT,
    MACHINE,
    METHOD,
    RUN,
    SAMPLING,
    SIZE,
    WORK,
    Check,
    Option,
    Setting,
    at_least,
    between,
    one_of,
    options_of,
)
from spsbench.settings.sweep import MOST_SAMPLES
from spsbench.spec import Spec

MOST_TEXTS = 10**9
BIAS = Check(lambda bias: 0 < bias < 1, "above 0 and below 1")
LEVEL = Check(lambda level: 0 < level <= 0.1, "above 0, at most 0.1")
AUDIT_COUNT = between(1, MOST_TEXTS, "1 or more")
AuditTasks = Annotated[
    tuple[str, ...],
    Option(
        "Task that supplies the prompts, such as jsonl:path=FILE; repeatable.",
        AUDIT,
        shown="humaneval and xsum:data=mini",
    ),
]
AuditPrompts = Annotated[int, Option("Maximum number of prompts.", AUDIT, AUDIT_COUNT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Options of `sps verify pair`: prompts, the bias to detect, and when to end."""

    task: AuditTasks = ()
    prompts: AuditPrompts = 40
    bias: Annotated[float, Option("Smallest bias that the audit must detect.", AUDIT, BIAS)] = 0.02
    level: Annotated[
        float, Option("Probability of a false alarm over the whole audit.", AUDIT, LEVEL)
    ] = 1e-3
    max_tokens: Annotated[
        int,
        Option(
            "Maximum tokens from speculative sampling; the audit then ends, decided or not.",
            AUDIT,
            AUDIT_COUNT,
        ),
    ] = 200_000
    workers: Annotated[
        int | None,
        Option(
            "Worker processes.",
            AUDIT,
            between(1, 1024),
            shown="cores, for small models on a CPU",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Options of `sps verify run`."""

    bias: Annotated[
        float | None,
        Option(
            "Smallest bias that the audit must detect.", AUDIT, BIAS, shown="what the length allows"
        ),
    ] = None
    level: Annotated[
        float, Option("Probability of a false alarm over the whole audit.", AUDIT, LEVEL)
    ] = 1e-3
    max_tokens: Annotated[
        int | None, Option("Maximum tokens to audit per method.", AUDIT, AUDIT_COUNT, shown="all")
    ] = None


OF_AUDIT: Mapping[str, Setting] = options_of(Audit)
"""Name -> setting, of `sps verify pair`."""
OF_REPLAY: Mapping[str, Setting] = options_of(Replay)
"""Name -> setting, of `sps verify run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadAudit:
    """Options of `sps verify head`: the file of expected acceptance, and its texts."""

    golden: Annotated[
        str,
        Option(
            "File of the expected acceptance; written if it does not exist, else compared.", AUDIT
        ),
    ] = "golden.json"
    log: Annotated[
        str | None, Option("Log or metrics of another engine, whose acceptance is compared.", AUDIT)
    ] = None
    task: AuditTasks = ()
    prompts: AuditPrompts = 8
    tokens: Annotated[int, Option("Tokens per text.", AUDIT, AUDIT_COUNT)] = 48


OF_GOLDEN: Mapping[str, Setting] = options_of(HeadAudit)
"""Name -> setting, of `sps verify head`."""


TASK = "xsum:data=mini"  # where nobody names prompts: what the bundled pair was trained for
KS = "1..8,10,12,16"
FACTOR = between(1e-6, 1e6, "a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """Options of `sps plan`."""

    prompts: Annotated[
        Path | None,
        Option("File of your own prompts, in the JSONL format of the task jsonl.", WORK),
    ] = None
    k: Annotated[
        str, Option("Values of K to compare: 4, 1..8 or 2,4,6.", METHOD, flags=("k",), ranges=True)
    ] = KS
    limit: Annotated[
        int,
        Option(
            "Number of prompts on which acceptance is recorded.", SIZE, between(1, MOST_SAMPLES)
        ),
    ] = 64
    held_back: Annotated[
        int,
        Option(
            "Number of further prompts, on which the best candidates are timed.",
            SIZE,
            between(1, MOST_SAMPLES),
        ),
    ] = 24
    confirm: Annotated[
        int,
        Option(
            "How many of the best candidates to time beside auto-regressive sampling.",
            SIZE,
            between(0, 100),
        ),
    ] = 2
    cost_seconds: Annotated[
        float,
        Option(
            "Seconds to spend on measuring the cost of forward passes.",
            SIZE,
            between(0.1, 1e5, "0.1..100000"),
        ),
    ] = 20.0
    trace: Annotated[
        tuple[str, ...],
        Option(
            "Use this recorded trace, or the traces of a run, instead of generating texts.",
            RUN,
            metavar="PATH",
        ),
    ] = ()
    costs: Annotated[
        Path | None,
        Option("Use this table of costs instead of measuring them.", RUN, metavar="FILE"),
    ] = None
    draft_cost: Annotated[
        float | None,
        Option("Predict for a draft that takes this many times as long.", MACHINE, FACTOR),
    ] = None
    target_cost: Annotated[
        float | None,
        Option("Predict for a target that takes this many times as long.", MACHINE, FACTOR),
    ] = None
    chat: Annotated[
        str,
        Option(
            "Put prompts into the target's chat template: auto (if it has one), on or off.",
            WORK,
            one_of("auto", "on", "off"),
        ),
    ] = "auto"
    system: Annotated[
        str | None, Option("System message, for prompts in a chat template.", WORK)
    ] = None
    every: Annotated[
        bool, Option("Show a row for every candidate, not only for the best K.", RUN)
    ] = False

    @property
    def factors(self) -> dict[str, float]:
        """Return the factors on the costs of draft and target, where some are set."""
        own = {"draft": self.draft_cost, "target": self.target_cost}
        return {part: factor for part, factor in own.items() if factor is not None}

    @property
    def unmeasured(self) -> str:
        """Return why no candidates are timed; empty if they are."""
        if self.factors:
            return "the costs are as if they were others (--draft-cost, --target-cost)"
        if self.costs is not None:
            return "the costs are given (--costs), and may be of another machine"
        return "" if self.confirm else "--confirm is 0"


LISTS = ("draft", "drafter", "verifier", "schedule")
"""Options of cells that may be given more than once: each value is compared."""

OF_PLANNING: Mapping[str, Setting] = options_of(Planning)
"""Name -> setting, of `sps plan`."""


COUNT = between(1, 1 << 24)
LEARNERS = re.compile(r"dp(:([2-9]|[1-9]\d{1,3}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Options of both `sps train draft` and `sps train head`."""

    prompts: Annotated[
        tuple[str, ...],
        Option(
            "Prompts for the target: a file (.jsonl, .txt), a task, or self, where the "
            "target invents the prompts still missing from --count; repeatable.",
            WORK,
            metavar="FILE|TASK|self",
            shown="self",
        ),
    ] = ()
    texts: Annotated[
        Path | None,
        Option("Reuse the texts of an earlier training of this target.", WORK, metavar="FILE"),
    ] = None
    not_from: Annotated[
        tuple[str, ...],
        Option(
            "Test set, whose texts are kept out of the training; repeatable.",
            WORK,
            metavar="FILE|TASK",
        ),
    ] = ()
    chat: Annotated[
        str,
        Option(
            "Put prompts into the target's chat template: auto (if it has one), on or off.",
            WORK,
            one_of("auto", "on", "off"),
        ),
    ] = "auto"
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
        int | None, Option("Number of training steps, instead of --minutes.", SIZE, COUNT)
    ] = None
    batch_tokens: Annotated[int, Option("Tokens per training step.", SIZE, COUNT)] = 2048
    micro_tokens: Annotated[
        int,
        Option(
            "Tokens per micro-batch; gradients are accumulated up to --batch-tokens.", SIZE, COUNT
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
    costs: Annotated[
        Path | None,
        Option("Use this table of costs instead of measuring them.", RUN, metavar="FILE"),
    ] = None
    cost_seconds: Annotated[
        float,
        Option(
            "Seconds to spend on measuring the cost of forward passes; 0 skips it.",
            RUN,
            between(0, 1e5),
        ),
    ] = 10.0
    store_features: Annotated[
        bool, Option("Cache the target's hidden states on disk during the training.", RUN)
    ] = False
    recompute: Annotated[
        bool, Option("Recompute activations for the gradient, to save memory.", MACHINE)
    ] = False
    parallel: Annotated[
        str | None,
        Option(
            "Data-parallel training processes, such as dp:2; dp under torchrun.",
            MACHINE,
            Check(
                lambda value: LEARNERS.fullmatch(value) is not None,
                "dp:N with N of 2 or more, or dp under torchrun",
            ),
            metavar="dp:N",
        ),
    ] = None
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
    start: Annotated[
        Path | None,
        Option(
            "Folder of a model to start from; with a config.json alone, from random weights.",
            METHOD,
            flags=("from",),
            metavar="FOLDER",
        ),
    ] = None


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
    each.name: each for each in TARGET.values() if each.name not in NO_CHOICE
}
OF_DRAFT: Mapping[str, Setting] = options_of(DraftTraining)
OF_HEAD: Mapping[str, Setting] = options_of(HeadTraining)
