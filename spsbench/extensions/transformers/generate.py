"""`spsbench.generate_with`: a callable for `custom_generate=` of transformers' `generate`.

The logits processors and stopping criteria that transformers has prepared, the user's among them,
are applied along every path of a draft, so that a text has the distribution of plain `generate`.
"""

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.utils import ALL_CACHE_NAMES

from spsbench.audit.statistical.forward import score_plainly
from spsbench.engines.eager import logits_width
from spsbench.errors import UsageError
from spsbench.loop.decode import never
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.types import Limits
from spsbench.methods.build import build_decoder, use_threads
from spsbench.methods.measured_costs import greatest_batch, learn_costs, together
from spsbench.methods.resolve import resolve, warp_of
from spsbench.methods.round_costs import asks_for_costs, with_costs
from spsbench.metrics.rates import Metrics, generation_metrics
from spsbench.models.cache import Loaded, ModelCache
from spsbench.models.prepare import facts_of
from spsbench.settings.cell import Cell
from spsbench.settings.cell_from_options import DRAFTING, OF_CELL, fill
from spsbench.settings.execution import Access
from spsbench.settings.grid import Grid
from spsbench.settings.options import parse, takes
from spsbench.settings.processors import Processors
from spsbench.settings.records import RoundRecord, round_record
from spsbench.spec import Spec
from spsbench.tables import read_table

if TYPE_CHECKING:
    from spsbench import GenerateWithOptions

log = logging.getLogger(__name__)

FIELDS = read_table(__file__, "fields.toml")
"""Every field of a generation config by what it does here, and processors that are special."""
INPUTS = ("attention_mask", "position_ids", "use_cache", "logits_to_keep", *ALL_CACHE_NAMES)
OF_CALL = ("streamer", "assistant_model", "synced_gpus")


@dataclass(frozen=True)
class MethodOptions(Grid):
    """The options of how to speculate; those of sampling are the user's call to `generate`."""

    AXES: ClassVar = {name: OF_CELL[name] for name in (*DRAFTING, "k", "seed", "engine")}


@takes(MethodOptions, Access)
def generate_with(
    *,
    assistant_model: PreTrainedModel | None = None,
    tokenizer: Any = None,
    assistant_tokenizer: Any = None,
    **options: "Unpack[GenerateWithOptions]",
) -> "SpeculativeGeneration":
    """Return a callable for `custom_generate=` of transformers' `generate`, which then speculates.

    As in `generate(**inputs, custom_generate=spsbench.generate_with(drafter="suffix"))`: other
    arguments of the call mean what they mean without it. The engine is `eager` by default, which
    runs the models as they are; `fast` packs their weights in place.

    Args:
        assistant_model: draft model; None: that of the call, or what `draft` or `drafter` names;
            prompt lookup by default.
        tokenizer, assistant_tokenizer: those of both models, if they may differ.
        options: how to speculate; `threads` holds at once, for the process. With `seed` every call
            draws the same; without it a call that samples takes one number from torch's default
            generator, which `torch.manual_seed` sets.

    Raises:
        UsageError: an option that is unknown or out of range; in the call what it cannot honour.
    """
    grid, access = parse(options, MethodOptions, Access)
    use_threads(access.threads)
    return SpeculativeGeneration(
        grid.given, access, assistant_model, tokenizer, assistant_tokenizer
    )


@dataclass(eq=False)
class SpeculativeGeneration:
    """A callable for `custom_generate=`, made of the arguments of `generate_with`.

    Attributes:
        rounds: the measurements of each row of the last call.
    """

    options: Mapping[str, Any]
    access: Access
    assistant_model: PreTrainedModel | None
    tokenizer: Any
    assistant_tokenizer: Any
    rounds: list[list[RoundRecord]] = field(default_factory=list)
    _models: tuple[Any, Any, Any] = (None, None, None)  # target, draft model, the cache of both

    @property
    def metrics(self) -> Metrics:
        """Return alpha, block efficiency and the other figures of the last call."""
        return generation_metrics([*chain(*self.rounds)], 0.0)

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: Any,
        **inputs: Any,
    ) -> Any:
        """Continue each row of `input_ids` [B, L], as transformers' own decoding methods do.

        Returns [B, n] sequences, padded at their ends, or in a dict where the config asks for one;
        scores and logits take one more pass of the target. Tokens also go to a `streamer`; `rounds`
        becomes the measurements of this call. Without a `seed`, sampling draws one from torch's
        generator. UsageError: what cannot be honoured.
        """
        of_call = arguments_of_generate(inspect.currentframe()) | inputs
        streamer, assistant = of_call.pop("streamer", None), of_call.pop("assistant_model", None)
        prompts, config = unpadded(input_ids, inputs.get("attention_mask")), generation_config
        check_call(model, config, logits_processor, of_call)
        if streamer is not None and len(prompts) > 1:
            raise UsageError("`streamer` with several rows: expected one. Leave it out")
        by_text, warping = split(logits_processor, config.do_sample)
        cell, loaded = self._open(model, assistant or self.assistant_model, warping)
        seed: int = self.options.get("seed", 0)
        if config.do_sample and "seed" not in self.options:
            seed = int(torch.randint(2**63 - 1, ()))
        limits, criteria = limits_of(stopping_criteria, input_ids.shape[1])
        batch = greatest_batch([len(prompts)])
        self.rounds = [[] for _ in prompts]

        def run(number: int, prompt: list[int]) -> list[int]:
            """Return the new tokens of row `number`, streamed; append rounds; warn if cut short."""
            ids = partial(in_place, input_ids, number, len(prompt))

            def process(text: Sequence[int], logits: Tensor) -> Any:
                scores = logits.to(input_ids.device).repeat(len(prompts), 1)
                return by_text(ids(text), scores)[number].to(logits)

            def stop(tokens: Sequence[int]) -> bool:
                return bool(criteria(ids([*prompt, *tokens]), None)[number])

            decoder: Any = build_decoder(cell, loaded, batch)
            tokens: list[int] = []
            for done in decoder(
                prompt,
                limits=limits,
                warp=warp_of(cell),
                noise=PhiloxStream(seed, cell.noise_key, str(number), 0),
                stop=stop if criteria else never,
                processors=Processors(further=process) if by_text else None,
            ):
                tokens += done.tokens
                self.rounds[number].append(round_record(done))
                for token in done.tokens if streamer is not None else ():
                    streamer.put(torch.tensor([token]))
                if done.finish == "context":
                    log.warning(f"row {number} ends where the context of the models does")
            return tokens

        rows = together(batch, [partial(run, *numbered) for numbered in enumerate(prompts)])
        if streamer is not None:
            streamer.end()
        sequences = padded(input_ids, rows, config._pad_token_tensor)
        if not config.return_dict_in_generate:
            return sequences
        logits: Sequence[Tensor] = ()  # [B, V] of each step; 0 of rows that have ended
        if config.output_scores or config.output_logits:  # by one more pass of the target
            passes = [
                score_plainly(model, [*text, *new[:-1]], len(new))[: len(new)]
                for text, new in zip(prompts, rows, strict=True)
            ]
            logits = [*pad_sequence(passes).to(input_ids.device)]
        texts = [sequences[:, :n] for n in range(input_ids.shape[1], sequences.shape[1])]
        scores = map(logits_processor, texts, (raw.clone() for raw in logits))
        return GenerateDecoderOnlyOutput(
            sequences=sequences,
            scores=tuple(scores) if config.output_scores else None,
            logits=tuple(logits) if config.output_logits else None,
        )

    def _open(
        self, model: PreTrainedModel, assistant: PreTrainedModel | None, warping: dict[str, Any]
    ) -> tuple[Cell, Loaded]:
        """Return the resolved cell of a call, and its models, checked for each other.

        `assistant` is the call's, or else the callable's; None: there is neither. Models that are
        those of the call before stay open; costs for a schedule are measured. UsageError: a `draft`
        next to an assistant, or one of other tokens without both tokenizers.
        """
        names = [one.config.name_or_path or type(one).__name__ for one in (model, assistant) if one]
        options = {"engine": Spec("eager"), **self.options, **warping}
        options |= {"target": names[0], "device": str(model.device)}
        if assistant is not None:
            if "draft" in options:
                raise UsageError("`draft` with `assistant_model`: expected one. Leave one out")
            alike = logits_width(model) == logits_width(assistant)
            if not (alike or (self.tokenizer and self.assistant_tokenizer)):
                raise UsageError(
                    "`assistant_model` of other tokens: give both tokenizers to `generate_with`, "
                    "as `generate` hands on none"
                )
            options = {"drafter": Spec("model"), **options, "draft": f"{names[1]} (assistant)"}
        request = fill(options, facts_of(self.access))
        if self._models[:2] != (model, assistant):
            self._models = model, assistant, ModelCache(self.access)
            self._models[2].adopt(request.target, model, self.tokenizer)
            if assistant is not None and request.draft is not None:
                self._models[2].adopt(request.draft, assistant, self.assistant_tokenizer)
        cache: ModelCache = self._models[2]
        cell = resolve(request, cache.vocabularies)
        loaded = cache.load(cell)
        if asks_for_costs(request):
            learn_costs(request, loaded)
            cell = cell.but(schedule=with_costs(request).schedule)
        return cell, loaded


def arguments_of_generate(frame: FrameType | None) -> dict[str, Any]:
    """Return the `OF_CALL` that the frame's caller `generate` was given; {} for another caller."""
    caller = None if frame is None else frame.f_back
    if caller is None or caller.f_code.co_name != "generate":
        return {}
    return {name: value for name in OF_CALL if (value := caller.f_locals.get(name)) is not None}


def unpadded(ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """Return the rows of `ids` [B, L] without padding; UsageError: some is not on the left."""
    kept = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool().to(ids.device)
    if kept.shape != ids.shape or bool((kept[:, :-1] & ~kept[:, 1:]).any()):
        raise UsageError("`attention_mask`: expected padding on the left. Set `padding_side` to it")
    return [row[one].tolist() for row, one in zip(ids, kept, strict=True)]


def check_call(model: Any, config: Any, processors: list[Any], inputs: Mapping[str, Any]) -> None:
    """Raise UsageError for what `FIELDS` refuses, other inputs, an encoder, or training mode."""
    accepted = {*FIELDS["honoured"], *FIELDS["without_effect"]}
    for name, value in vars(config).items():
        refused = FIELDS["refused"].get(name, {"neutral": [], "why": "not known here"})
        if name in accepted or name.startswith("_") or value in (None, *refused["neutral"]):
            continue
        raise UsageError(f"`{name}` is {value!r} (generation config): {refused['why']}")
    kinds = {type(processor).__name__ for processor in processors}
    faults = [f"{kind} keeps a state" for kind in kinds.intersection(FIELDS["stateful"])]
    for name, value in inputs.items():
        if name in ALL_CACHE_NAMES and getattr(value, "_is_user_defined", False):
            faults.append(f"`{name}` holds tokens: each row has a cache of its own")
        elif name not in INPUTS and value is not None and value is not False:
            faults.append(f"`{name}` is no input that is known here")
    if (positions := inputs.get("position_ids")) is not None:
        mask = inputs.get("attention_mask")
        ones = torch.ones_like(positions) if mask is None else mask.long().to(positions.device)
        if bool(((positions + 1 - ones.cumsum(-1)) * ones).any()):
            faults.append("`position_ids` are not those of the rows")
    if model.config.is_encoder_decoder or model.training:
        faults.append(f"{type(model).__name__} has an encoder, or is in training mode (eval())")
    if faults:
        raise UsageError(f"{faults[0]}: expected a decoder over tokens alone. Leave it out")


def split(processors: Sequence[Any], samples: bool) -> tuple[LogitsProcessorList, dict[str, Any]]:
    """Return processors without the usual warpers at their end, and those as options of a warp.

    A warper with other than default arguments stays, and so do all before it. Without `samples`
    all stay, and the temperature is 0.
    """
    by_text = LogitsProcessorList(processors)
    options: dict[str, Any] = {} if samples else {"temperature": 0.0}
    for name, kind_name in FIELDS["warpers"].items() if samples else ():
        kind = getattr(transformers, kind_name)
        value = getattr(by_text[-1], name, 0) if by_text and type(by_text[-1]) is kind else 0
        if value > 0 and vars(by_text[-1]) == vars(kind(value)):
            options[name] = getattr(by_text.pop(), name)
    return by_text, options


def limits_of(criteria: Sequence[Any], prompt: int) -> tuple[Limits, StoppingCriteriaList]:
    """Return length and EOS criteria as limits after `prompt` tokens (padded), and the others."""
    length, end = transformers.MaxLengthCriteria, transformers.EosTokenCriteria
    least = min([2**31, *(one.max_length for one in criteria if type(one) is length)])
    eos = frozenset(chain(*(one.eos_token_id.tolist() for one in criteria if type(one) is end)))
    others = (one for one in criteria if type(one) not in (length, end))
    return Limits(least - prompt, eos), StoppingCriteriaList(others)


def in_place(ids: Tensor, number: int, prompt: int, text: Sequence[int]) -> Tensor:
    """Return [B, n] ids with a text in the place of row `number`, for what indexes rows of a batch.

    The text stands after the padding of its prompt, of `prompt` tokens, in `ids` [B, L].
    """
    row = [*ids[number, : ids.shape[1] - prompt].tolist(), *text]
    return torch.tensor(row, device=ids.device).expand(len(ids), -1)


def padded(ids: Tensor, rows: Sequence[Sequence[int]], pad: Tensor | None) -> Tensor:
    """Return [B, n] `ids` [B, L] with new tokens, padded at their ends; UsageError: no `pad`."""
    if pad is None and len({*map(len, rows)}) > 1:
        raise UsageError("rows of different lengths: expected `pad_token_id`. Name it")
    new = [torch.tensor(row, dtype=ids.dtype, device=ids.device) for row in rows]
    value = 0 if pad is None else int(pad)
    return torch.cat([ids, pad_sequence(new, batch_first=True, padding_value=value)], 1)
