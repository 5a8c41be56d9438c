"""Options of `sps train draft` and `sps train head`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from spsbench.errors import UsageError
from spsbench.settings.cell_from_options import TARGET
from spsbench.settings.commands import Chat, CostsFile
from spsbench.settings.options import (
    METHOD,
    RUN,
    SAMPLING,
    SIZE,
    WORK,
    Option,
    at_least,
    between,
    one_of,
)
from spsbench.spec import Spec

STUDENTS: Mapping[str, str] = {
    "eagle3": ".extensions.training.students.eagle:Eagle3Student",
    "eagle": ".extensions.training.students.eagle:EagleStudent",
    "medusa": ".extensions.training.students.chained:MedusaStudent",
    "mlp": ".extensions.training.students.chained:MlpStudent",
    "blockwise": ".extensions.training.students.chained:BlockwiseStudent",
    "falcon": ".extensions.training.students.eagle:FalconStudent",
    "mtp": ".extensions.training.students.mtp:MtpStudent",
}
"""Kinds of heads that `sps train head` trains, and the classes that learn."""

COUNT = between(1, 1 << 24)
FEWEST = 4  # texts, one of them or more for evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Options of both `sps train draft` and `sps train head`.

    Args:
        prompts: Prompts for the target: a file (.jsonl, .txt), a task, or self, where the target
            invents the prompts still missing from `count`; repeatable.
        texts: Reuse the texts of an earlier training of this target.
        references: Prompts with references by people, trained on with the target's texts;
            repeatable.
        whole: Train on the tokens of prompts too, not of continuations alone.
        not_from: Test set, whose texts are kept out of the training; repeatable.
        count: Number of training texts that the target writes.
        tokens: Maximum tokens per text.
        prompt_tokens: Maximum tokens per prompt.
        together: Texts generated in one batch.
        held_out: Number of held-out texts on which acceptance is measured.
        minutes: Minutes of training, after the texts are written.
        steps: Number of training steps, instead of `minutes`.
        batch_tokens: Tokens per training step.
        micro_tokens: Tokens per micro-batch; gradients are accumulated up to `batch_tokens`.
        evaluations: Number of evaluations of acceptance during the training.
        loss: Training loss: ce, kl, reverse-kl, jsd:beta=0.5, tv, acceptance, hybrid or top-k:k=10.
        rate: Peak learning rate.
        depth: Number of tokens ahead that the drafter learns to predict; falcon: tokens per pass.
        start: Bundled name or folder of a draft model or a head to begin with; a config.json alone:
            from random weights.
        on_policy: Share of the steps that train on the draft model's own texts (on-policy).
        temperature: Sampling temperature of the texts, and of the later use of the drafter.
        top_p: Nucleus sampling of the texts, and of the later use of the drafter.
        seed: Random seed of the texts, the initial weights and the order.
        patience: Stop after this many evaluations without a better one; 0 is never.
        worth: Stop if the predicted speed-up is below this; 0 is never.
        cost_seconds: Seconds to spend on measuring the cost of forward passes; 0 skips it.
        save_as: Data type of the saved weights.
    """

    prompts: Annotated[
        tuple[str, ...], Option(WORK, metavar="FILE|TASK|self", default_text="self")
    ] = ()
    texts: Annotated[Path | None, Option(WORK, metavar="FILE")] = None
    references: Annotated[tuple[str, ...], Option(WORK, metavar="FILE|TASK")] = ()
    whole: Annotated[bool, Option(WORK)] = False
    not_from: Annotated[tuple[str, ...], Option(WORK, metavar="FILE|TASK")] = ()
    chat: Chat = "auto"
    count: Annotated[int, Option(SIZE, COUNT)] = 1024
    tokens: Annotated[int, Option(SIZE, between(2, 1 << 20))] = 160
    prompt_tokens: Annotated[int, Option(SIZE, between(1, 1 << 20))] = 96
    together: Annotated[int, Option(SIZE, COUNT)] = 32
    held_out: Annotated[int, Option(SIZE, COUNT)] = 48
    minutes: Annotated[float, Option(SIZE, between(0.001, 1e6))] = 60.0
    steps: Annotated[int | None, Option(SIZE, COUNT)] = None
    batch_tokens: Annotated[int, Option(SIZE, COUNT)] = 2048
    micro_tokens: Annotated[int, Option(SIZE, COUNT)] = 1024
    evaluations: Annotated[int, Option(SIZE, COUNT)] = 20
    loss: Annotated[Spec | None, Option(METHOD, default_text="hybrid; eagle, falcon: kl")] = None
    rate: Annotated[float | None, Option(METHOD, between(1e-9, 10), default_text="by kind")] = None
    depth: Annotated[int | None, Option(METHOD, between(1, 16), default_text="by kind")] = None
    start: Annotated[Path | None, Option(METHOD, flags=("from",), metavar="NAME|FOLDER")] = None
    on_policy: Annotated[float, Option(METHOD, between(0, 1))] = 0.0
    temperature: Annotated[float, Option(SAMPLING, at_least(0))] = 1.0
    top_p: Annotated[float, Option(SAMPLING, between(1e-6, 1, "0 < top_p <= 1"))] = 1.0
    seed: Annotated[int, Option(SAMPLING, between(0, 1 << 62))] = 0
    patience: Annotated[int, Option(RUN, between(0, 10_000))] = 6
    worth: Annotated[float, Option(RUN, between(0, 100))] = 1.0
    costs: CostsFile = None
    cost_seconds: Annotated[float, Option(RUN, between(0, 1e5))] = 10.0
    save_as: Annotated[str, Option(RUN, one_of("bfloat16", "float16", "float32"))] = "bfloat16"

    def __post_init__(self) -> None:
        """Refuse options that exclude each other."""
        for name in ("layers", "pruned", "draft_vocab", "inner"):
            if self.start is not None and getattr(self, name, None):
                raise UsageError(f"`{name}` with `start`: expected one of the two. Leave one out")
        if self.texts is not None and self.prompts:
            raise UsageError("`texts` with `prompts`: expected one of the two. Leave one out")
        if self.texts is None and self.count < FEWEST:
            raise UsageError(
                f"`count` is {self.count}: expected {FEWEST} or more, some of them to watch on"
            )
        if self.on_policy and hasattr(self, "kind"):
            raise UsageError(
                "`on_policy` with a head: expected a draft model. A head writes no text of its "
                "own: each of its rounds begins in the target's. Leave it out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTraining(Training):
    """Options of `sps train draft`.

    Args:
        layers: Number of layers, copied from the target.
        window: Newest tokens that each layer of the draft model attends to.
        pruned: Copy half of each layer's attention heads and MLP channels, by weight.
    """

    layers: Annotated[
        int | None, Option(METHOD, between(1, 1024), default_text="a fifth of them")
    ] = None
    window: Annotated[int | None, Option(METHOD, between(1, 1 << 24), default_text="all")] = None
    pruned: Annotated[bool, Option(METHOD)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraining(Training):
    """Options of `sps train head`.

    Args:
        draft_vocab: eagle3, medusa: draft vocabulary, the most frequent tokens.
        inner: Width of the head's inner layer.
    """

    kind: Annotated[
        str, Option(METHOD, one_of(*STUDENTS), help=f"Kind of head: {', '.join(STUDENTS)}.")
    ] = "eagle3"
    draft_vocab: Annotated[int | None, Option(METHOD, COUNT, default_text="32000 or all")] = None
    inner: Annotated[int | None, Option(METHOD, COUNT, default_text="the target's")] = None


NO_CHOICE = ("engine", "weights")  # what learns is run by transformers, whole
TRAINED = [setting.name for setting in TARGET.values() if setting.name not in NO_CHOICE]
"""Options of the target."""
