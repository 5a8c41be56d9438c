"""The registry: one line per command and plug-in with its name, place and summary.

Only strings: nothing is imported until `Entry.load` is called. Other people's packages join through
entry points of the group `spsbench.<kind>` (for instance `spsbench.verifiers`).
"""

import importlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, get_args

Kind = Literal["drafters", "verifiers", "schedules", "engines", "decoders", "tasks", "reporters"]
KINDS: tuple[Kind, ...] = get_args(Kind)

BASES: Mapping[Kind, str] = {
    "drafters": ".loop.types:Drafter",
    "verifiers": ".loop.types:Verifier",
    "schedules": ".loop.types:Schedule",
    "engines": ".loop.types:Engine",
    "decoders": ".loop.decoder:Decoder",
    "tasks": ".settings.task:Task",
}
"""Base class of each kind, which plug-ins subclass; a reporter is a function."""


class Entry(NamedTuple):
    """One plug-in."""

    kind: Kind
    name: str
    path: str  # "module:attribute"; ours begin with a dot, for this package
    summary: str
    guarantee: str = ""  # of a verifier: exact, greedy-exact or lossy; of a schedule: exact with an
    # exact rule, since no slot is left out by the token drawn for it
    loads: bool = True  # of a decoder: False = another engine has the models
    needs: str = ""  # of a drafter
    allows: str = ""  # the shapes of a drafter's drafts, and the exact rules that may follow

    @property
    def where(self) -> str:
        """Return the plug-in's full name."""
        return f"{__package__}{self.path}" if self.path.startswith(".") else self.path

    def load(self) -> Any:
        """Import and return the plug-in."""
        return at(self.path)


def at(path: str) -> Any:
    """Import a module and return `module:attribute`."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module, __package__), attribute)


EXTENSIONS = ".extensions."
WORDS = {
    "chain": "chain: sps, block, match",
    "tree": "tree: recursive, traversal, match",
    "rule": "deterministic: match",
    "last": "a head trained for the target: last hidden state",
    "several": "a head trained for the target: several hidden states",
}
"""Words of the table that stand in braces."""

COMMANDS_TABLE = """
  generate | .cli.generate:generate | Continue PROMPT by speculative sampling, with the target's own distribution.
  bench | .cli.bench:bench | Run TASK with auto-regressive and speculative sampling, and report speed and quality.
  plan | .cli.plan.command:plan | Predict whether speculation pays on this machine, with which drafter and K; time the best.
  check | .extensions.check.command:check | Audit a running server: output distribution, greedy texts, tokens per pass, speed.
  score | .extensions.sandbox.command:score | Run generated programs in a sandbox and report pass@k. Resumes an interrupted scoring.
  report | .cli.report:report | Show the results of runs, computed from their records.
  merge | .cli.report:merge_runs | Merge runs of one configuration, such as shards from several machines.
  list | .cli.listing:list_plug_ins | List drafters, verifiers, schedules, engines, decoders, tasks, report formats and models.
  doctor | .cli.doctor:doctor | Show what this machine and this installation support, and warnings.
  verify | .cli.verify:verify | Verify that the output distribution is the target's. Exits 0 held, 7 bias found, 6 not valid.
  train | .extensions.training.command:commands | Train a drafter for a target, on texts that the target writes.
  lm-eval | .extensions.lm_eval.command:lm_eval | Run lm-evaluation-harness with the model sps; arguments are those of lm_eval.
  models | .cli.listing:models | List the models that have short names, fetch one, or export a drafter to an engine.
"""
TABLE = """
drafters:
  model | .methods.drafters.model:ModelDrafter | draft model (Chen et al. 2023): a smaller language model samples K tokens | a draft model | {chain}
  tli | .methods.drafters.cross_tokenizer:SharedTokensDrafter | token-level intersection (Timor et al. 2025): a draft model with another tokenizer proposes tokens that both have | a draft model of another tokenizer | {chain}
  slem | .methods.drafters.cross_tokenizer:StringDrafter | string-level exact match (Timor et al. 2025): a draft model with another tokenizer, joined by strings | a draft model of another tokenizer | {rule}
  ngram | .methods.drafters.ngram:NgramDrafter | prompt lookup (Saxena 2023): proposes what followed the last n tokens earlier in the text | nothing | {rule}
  tree | .methods.drafters.shaped:Tree | draft tree of fixed widths (SpecInfer): top tokens for match, sampled siblings for recursive, traversal | a draft model | {rule}; sampled {tree}
  topk | .methods.drafters.topk:BestFirst | best-first draft tree (EAGLE-2): the draft model's likeliest paths, for match | a draft model | {rule}
  sequoia | .methods.drafters.shaped:Sequoia | Sequoia: draft tree of the best shape for measured acceptance; siblings as tree | a draft model, acceptance that was measured | {rule}; sampled {tree}
  chains | .methods.drafters.chains:Chains | SpecTr: n independent chains of a draft model, for recursive, spectr | a draft model | chains: recursive, spectr, match
  suffix | .methods.drafters.suffix:SuffixDrafter | suffix automaton over prompt and output: most frequent continuation (SuffixDecoding) | nothing | {rule}
  copy | .methods.drafters.copy:CopyDrafter | aggressive decoding: copies the prompt, or a marked part, while the output agrees | nothing | {rule}
  recycling | .methods.drafters.recycling:RecyclingDrafter | token recycling: the target's earlier candidates after each token | nothing | {rule}
  lookahead | .methods.drafters.lookahead:LookaheadDrafter | lookahead decoding: n-grams from a Jacobi window in the target's own pass | nothing | {rule}
  self | .methods.drafters.self_speculation:Self | self-speculation: the target with fewer layers (self:8-11), quantised (self:int4) or over few rows of its cache (self:window=9) | the target's layers or cache | {chain}
  hybrid | .methods.drafters.hybrid:Hybrid | a deterministic drafter where its match is long enough, else another | a draft model, or what its parts need | {chain}
  grammar | .methods.drafters.hybrid:GrammarDrafter | jump-forward decoding: the tokens that a schema or grammar forces | nothing | {rule}
  none | .methods.drafters.model:NoDrafter | no draft: auto-regressive sampling (ArS) | nothing | any
  eagle | .methods.drafters.heads:Eagle | EAGLE-1, EAGLE-2, HASS: a recurrent head over hidden states (experimental) | {last} | {chain}; {tree}
  peagle | .methods.drafters.heads:PEagle | P-EAGLE: a head that drafts all tokens in one pass (experimental) | {several} | {chain}; {tree}
  eagle3 | .methods.drafters.heads:Eagle3 | EAGLE-3, 3.1: a head over several layers; served by vLLM 0.32 with equal rounds | {several} | {chain}; {tree}
  medusa | .methods.drafters.heads:ParallelHead | Medusa: parallel heads; served by vLLM 0.32 with equal rounds | {last} | {chain}; {tree}
  blockwise | .methods.drafters.heads:ParallelHead | blockwise parallel decoding (Stern et al. 2018): parallel heads (experimental) | {last} | {chain}; {tree}
  mlp | .methods.drafters.heads:Mlp | MLP speculator: a head of one MLP a depth (experimental) | {last} | {chain}; {tree}
  falcon | .methods.drafters.heads:Falcon | Falcon: a semi-autoregressive head, a block of tokens a pass (experimental) | {last} | {chain}; {tree}
  dflash | .methods.drafters.heads:DFlash | DFlash: a block-diffusion head (experimental) | {several} | {rule}; sampled {chain}; {tree}
  dspark | .methods.drafters.heads:ParallelHead | DSpark: parallel heads (experimental) | {several} | {chain}; {tree}
  mtp | .methods.drafters.heads:Mtp | multi-token prediction: the target's own MTP layer (experimental) | {last} | {chain}; {tree}
verifiers:
  sps | .methods.verifiers.sps:Sps | modified rejection sampling (Chen et al. 2023) | exact
  rejection | .methods.verifiers.chain_rules:Rejection | rejection sampling without iteration (Leviathan et al. 2023, A.2); accepts less than sps | exact
  match | .methods.verifiers.match:Match | one-sample match: accepts while the target samples the same token | exact
  block | .methods.verifiers.block:Block | block verification (Sun et al. 2024): accepts at least as many tokens as sps | exact
  traversal | .methods.verifiers.traversal:Traversal | traversal verification: a tree from its leaves up; block verification on a chain | exact
  recursive | .methods.verifiers.tree_rejection:Recursive | recursive rejection (SpecInfer, EAGLE): a tree from its root down, sibling by sibling | exact
  spectr | .methods.verifiers.spectr:SpecTr | k-sequential selection (SpecTr): k independent siblings | exact
  synthetic | .methods.verifiers.chain_rules:Synthetic | accepts a given share of tokens: timing only, output meaningless | lossy
  lenient | .methods.verifiers.chain_rules:Lenient | lenient acceptance (Leviathan et al. 2023, A.5): min(1, q / (l p)), at most q / l of each token | lossy
  ensemble | .methods.verifiers.chain_rules:Ensemble | samples from the mixture w p + (1 - w) q in drafted slots | lossy
  typical | .methods.verifiers.set_acceptance:Typical | typical acceptance (Medusa): accepts what the target finds typical | lossy
  topk | .methods.verifiers.set_acceptance:TopK | top-n acceptance (Stern et al. 2018): accepts the target's n likeliest tokens | lossy
schedules:
  constant | .methods.schedules.by_history:Constant | the same K in each round
  heuristic | .methods.schedules.by_history:Heuristic | transformers' heuristic: K + 2 after full acceptance, K - 1 otherwise
  ema | .methods.schedules.by_history:Ema | K from an exponential moving average of acceptance
  goodput | .methods.schedules.by_history:Goodput | K with the most tokens a second, from costs by batch and context and the running acceptance
  payoff | .methods.schedules.by_payoff:Payoff | goodput for a hybrid: asks the draft model only while its drafts pay
  utility | .methods.schedules.by_utility:Utility | Cascade: K with the most tokens for its cost, by the clock in test and set phases
  confidence | .methods.schedules.by_distribution:Confidence | drafts while the distribution's maximum is above a threshold; a host read a token
  entropy | .methods.schedules.by_distribution:Entropy | AdaEDL: drafts while the entropy bounds acceptance high enough; a host read a token
  disco | .methods.schedules.by_distribution:Disco | DISCO: drafts while a fitted classifier expects acceptance; a host read a token
engines:
  fast | .extensions.cpu.fast:Fast | packed weights, compiled passes on a CPU
  eager | .engines.eager:Eager | transformers as it is; over several ranks under torchrun (experimental)
  static | .engines.static:Static | passes recorded as CUDA graphs (experimental)
decoders:
  native | .methods.decoders.native:NativeDecoder | this package's loop
  hf | .methods.decoders.hf:HfDecoder | transformers' own generate
  openai | .methods.decoders.openai:OpenAiDecoder | a server of OpenAI's schema: openai:url=...; vLLM, llama-server and others | external
  sglang | .methods.decoders.openai:SglangDecoder | an SGLang server: sglang:url=... | external
  llamacpp | .methods.decoders.engine_process:LlamaCppDecoder | llama-cpp-python over a GGUF file: llamacpp:path=... | external
  openvino | .methods.decoders.engine_process:OpenVinoDecoder | OpenVINO GenAI over an exported model or a GGUF file: openvino:path=... | external
tasks:
  xsum | .tasks.xsum:XSum | summaries of news articles, ROUGE-2
  humaneval | .tasks.humaneval:HumanEval | 164 Python functions
  gsm8k | .tasks.gsm8k:Gsm8k | grade-school problems in words, exact match
  jsonl | .tasks.jsonl:Jsonl | prompts of your own, from a file
  mtbench | .tasks.questions:MtBench | MT-Bench: 8 categories, two turns
  specbench | .tasks.questions:SpecBench | Spec-Bench's question.jsonl, 6 tasks
  speedbench | .tasks.questions:SpeedBench | SPEED-Bench's prepared files
  latency | .tasks.latency:Latency | random tokens: timing only
reporters:
  table | .reports.table:table | for a terminal
  md | .reports.text:markdown | GitHub's Markdown
  csv | .reports.text:csv | comma-separated values
  json | .reports.text:json | every figure with its interval
  latex | .reports.text:latex | tabular with booktabs rules
  html | .reports.html:html | one page: answers, plots, texts by token
  parquet | .reports.parquet:parquet | a row a generation and a round
"""
"""Name, place and summary by kind.

Of a drafter also what it needs and the exact rules that may follow, of a verifier its guarantee; a
decoder is `external` whose engine has the models.
"""


def _rows(table: str) -> Iterator[list[str]]:
    for line in table.strip().splitlines():
        yield [column.strip() for column in line.split("|")]


def _built_in() -> Iterator[Entry]:
    """Yield the entry of each row of the built-in table, in its order."""
    kind: Any = None
    for name, *columns in _rows(TABLE):
        if not columns:
            kind = name.removesuffix(":")
            continue
        path, summary, *more = columns
        entry = Entry(kind, name, path, summary)
        if kind == "drafters":
            needs, allows = (column.format_map(WORDS) for column in more)
            entry = entry._replace(needs=needs, allows=allows)
        elif kind in ("verifiers", "schedules"):
            entry = entry._replace(guarantee="".join(more) or "exact")
        yield entry._replace(loads=more != ["external"])


COMMANDS: Mapping[str, tuple[str, str]] = {
    n: (path, text) for n, path, text in _rows(COMMANDS_TABLE)
}
"""Commands of `sps`: where each is, and the first line of its help."""
BUILT_IN = tuple(_built_in())

DOCTOR: Mapping[str, str] = {"sandbox": ".extensions.sandbox.choice:examine"}
"""What extensions add to `sps doctor`: key in its JSON, and a function without arguments.

The function returns the value under the key, and the rows of the table as pairs of name and text.
"""

SERVED = ".extensions.vllm.rules:serving"
"""What vLLM drafts by: (spec of a drafter, K, target) -> its options by flags, and its command."""
EXPECT = ".extensions.conformance.expect:deliver"  # of `sps check --expect`
VECTORS = ".extensions.conformance.vectors:write_vectors"  # of `sps verify rules --vectors`


def commands() -> Iterator[tuple[str, str]]:
    """Yield the name and summary of each of our commands that is installed."""
    for name, (path, summary) in COMMANDS.items():
        if is_installed(path):
            yield name, summary


def is_installed(path: str) -> bool:
    """Return whether what stands at `path` is there: an extension may have been taken away."""
    if not path.startswith(EXTENSIONS):
        return True
    room = path.partition(":")[0].rpartition(".")[0]
    try:
        return find_spec(room, __package__) is not None
    except ModuleNotFoundError:  # without any extension
        return False


def built_in(kind: Kind) -> str:
    """Return the names of our own plug-ins of a kind, for help and messages: `xsum, humaneval`."""
    return ", ".join(e.name for e in BUILT_IN if e.kind == kind and is_installed(e.path))


def entries(kind: Kind) -> Iterator[Entry]:
    """Yield the installed plug-ins of one kind: built-in ones first, which win a name clash."""
    ours = [entry for entry in BUILT_IN if entry.kind == kind]
    yield from (entry for entry in ours if is_installed(entry.path))
    from importlib.metadata import entry_points  # as long to import as all of this package's help

    taken = {entry.name for entry in ours}
    for point in entry_points(group=f"spsbench.{kind}"):
        if point.name not in taken:
            package = point.dist.name if point.dist else "an installed package"
            yield Entry(kind, point.name, point.value, f"from {package}")


def find(kind: Kind, name: str) -> Entry:
    """Return the plug-in called `name`.

    Raises:
        KeyError: no such name; the message lists those there are.
    """
    for entry in entries(kind):  # ours come first, and for them no package is searched
        if entry.name == name:
            return entry
    names = ", ".join(entry.name for entry in entries(kind))
    word = kind.removesuffix("s")
    absent = [entry.path for entry in BUILT_IN if entry.kind == kind and entry.name == name]
    if absent:
        room = absent[0].removeprefix(EXTENSIONS).partition(".")[0]
        raise KeyError(
            f"{word} {name!r} is of the extension {room!r}, which is not installed: expected one "
            f"of {names}"
        )
    raise KeyError(f"no {word} {name!r}: expected one of {names}")
