"""The types of the package; written by recipes/stubs.py."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict

from spsbench.benchmark.bench import bench
from spsbench.errors import (
    BatchError,
    CannotCreateError,
    DataError,
    Exit,
    InUseError,
    MismatchError,
    MissingError,
    OutOfMemoryError,
    PermissionDeniedError,
    PlugInError,
    SpsError,
    UnavailableError,
    UsageError,
    WriteError,
)
from spsbench.extensions.transformers.generate import generate_with
from spsbench.pair.load import generate, load
from spsbench.pair.pair import Pair
from spsbench.spec import Spec
from spsbench.version import __version__

__all__ = [
    "BatchError",
    "CannotCreateError",
    "DataError",
    "Exit",
    "InUseError",
    "MismatchError",
    "MissingError",
    "OutOfMemoryError",
    "Pair",
    "PermissionDeniedError",
    "PlugInError",
    "SpsError",
    "UnavailableError",
    "UsageError",
    "WriteError",
    "__version__",
    "bench",
    "generate",
    "generate_with",
    "load",
]
Decoder: TypeAlias = (
    Literal["native", "hf", "openai", "sglang", "llamacpp", "openvino"] | str | Spec
)
Drafter: TypeAlias = (
    Literal[
        "model",
        "tli",
        "slem",
        "ngram",
        "tree",
        "topk",
        "sequoia",
        "chains",
        "suffix",
        "copy",
        "recycling",
        "lookahead",
        "self",
        "hybrid",
        "grammar",
        "none",
        "eagle",
        "peagle",
        "eagle3",
        "medusa",
        "blockwise",
        "mlp",
        "falcon",
        "dflash",
        "dspark",
        "mtp",
    ]
    | str
    | Spec
)
Engine: TypeAlias = Literal["fast", "eager", "static"] | str | Spec
Schedule: TypeAlias = (
    Literal[
        "constant",
        "heuristic",
        "ema",
        "goodput",
        "payoff",
        "utility",
        "confidence",
        "entropy",
        "disco",
    ]
    | str
    | Spec
)
Verifier: TypeAlias = (
    Literal[
        "sps",
        "rejection",
        "match",
        "block",
        "traversal",
        "recursive",
        "spectr",
        "synthetic",
        "lenient",
        "ensemble",
        "typical",
        "topk",
    ]
    | str
    | Spec
)

class PairOptions(TypedDict, total=False):
    """Options of what makes and uses a pair; None: not given."""

    adapter: str | None
    """PEFT adapter merged into the target: a folder, or A=0.7+B=0.3; none is no adapter.
    Default: none."""
    attention: str | None
    """Attention implementation of the target, by its name in transformers. Default: none."""
    bad_words: str | Sequence[str] | None
    """Never write this text, alone or after a space; repeatable. Default: none."""
    decoder: Decoder | None
    """Decoding loop: native, hf (transformers' generate), or another engine: openai:url=...,
    sglang:url=..., llamacpp:path=... or openvino:path=.... Default: native."""
    device: str | None
    """Device of the target: cpu, cuda, cuda:1 ... Default: cpu."""
    draft_adapter: str | None
    """PEFT adapter merged into the draft model: a folder, or A=0.7+B=0.3; none is no adapter.
    Default: none."""
    draft_device: str | None
    """Device of the draft model: cpu, cuda, cuda:1 ... Default: the target's."""
    draft_dtype: str | None
    """Data type of the draft model; auto is float32 on a CPU, else the checkpoint's. Default:
    the target's."""
    draft_engine: Engine | None
    """Engine that runs the draft model; see sps list engines. Default: the target's."""
    draft_revision: str | None
    """Branch, tag or commit of the draft model on the hub. Default: none."""
    draft_weights: str | None
    """Weights of the draft model: checkpoint; int8, int4 or int4-64 (quantised); blocks (as
    stored in a GGUF file); served (another engine has them); or random. Default: the
    target's."""
    dtype: str | None
    """Data type of the target; auto is float32 on a CPU, else the checkpoint's. Default:
    auto."""
    engine: Engine | None
    """Engine that runs the target; see sps list engines. Default: fast."""
    frequency_penalty: float | None
    """Subtract this from a token's logit for each time that the answer has it. Default: 0.0."""
    ignore_eos: bool | None
    """Continue after an end-of-text token. Default: False."""
    leave_open: bool | None
    """Let `max_new_tokens` cut a text in its JSON schema; else it is completed. Default:
    False."""
    logit_bias: str | Sequence[str] | Mapping[int, float] | Mapping[str, float] | None
    """Add VALUE to the logit of a token, named by its id or its text; repeatable. Default:
    none."""
    max_new_tokens: int | None
    """Maximum number of tokens to generate. Default: 128."""
    min_new_tokens: int | None
    """Minimum number of tokens before the answer may end. Default: 0."""
    min_p: float | None
    """Drop tokens below this share of the most likely token's probability; 0 is off. Default:
    0.0."""
    no_repeat_ngram: int | None
    """Never repeat N tokens of prompt and answer in a row; 0 is off. Default: 0."""
    presence_penalty: float | None
    """Subtract this from the logits of tokens that the answer has. Default: 0.0."""
    repetition_penalty: float | str | None
    """Divide positive logits of tokens in prompt and answer by this number, and multiply
    others; with :answer, of tokens in the answer alone. Default: 1."""
    revision: str | None
    """Branch, tag or commit of the target on the hub. Default: none."""
    seed: int | None
    """Random seed; the same seed gives the same text. Default: 0."""
    target: str | None
    """Name, folder or Hugging Face id of the target. Default: nano."""
    temperature: float | None
    """Sampling temperature; 0 is greedy decoding. Default: 1.0."""
    top_k: int | None
    """Sample from the k most likely tokens only; 0 is off. Default: 0."""
    top_p: float | None
    """Nucleus sampling, from the most likely tokens of total probability p; 1 is off. Default:
    1.0."""
    trust_remote_code: bool | None
    """Run the Python code in the repository of the target; needs a pinned revision. Default:
    False."""
    weights: str | None
    """Weights of the target: checkpoint; int8, int4 or int4-64 (quantised); blocks (as stored
    in a GGUF file); served (another engine has them); or random. Default: checkpoint."""

class LoadOptions(PairOptions, total=False):
    """Options of `spsbench.load` and `spsbench.generate`; None: not given."""

    allow_pickle: bool | None
    """Allow weights in pickle files, which can run code when they are loaded. Default:
    False."""
    draft: str | None
    """Name, folder or Hugging Face id of the draft model. self:int8 is the target quantised.
    Default: that of a bundled pair."""
    drafter: Drafter | None
    """What proposes tokens: NAME[:key=value,...]; see sps list drafters. Default: model, or
    without a draft the target's bundled head or ngram."""
    grammar: str | None
    """Lark grammar that each text follows, in llguidance's dialect. Default: none."""
    json_schema: str | Path | None
    """JSON schema that each text follows: a FILE, or the schema itself. Default: none."""
    k: int | None
    """Tokens drafted per round, 1..64; 0 is auto-regressive sampling (ArS). Default: 4."""
    offline: bool | None
    """Never contact the Hugging Face Hub. Default: False."""
    regex: str | None
    """Regular expression that each text matches in full. Default: none."""
    schedule: Schedule | None
    """How K is chosen in each round; see sps list schedules. Default: constant, or that of the
    target's own drafter."""
    stop: str | Sequence[str] | None
    """Stop before this text; repeatable. Default: none."""
    threads: int | Literal["auto"] | None
    """CPU threads; auto leaves room for other programs. Default: auto."""
    verifier: Verifier | None
    """Acceptance rule; see sps list verifiers. Default: sps; traversal for sampled trees; match
    for deterministic drafts."""

class CallOptions(PairOptions, total=False):
    """Options of `Pair.generate`, `stream`, `generation` and `compare`; None: not given."""

    draft: str | None
    """Name, folder or Hugging Face id of the draft model. self:int8 is the target quantised.
    Default: that of a bundled pair."""
    drafter: Drafter | None
    """What proposes tokens: NAME[:key=value,...]; see sps list drafters. Default: model, or
    without a draft the target's bundled head or ngram."""
    grammar: str | None
    """Lark grammar that each text follows, in llguidance's dialect. Default: none."""
    json_schema: str | Path | None
    """JSON schema that each text follows: a FILE, or the schema itself. Default: none."""
    k: int | None
    """Tokens drafted per round, 1..64; 0 is auto-regressive sampling (ArS). Default: 4."""
    regex: str | None
    """Regular expression that each text matches in full. Default: none."""
    schedule: Schedule | None
    """How K is chosen in each round; see sps list schedules. Default: constant, or that of the
    target's own drafter."""
    stop: str | Sequence[str] | None
    """Stop before this text; repeatable. Default: none."""
    verifier: Verifier | None
    """Acceptance rule; see sps list verifiers. Default: sps; traversal for sampled trees; match
    for deterministic drafts."""

class GenerateWithOptions(TypedDict, total=False):
    """Options of `spsbench.generate_with`; None: not given."""

    allow_pickle: bool | None
    """Allow weights in pickle files, which can run code when they are loaded. Default:
    False."""
    draft: str | None
    """Name, folder or Hugging Face id of the draft model. self:int8 is the target quantised.
    Default: that of a bundled pair."""
    draft_adapter: str | None
    """PEFT adapter merged into the draft model: a folder, or A=0.7+B=0.3; none is no adapter.
    Default: none."""
    draft_device: str | None
    """Device of the draft model: cpu, cuda, cuda:1 ... Default: the target's."""
    draft_dtype: str | None
    """Data type of the draft model; auto is float32 on a CPU, else the checkpoint's. Default:
    the target's."""
    draft_engine: Engine | None
    """Engine that runs the draft model; see sps list engines. Default: the target's."""
    draft_revision: str | None
    """Branch, tag or commit of the draft model on the hub. Default: none."""
    draft_weights: str | None
    """Weights of the draft model: checkpoint; int8, int4 or int4-64 (quantised); blocks (as
    stored in a GGUF file); served (another engine has them); or random. Default: the
    target's."""
    drafter: Drafter | None
    """What proposes tokens: NAME[:key=value,...]; see sps list drafters. Default: model, or
    without a draft the target's bundled head or ngram."""
    engine: Engine | None
    """Engine that runs the target; see sps list engines. Default: fast."""
    k: int | None
    """Tokens drafted per round, 1..64; 0 is auto-regressive sampling (ArS). Default: 4."""
    offline: bool | None
    """Never contact the Hugging Face Hub. Default: False."""
    schedule: Schedule | None
    """How K is chosen in each round; see sps list schedules. Default: constant, or that of the
    target's own drafter."""
    seed: int | None
    """Random seed; the same seed gives the same text. Default: 0."""
    threads: int | Literal["auto"] | None
    """CPU threads; auto leaves room for other programs. Default: auto."""
    verifier: Verifier | None
    """Acceptance rule; see sps list verifiers. Default: sps; traversal for sampled trees; match
    for deterministic drafts."""

class BenchOptions(TypedDict, total=False):
    """Options of `spsbench.bench` and `Pair.bench`; None: not given."""

    adapter: str | Sequence[str] | None
    """PEFT adapter merged into the target: a folder, or A=0.7+B=0.3; none is no adapter.
    Default: none."""
    allow_pickle: bool | None
    """Allow weights in pickle files, which can run code when they are loaded. Default:
    False."""
    attention: str | Sequence[str] | None
    """Attention implementation of the target, by its name in transformers. Default: none."""
    bad_words: str | Sequence[str] | None
    """Never write this text, alone or after a space; repeatable. Default: none."""
    batch: int | str | Iterable[int | str] | None
    """Texts at a time, in the same passes or as requests to a server: 1,2,4,8. Default: 1."""
    chat: bool | Literal["auto", "on", "off"] | None
    """Put prompts into the model's chat template, and sample as its generation_config says:
    auto (if it has one), on or off. Default: auto."""
    continuous: bool | None
    """Continuous batching: a finished text makes room for the next. Default: False."""
    data: str | None
    """Data of the task: auto, hub, mini (bundled) or a path. Default: none."""
    decoder: Decoder | Sequence[Decoder] | None
    """Decoding loop: native, hf (transformers' generate), or another engine: openai:url=...,
    sglang:url=..., llamacpp:path=... or openvino:path=.... Default: native."""
    device: str | Sequence[str] | None
    """Device of the target: cpu, cuda, cuda:1 ... Default: cpu."""
    draft: str | Sequence[str] | None
    """Name, folder or Hugging Face id of the draft model. self:int8 is the target quantised.
    Default: that of a bundled pair."""
    draft_adapter: str | Sequence[str] | None
    """PEFT adapter merged into the draft model: a folder, or A=0.7+B=0.3; none is no adapter.
    Default: none."""
    draft_device: str | Sequence[str] | None
    """Device of the draft model: cpu, cuda, cuda:1 ... Default: the target's."""
    draft_dtype: str | Sequence[str] | None
    """Data type of the draft model; auto is float32 on a CPU, else the checkpoint's. Default:
    the target's."""
    draft_engine: Engine | Sequence[Engine] | None
    """Engine that runs the draft model; see sps list engines. Default: the target's."""
    draft_revision: str | Sequence[str] | None
    """Branch, tag or commit of the draft model on the hub. Default: none."""
    draft_weights: str | Sequence[str] | None
    """Weights of the draft model: checkpoint; int8, int4 or int4-64 (quantised); blocks (as
    stored in a GGUF file); served (another engine has them); or random. Default: the
    target's."""
    drafter: Drafter | Sequence[Drafter] | None
    """What proposes tokens: NAME[:key=value,...]; see sps list drafters. Default: model, or
    without a draft the target's bundled head or ngram."""
    dtype: str | Sequence[str] | None
    """Data type of the target; auto is float32 on a CPU, else the checkpoint's. Default:
    auto."""
    engine: Engine | Sequence[Engine] | None
    """Engine that runs the target; see sps list engines. Default: fast."""
    frequency_penalty: float | Sequence[float] | None
    """Subtract this from a token's logit for each time that the answer has it. Default: 0.0."""
    grammar: str | Sequence[str] | None
    """Lark grammar that each text follows, in llguidance's dialect. Default: none."""
    ignore_eos: bool | Sequence[bool] | None
    """Continue after an end-of-text token. Default: False."""
    json_schema: str | Path | Sequence[str | Path] | None
    """JSON schema that each text follows: a FILE, or the schema itself. Default: none."""
    k: int | str | Iterable[int | str] | None
    """Tokens drafted per round: 4, 1..8 or 2,4,6. Default: 4."""
    leave_open: bool | Sequence[bool] | None
    """Let `max_new_tokens` cut a text in its JSON schema; else it is completed. Default:
    False."""
    limit: int | None
    """Number of prompts. Default: none."""
    logit_bias: str | Sequence[str] | Mapping[int, float] | Mapping[str, float] | None
    """Add VALUE to the logit of a token, named by its id or its text; repeatable. Default:
    none."""
    max_new_tokens: int | Sequence[int] | None
    """Maximum number of tokens to generate. Default: 128."""
    method: str | Sequence[str] | None
    """Methods: ars (auto-regressive), sps (speculative sampling). Default: ars,sps."""
    min_new_tokens: int | Sequence[int] | None
    """Minimum number of tokens before the answer may end. Default: 0."""
    min_p: float | Sequence[float] | None
    """Drop tokens below this share of the most likely token's probability; 0 is off. Default:
    0.0."""
    no_repeat_ngram: int | Sequence[int] | None
    """Never repeat N tokens of prompt and answer in a row; 0 is off. Default: 0."""
    no_texts: bool | None
    """Leave a digest in the place of texts and token ids, once they are scored. Default:
    False."""
    offline: bool | None
    """Never contact the Hugging Face Hub. Default: False."""
    on: str | None
    """Where to run: here, processes:N, ray (this machine) or ray:ADDRESS. Default: here."""
    out: str | Path | None
    """Folder for the results. Default: results/...."""
    overwrite: bool | None
    """Move an existing run aside and start over. Default: False."""
    paper: bool | None
    """Show the paper's results (Chinchilla) next to the measured ones. Default: False."""
    presence_penalty: float | Sequence[float] | None
    """Subtract this from the logits of tokens that the answer has. Default: 0.0."""
    record: str | None
    """What to record: counts, laws (distributions p and q, for audits) or trace (for sps plan).
    Default: counts."""
    regex: str | Sequence[str] | None
    """Regular expression that each text matches in full. Default: none."""
    repeats: int | None
    """Timed repeats of each sample. Default: 1."""
    repetition_penalty: float | str | Sequence[float | str] | None
    """Divide positive logits of tokens in prompt and answer by this number, and multiply
    others; with :answer, of tokens in the answer alone. Default: 1."""
    resume: bool | None
    """Resume an interrupted run. Default: False."""
    revision: str | Sequence[str] | None
    """Branch, tag or commit of the target on the hub. Default: none."""
    sample_seed: int | None
    """Seed that draws the prompts from all, each group in proportion. Default: none: the first
    prompts of the data."""
    samples: int | None
    """Samples per prompt. Default: 1."""
    schedule: Schedule | Sequence[Schedule] | None
    """How K is chosen in each round; see sps list schedules. Default: constant, or that of the
    target's own drafter."""
    score: bool | None
    """Run generated programs in a sandbox, for pass@k. Default: if a sandbox is available."""
    seed: int | str | Iterable[int | str] | None
    """Random seed, or several such as 0..4; reports show the spread over them. Default: 0."""
    setting: str | Sequence[str] | None
    """Sampling settings of the paper: nucleus,greedy. Default: none."""
    shard: str | None
    """Run only slice i of n of the samples, counted from 0. Default: 0/1."""
    stop: str | Sequence[str] | None
    """Stop before this text; repeatable. Default: none."""
    system: str | None
    """System message, for prompts in a chat template. Default: none."""
    target: str | Sequence[str] | None
    """Name, folder or Hugging Face id of the target. Default: nano."""
    temperature: float | Sequence[float] | None
    """Sampling temperature; 0 is greedy decoding. Default: 1.0."""
    threads: int | Literal["auto"] | None
    """CPU threads; auto leaves room for other programs. Default: auto."""
    title: str | None
    """Title of the report. Default: none."""
    top_k: int | Sequence[int] | None
    """Sample from the k most likely tokens only; 0 is off. Default: 0."""
    top_p: float | Sequence[float] | None
    """Nucleus sampling, from the most likely tokens of total probability p; 1 is off. Default:
    1.0."""
    trust_remote_code: bool | Sequence[bool] | None
    """Run the Python code in the repository of the target; needs a pinned revision. Default:
    False."""
    verifier: Verifier | Sequence[Verifier] | None
    """Acceptance rule; see sps list verifiers. Default: sps; traversal for sampled trees; match
    for deterministic drafts."""
    warmup: int | None
    """Warm-up prompts, run before anything is timed. Default: 1."""
    weights: str | Sequence[str] | None
    """Weights of the target: checkpoint; int8, int4 or int4-64 (quantised); blocks (as stored
    in a GGUF file); served (another engine has them); or random. Default: checkpoint."""

class PlanOptions(PairOptions, total=False):
    """Options of `Pair.plan`; None: not given."""

    allow_pickle: bool | None
    """Allow weights in pickle files, which can run code when they are loaded. Default:
    False."""
    batch: int | str | Iterable[int | str] | None
    """Also measure batches, and predict K and speed-up by batch size: 1..32. Default: none."""
    chat: bool | Literal["auto", "on", "off"] | None
    """Put prompts into the target's chat template: auto (if it has one), on or off. Default:
    auto."""
    confirm: int | None
    """Number of the best candidates to time, compared with auto-regressive sampling. Default:
    2."""
    cost_seconds: float | None
    """Seconds to spend on measuring the cost of forward passes. Default: 20.0."""
    costs: str | Path | None
    """Use this table of costs instead of measuring them. Default: none."""
    draft: str | Sequence[str] | None
    """Name, folder or Hugging Face id of the draft model. self:int8 is the target quantised.
    Default: that of a bundled pair."""
    draft_cost: float | None
    """Predict for a draft that takes this many times as long. Default: none."""
    drafter: Drafter | Sequence[Drafter] | None
    """What proposes tokens: NAME[:key=value,...]; see sps list drafters. Default: model, or
    without a draft the target's bundled head or ngram."""
    every: bool | None
    """Show a row for every candidate, not only for the best K. Default: False."""
    held_back: int | None
    """Number of further prompts, on which the best candidates are timed. Default: 24."""
    k: int | str | Iterable[int | str] | None
    """Values of K to compare: 4, 1..8 or 2,4,6. Default: 1..8,10,12,16."""
    limit: int | None
    """Number of prompts on which acceptance is recorded. Default: 64."""
    offline: bool | None
    """Never contact the Hugging Face Hub. Default: False."""
    on: str | None
    """Where to run: here, processes:N, ray (this machine) or ray:ADDRESS. Default: here."""
    out: str | Path | None
    """Folder for the results. Default: results/...."""
    overwrite: bool | None
    """Move an existing run aside and start over. Default: False."""
    prompts: str | Path | None
    """File of your own prompts, one a line, as text or JSON. Default: none."""
    resume: bool | None
    """Resume an interrupted run. Default: False."""
    sample_seed: int | None
    """Seed that draws the prompts of both from all, each group in proportion. Default: 0."""
    schedule: Schedule | Sequence[Schedule] | None
    """How K is chosen in each round; see sps list schedules. Default: constant, or that of the
    target's own drafter."""
    score: bool | None
    """Run generated programs in a sandbox, for pass@k. Default: if a sandbox is available."""
    shard: str | None
    """Run only slice i of n of the samples, counted from 0. Default: 0/1."""
    system: str | None
    """System message, for prompts in a chat template. Default: none."""
    target_cost: float | None
    """Predict for a target that takes this many times as long. Default: none."""
    threads: int | Literal["auto"] | None
    """CPU threads; auto leaves room for other programs. Default: auto."""
    trace: str | Sequence[str] | None
    """Use this recorded trace, or the traces of a run, instead of generating texts. Default:
    none."""
    verifier: Verifier | Sequence[Verifier] | None
    """Acceptance rule; see sps list verifiers. Default: sps; traversal for sampled trees; match
    for deterministic drafts."""

class VerifyOptions(PairOptions, total=False):
    """Options of `Pair.verify`; None: not given."""

    bias: float | None
    """Smallest bias that the audit must detect. Default: 0.02."""
    draft: str | None
    """Name, folder or Hugging Face id of the draft model. self:int8 is the target quantised.
    Default: that of a bundled pair."""
    drafter: Drafter | None
    """What proposes tokens: NAME[:key=value,...]; see sps list drafters. Default: model, or
    without a draft the target's bundled head or ngram."""
    grammar: str | None
    """Lark grammar that each text follows, in llguidance's dialect. Default: none."""
    json_schema: str | Path | None
    """JSON schema that each text follows: a FILE, or the schema itself. Default: none."""
    k: int | None
    """Tokens drafted per round, 1..64; 0 is auto-regressive sampling (ArS). Default: 4."""
    level: float | None
    """Probability of a false alarm over the whole audit. Default: 0.001."""
    max_tokens: int | None
    """Maximum tokens from speculative sampling; the audit then ends, decided or not. Default:
    200000."""
    prompts: int | None
    """Maximum number of prompts. Default: 40."""
    regex: str | None
    """Regular expression that each text matches in full. Default: none."""
    sample_seed: int | None
    """Seed that draws the prompts from all, each group in proportion. Default: none: the first
    prompts of the data."""
    schedule: Schedule | None
    """How K is chosen in each round; see sps list schedules. Default: constant, or that of the
    target's own drafter."""
    stop: str | Sequence[str] | None
    """Stop before this text; repeatable. Default: none."""
    task: str | Sequence[str] | None
    """Task that supplies the prompts, or a FILE of them; repeatable. Default: humaneval and
    xsum:data=mini."""
    verifier: Verifier | None
    """Acceptance rule; see sps list verifiers. Default: sps; traversal for sampled trees; match
    for deterministic drafts."""
    workers: int | None
    """Worker processes. Default: cores, for small models on a CPU."""
