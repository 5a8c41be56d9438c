"""The registry: one line per plug-in with its kind, name, place and summary.

Only strings: nothing is imported until `Entry.load` is called. Other people's packages join through
entry points of the group `spsbench.<kind>` (for instance `spsbench.verifiers`).
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, get_args

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
"""Base class of each kind, which plug-ins best subclass; a reporter is a function."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One plug-in."""

    kind: Kind
    name: str
    path: str  # "module:attribute"; ours begin with a dot, for this package
    summary: str
    guarantee: str = ""  # of a verifier: exact, greedy-exact or lossy; of a schedule: exact with an
    # exact rule, since no slot is left out by the token drawn for it
    loads: bool = True  # of a decoder: False = another engine has the models

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
COMMANDS: Mapping[str, tuple[str, str]] = {
    "generate": (
        ".cli.generate:generate",
        "Continue PROMPT by speculative sampling, with the target's own distribution.",
    ),
    "bench": (
        ".cli.bench:bench",
        "Run TASK with auto-regressive and speculative sampling, and report speed and quality.",
    ),
    "plan": (
        ".cli.plan.command:plan",
        "Predict whether speculation pays on this machine, with which drafter and K; time the "
        "best.",
    ),
    "check": (
        ".extensions.check.command:check",
        "Audit a running server: output distribution, greedy texts, tokens per pass, speed.",
    ),
    "score": (
        ".extensions.sandbox.command:score",
        "Run generated programs in a sandbox and report pass@k. Resumes an interrupted scoring.",
    ),
    "report": (
        ".cli.report:report",
        "Show the results of runs, computed from their records.",
    ),
    "merge": (
        ".cli.report:merge_runs",
        "Merge runs of one configuration, such as shards from several machines.",
    ),
    "list": (
        ".cli.listing:list_plug_ins",
        "List drafters, verifiers, schedules, engines, decoders, tasks, report formats and models.",
    ),
    "doctor": (
        ".cli.doctor:doctor",
        "Show what this machine and this installation support, and warnings.",
    ),
    "verify": (
        ".cli.verify.command:verify",
        "Verify that the output distribution is the target's. Exits 0 held, 7 bias found, 6 not "
        "valid.",
    ),
    "train": (
        ".extensions.training.command:train",
        "Train a drafter for a target, on texts that the target writes.",
    ),
    "lm-eval": (
        ".extensions.lm_eval.command:lm_eval",
        "Run lm-evaluation-harness with the model sps; arguments are those of lm_eval.",
    ),
    "models": (
        ".cli.listing:models",
        "List the models that have short names, fetch one, or export a drafter to an engine.",
    ),
}
"""Commands of `sps`: where each is, and the first line of its help."""

DOCTOR: Mapping[str, str] = {"sandbox": ".extensions.sandbox.choice:examine"}
"""What extensions add to `sps doctor`: key in its JSON, and a function without arguments.

The function returns the value under the key, and the rows of the table as pairs of name and text.
"""

BUILT_IN = (
    Entry("drafters", "model", ".methods.drafters.model:ModelDrafter", "a smaller language model"),
    Entry(
        "drafters",
        "tli",
        ".methods.drafters.cross_tokenizer:SharedTokensDrafter",
        "a model with another tokenizer: the tokens that both have",
    ),
    Entry(
        "drafters",
        "slem",
        ".methods.drafters.cross_tokenizer:StringDrafter",
        "a model with another tokenizer: by strings",
    ),
    Entry("drafters", "ngram", ".methods.drafters.ngram:NgramDrafter", "prompt lookup, no model"),
    Entry(
        "drafters",
        "tree",
        ".methods.drafters.shaped:TreeDrafter",
        "a draft model's tree of fixed widths: by rule for match, drawn for recursive, traversal",
    ),
    Entry(
        "drafters",
        "topk",
        ".methods.drafters.topk:TopkDrafter",
        "a draft model's tree, best first: for match",
    ),
    Entry(
        "drafters",
        "sequoia",
        ".methods.drafters.sequoia:SequoiaDrafter",
        "a draft model's tree of the best shape for measured acceptance: as tree",
    ),
    Entry(
        "drafters",
        "chains",
        ".methods.drafters.chains:ChainsDrafter",
        "a draft model's n independent chains: for recursive, spectr",
    ),
    Entry(
        "drafters",
        "suffix",
        ".methods.drafters.suffix:SuffixDrafter",
        "what followed before, by how often",
    ),
    Entry(
        "drafters",
        "copy",
        ".methods.drafters.copy:CopyDrafter",
        "the prompt, or a marked part, comes out again",
    ),
    Entry(
        "drafters",
        "recycling",
        ".methods.drafters.recycling:RecyclingDrafter",
        "the target's own former candidates",
    ),
    Entry(
        "drafters",
        "lookahead",
        ".methods.drafters.lookahead:LookaheadDrafter",
        "n-grams from a Jacobi window in the target's own pass",
    ),
    Entry(
        "drafters",
        "self",
        ".methods.drafters.self_speculation:SelfDrafter",
        "the target less layers (self:8-11), quantised (self:int4), over few rows (self:window=9)",
    ),
    Entry(
        "drafters",
        "hybrid",
        ".methods.drafters.hybrid:HybridDrafter",
        "one by rule where it finds much, else another",
    ),
    Entry(
        "drafters",
        "grammar",
        ".methods.drafters.grammar:GrammarDrafter",
        "tokens that a schema or grammar forces",
    ),
    Entry("drafters", "none", ".methods.drafters.model:NoDrafter", "drafts nothing: ArS"),
    *(
        Entry("drafters", name, f".methods.drafters.heads:{drafter}", f"a head: {summary}")
        for name, drafter, summary in (
            ("eagle", "RecurrentHead", "EAGLE-1, EAGLE-2, HASS (experimental)"),
            ("peagle", "PEagle", "P-EAGLE, all in one pass (experimental)"),
            ("eagle3", "Eagle3", "EAGLE-3, 3.1; served by vLLM 0.32 with equal rounds"),
            ("medusa", "ParallelHead", "Medusa; served by vLLM 0.32 with equal rounds"),
            (
                "blockwise",
                "ParallelHead",
                "blockwise parallel decoding (Stern et al.) (experimental)",
            ),
            ("mlp", "ParallelHead", "MLP speculator (experimental)"),
            ("falcon", "Falcon", "Falcon, a block of tokens a pass (experimental)"),
            ("dflash", "DFlash", "DFlash, by rule (experimental)"),
            ("dspark", "ParallelHead", "DSpark (experimental)"),
            ("mtp", "RecurrentHead", "the target's own MTP layer (experimental)"),
        )
    ),
    Entry("verifiers", "sps", ".methods.verifiers.sps:Sps", "modified rejection sampling", "exact"),
    Entry(
        "verifiers",
        "rejection",
        ".methods.verifiers.rejection:Rejection",
        "rejection sampling without iteration; keeps less than sps, to compare with",
        "exact",
    ),
    Entry("verifiers", "match", ".methods.verifiers.match:Match", "one-sample match", "exact"),
    Entry("verifiers", "block", ".methods.verifiers.block:Block", "block verification", "exact"),
    Entry(
        "verifiers",
        "traversal",
        ".methods.verifiers.traversal:Traversal",
        "a tree from its leaves up; block on a chain",
        "exact",
    ),
    Entry(
        "verifiers",
        "recursive",
        ".methods.verifiers.recursive:Recursive",
        "a tree from its root down, sibling by sibling",
        "exact",
    ),
    Entry(
        "verifiers",
        "spectr",
        ".methods.verifiers.spectr:SpecTr",
        "k independent siblings, each on its own: k-seq",
        "exact",
    ),
    Entry(
        "verifiers",
        "synthetic",
        ".methods.verifiers.synthetic:Synthetic",
        "keeps a given share of tokens: timing only, output meaningless",
        "lossy",
    ),
    Entry(
        "verifiers",
        "lenient",
        ".methods.verifiers.lenient:Lenient",
        "keeps x with min(1, q / (l p)): at most q / l of each token",
        "lossy",
    ),
    Entry(
        "verifiers",
        "ensemble",
        ".methods.verifiers.ensemble:Ensemble",
        "the law w p + (1 - w) q in drafted slots",
        "lossy",
    ),
    Entry(
        "verifiers",
        "typical",
        ".methods.verifiers.set_acceptance:Typical",
        "keeps what the target finds typical (Medusa)",
        "lossy",
    ),
    Entry(
        "verifiers",
        "topk",
        ".methods.verifiers.set_acceptance:TopK",
        "keeps the target's n likeliest (Stern et al.)",
        "lossy",
    ),
    Entry(
        "schedules",
        "constant",
        ".methods.schedules.by_history:Constant",
        "the same K always",
        "exact",
    ),
    Entry(
        "schedules",
        "heuristic",
        ".methods.schedules.by_history:Heuristic",
        "two more after a draft kept whole, one less after any other",
        "exact",
    ),
    Entry(
        "schedules",
        "ema",
        ".methods.schedules.by_history:Ema",
        "K from a running acceptance",
        "exact",
    ),
    Entry(
        "schedules",
        "goodput",
        ".methods.schedules.by_history:Goodput",
        "K of most tokens a second, from costs by batch and context and a running acceptance",
        "exact",
    ),
    Entry(
        "schedules",
        "payoff",
        ".methods.schedules.by_payoff:Payoff",
        "as goodput, and a hybrid's model is left out while its drafts do not pay",
        "exact",
    ),
    Entry(
        "schedules",
        "utility",
        ".methods.schedules.by_utility:Utility",
        "K of most tokens for its cost, tried by the clock in test and set phases (Cascade)",
        "exact",
    ),
    Entry(
        "schedules",
        "confidence",
        ".methods.schedules.by_distribution:Confidence",
        "until a law is too flat; a host read a token",
        "exact",
    ),
    Entry(
        "schedules",
        "entropy",
        ".methods.schedules.by_distribution:Entropy",
        "until the entropy bounds acceptance too low (AdaEDL); a host read a token",
        "exact",
    ),
    Entry(
        "schedules",
        "disco",
        ".methods.schedules.by_distribution:Disco",
        "until a fitted classifier expects a rejection; a host read a token",
        "exact",
    ),
    Entry(
        "engines", "fast", ".extensions.cpu.fast:Fast", "packed weights, compiled passes on a CPU"
    ),
    Entry(
        "engines",
        "eager",
        ".engines.eager:Eager",
        "as transformers runs it; over several ranks with `parallel` (experimental)",
    ),
    Entry(
        "engines",
        "static",
        ".engines.static:Static",
        "StaticCache and torch.compile, for CUDA (experimental)",
    ),
    Entry("decoders", "native", ".methods.decoders.native:NativeDecoder", "this package's loop"),
    Entry("decoders", "hf", ".methods.decoders.hf:HfDecoder", "transformers' own generate"),
    Entry(
        "decoders",
        "openai",
        ".methods.decoders.openai:OpenAiDecoder",
        "a server of OpenAI's schema: openai:url=...; vLLM, llama-server and others",
        loads=False,
    ),
    Entry(
        "decoders",
        "sglang",
        ".methods.decoders.sglang:SglangDecoder",
        "an SGLang server: sglang:url=...",
        loads=False,
    ),
    Entry(
        "decoders",
        "llamacpp",
        ".methods.decoders.llamacpp:LlamaCppDecoder",
        "llama-cpp-python over a GGUF file: llamacpp:path=...",
        loads=False,
    ),
    Entry(
        "decoders",
        "openvino",
        ".methods.decoders.openvino:OpenVinoDecoder",
        "OpenVINO GenAI over an exported model or a GGUF file: openvino:path=...",
        loads=False,
    ),
    Entry("tasks", "xsum", ".tasks.xsum:XSum", "summaries of news articles, ROUGE-2"),
    Entry("tasks", "humaneval", ".tasks.humaneval:HumanEval", "164 Python functions"),
    Entry("tasks", "gsm8k", ".tasks.gsm8k:Gsm8k", "grade-school problems in words, exact match"),
    Entry("tasks", "jsonl", ".tasks.jsonl:Jsonl", "prompts of your own, from a file"),
    Entry("tasks", "mtbench", ".tasks.questions:MtBench", "MT-Bench: 8 categories, two turns"),
    Entry(
        "tasks", "specbench", ".tasks.questions:SpecBench", "Spec-Bench's question.jsonl, 6 tasks"
    ),
    Entry("tasks", "speedbench", ".tasks.questions:SpeedBench", "SPEED-Bench's prepared files"),
    Entry("tasks", "latency", ".tasks.latency:Latency", "random tokens: timing only"),
    Entry("reporters", "table", ".reports.table:table", "for a terminal"),
    Entry("reporters", "md", ".reports.text:markdown", "GitHub's Markdown"),
    Entry("reporters", "csv", ".reports.text:csv", "comma-separated values"),
    Entry("reporters", "json", ".reports.text:json", "every figure with its interval"),
    Entry("reporters", "latex", ".reports.text:latex", "tabular with booktabs rules"),
    Entry("reporters", "html", ".reports.html:html", "one page: answers, plots, texts by token"),
    Entry("reporters", "parquet", ".reports.parquet:parquet", "a row a generation and a round"),
)

CHAIN = "chain: sps, block, match"
TREE = "tree: recursive, traversal, match"
RULE = "by rule: match"
LAST = "a head trained for the target: last hidden state"
SEVERAL = "a head trained for the target: several hidden states"

NEEDS: Mapping[str, tuple[str, str]] = {
    "model": ("a draft model", CHAIN),
    "tli": ("a draft model of another tokenizer", CHAIN),
    "slem": ("a draft model of another tokenizer", RULE),
    "ngram": ("nothing", RULE),
    "tree": ("a draft model", f"{RULE}; drawn {TREE}"),
    "topk": ("a draft model", RULE),
    "sequoia": ("a draft model, acceptance that was measured", f"{RULE}; drawn {TREE}"),
    "chains": ("a draft model", "chains: recursive, spectr, match"),
    "suffix": ("nothing", RULE),
    "copy": ("nothing", RULE),
    "recycling": ("nothing", RULE),
    "lookahead": ("nothing", RULE),
    "self": ("the target's layers or cache", CHAIN),
    "hybrid": ("a draft model, or what its parts need", CHAIN),
    "grammar": ("nothing", RULE),
    "none": ("nothing", "any"),
    "eagle": (LAST, f"{CHAIN}; {TREE}"),
    "eagle3": (SEVERAL, f"{CHAIN}; {TREE}"),
    "medusa": (LAST, f"{CHAIN}; {TREE}"),
    "blockwise": (LAST, f"{CHAIN}; {TREE}"),
    "mlp": (LAST, f"{CHAIN}; {TREE}"),
    "falcon": (LAST, f"{CHAIN}; {TREE}"),
    "dflash": (SEVERAL, f"{RULE}; sampled {CHAIN}; {TREE}"),
    "dspark": (SEVERAL, f"{CHAIN}; {TREE}"),
    "peagle": (SEVERAL, f"{CHAIN}; {TREE}"),
    "mtp": (LAST, f"{CHAIN}; {TREE}"),
}
"""Drafter -> what it needs, the shapes of its drafts, and the exact rules that may follow."""


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


def is_there(kind: Kind, name: str) -> bool:
    """Return whether one of our plug-ins is installed."""
    return any(e.kind == kind and e.name == name and is_installed(e.path) for e in BUILT_IN)


def command(name: str) -> Any:
    """Import the command `name`: a function, or a group of commands.

    Raises:
        KeyError: there is none of that name.
        ModuleNotFoundError: it belongs to an extension that was taken away.
    """
    return at(COMMANDS[name][0])


def built_in(kind: Kind) -> str:
    """Return the names of our own plug-ins of a kind, for help and messages: `xsum, humaneval`."""
    ours = (entry for entry in BUILT_IN if entry.kind == kind and is_installed(entry.path))
    return ", ".join(entry.name for entry in ours)


def entries(kind: Kind) -> Iterator[Entry]:
    """Yield the installed plug-ins of one kind: built-in ones first, which win a name clash."""
    ours = [entry for entry in BUILT_IN if entry.kind == kind]
    yield from (entry for entry in ours if is_installed(entry.path))
    taken = {entry.name for entry in ours}
    for point in foreign(kind):
        if point.name not in taken:
            yield Entry(kind, point.name, point.value, f"from {package_of(point)}")


def foreign(kind: str) -> Iterator[Any]:
    """Yield other packages' entry points of the group `spsbench.<kind>`."""
    from importlib.metadata import entry_points  # as long to import as all of this package's help

    yield from entry_points(group=f"spsbench.{kind}")


def package_of(point: Any) -> str:
    """Return the name of the package that an entry point belongs to."""
    return point.dist.name if point.dist else "an installed package"


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
