"""Command lines in the docs: each parses, and those that need no hub and no file run."""

import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import pytest
import typer

from spsbench.cli.main import app
from spsbench.registry import COMMANDS, entries, is_installed
from spsbench.settings.models import fetched_folder
from spsbench.spec import Spec

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.S | re.M)
INLINE = re.compile(r"`(sps [^`]+)`")
ENDS = {"|", "||", "&&", ">", ";", "2>"}
OF_PLUGINS = {"repeat", "cautious", "streak"}  # what docs/examples/plugins installs
ABSENT = {name for name, (path, _) in COMMANDS.items() if not is_installed(path)}
KINDS = {name: f"{name}s" for name in ("drafter", "verifier", "schedule", "engine", "decoder")}


def commands(lines):
    """Arguments of each `sps` command in lines of shell, without placeholders such as `...`.

    Commands of an extension that was taken away are left out.
    """
    for line in lines:
        for part in re.split(r"\s&&\s|\s\|\s", line):
            words = shlex.split(part.strip(), comments=True)
            if words[:1] == ["sps"] and ABSENT.isdisjoint(words[1:2]):
                end = next((i for i, word in enumerate(words) if word in ENDS), len(words))
                given = words[1:end]
                prompt = given[:1] == ["generate"]
                yield [w for w in given if not w.endswith("...") or (prompt and w == "...")]


def blocks(page):
    text = "\n".join(BLOCK.findall(page.read_text()))
    return list(commands(iter(re.sub(r"\\\n", "", text).splitlines())))


def sentences(page):
    found = INLINE.findall(BLOCK.sub("", page.read_text()))
    return list(commands(re.sub(r"\s+", " ", each) for each in found))


@cache
def root():
    return typer.main.get_command(app)


@cache
def names_of(kind):
    return frozenset(entry.name for entry in entries(kind))


def parsed(given):
    """Parameters of a command line by the command's own parser; the command does not run."""
    command = root()
    context, rest = None, given
    while hasattr(command, "get_command") and rest:
        context = command.make_context("sps", [rest[0]], parent=context)
        _, command, _ = command.resolve_command(context, rest)
        rest = rest[1:]
    return dict(command.make_context("sps", list(rest), parent=context).params)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_parse(page):
    for given in [*blocks(page), *sentences(page)]:
        try:
            params = parsed(given)
        except Exception as error:
            if re.search("Missing|requires an argument|^0?$|^Usage: ", str(error)):  # only named
                continue
            raise AssertionError(f"sps {shlex.join(given)}: {error}") from error
        of_models = given[:1] == ["models"]  # whose verifier is a model, as other engines say
        for option, kind in () if of_models else KINDS.items():
            values = params.get(option) or ()
            for value in [values] if isinstance(values, str) else values:
                name = Spec.parse(value).name
                known = name in names_of(kind) | OF_PLUGINS or ".py:" in value or name.isupper()
                assert known, f"sps {shlex.join(given)}: {name}"


ELSEWHERE = {  # words of a command line -> why it cannot run here
    r"meta-llama/|\bgpt2\b|table1-gpt2|speedbench": "files of the hub",
    r"^check |openai:|sglang:": "a server: tests/oracles/stub.py is one",
    r"\bray\b": "Ray",
    r"llamacpp:|openvino:": "an engine of another package",
    r"\.py:|repeat|sums:|cautious": "a plug-in of the page: test_by_path.py, test_plugins.py",
    r"train .*--(from|resume|on-policy|pruned)": "an earlier training: test_train.py",
    r"score samples\.jsonl": "samples of a model: test_score.py",
    r"plan --log": "a log of a server: tests/planning/logs",
    r"person\.json|list\.lark|\./model\.gguf": "files of the reader",
    r"--by group": "prompts with groups",
    r"cuda": "a GPU",
    r"^(plan|verify pair)$": "an hour of measuring: the lines beside it run, smaller",
}
HEADS = ("nano-eagle3", "nano-medusa", "nano-mlp")
NAMED = {
    **dict.fromkeys(("T", "./target", "./model"), "nano"),
    **dict.fromkeys(("D", "A", "B"), "nano-draft"),
    **dict.fromkeys(("results/RUN", "RUN", "run"), "run"),
}
SMALLER = {
    "generate": ("-n", "4"),
    "bench": ("--limit", "1", "-n", "4", "--threads", "1", "--offline"),
    "plan": (
        *("--limit", "2", "--held-back", "1", "--confirm", "0", "-n", "6", "--k", "1,2"),
        *("--cost-seconds", "0.5", "--offline"),
    ),
    "verify pair": ("--prompts", "2", "--max-tokens", "300", "--bias", "0.9", "-n", "8"),
    "verify run": ("--bias", "0.9"),
    "train": (
        *("--count", "12", "--tokens", "12", "--batch-tokens", "64", "--micro-tokens", "64"),
        *("--steps", "2", "--evaluations", "1", "--cost-seconds", "0"),
    ),
    "score": ("--allow-partial",),
}


def reason(given):
    """Why a command line of the docs cannot run here; None where it can."""
    line = " ".join(given)
    return next((why for words, why in ELSEWHERE.items() if re.search(words, line)), None)


def smaller(given, target):
    """The command lines, with the bundled models and few tokens, that stand for one of the docs."""
    kind = next((k for k in SMALLER if " ".join(given).startswith(k)), "")
    words = [NAMED.get(word, word) for word in given]
    if kind == "train":
        words = [target if word == "./my-model" else word for word in words]
    words = ["nano" if word == "./my-model" else word for word in words]
    if words[:2] in (["bench", "xsum"], ["plan", "xsum"]):
        words[1:2] = ["xsum:data=mini"] if "--data" not in words else ["xsum"]
    words += SMALLER.get(kind, ())
    if "--samples" in words:
        words += ["--samples", "1"]
    if "--record" in words:
        words += ["-n", "100", "--limit", "6"]  # as many positions as a fit wants
    heads = {"HEAD", "./head", "head/result"} & set(words)
    if not heads:
        return [words]
    fitting = HEADS[:1] if re.search("eagle3|export", " ".join(given)) else HEADS
    return [[head if word in heads else word for word in words] for head in fitting]


RUN = {  # tutorials run as they stand: tests/test_docs_tutorials.py
    page: [line for line in blocks(page) if reason(line) is None]
    for page in PAGES
    if page.parent.name != "tutorials"
}


def test_each_command_of_the_docs_runs_or_has_a_reason():
    lines = [line for page in RUN for line in blocks(page)]
    unused = [w for w in ELSEWHERE if not any(re.search(w, " ".join(line)) for line in lines)]
    assert not unused or ABSENT
    assert sum(map(len, RUN.values())) > len(lines) / 2


@pytest.fixture
def workplace(sps, tmp_path, monkeypatch):
    """A folder with what the lines of the docs name: a run, a trace, costs, a log, prompts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text(
        "".join(f'{{"id": "{i}", "prompt": "def f{i}(x):"}}\n' for i in range(4))
    )

    def made_run():
        flags = ("--limit", "1", "-n", "4", "--k", "2", "--temperature", "0", "--threads", "1")
        ran = sps("bench", "humaneval", *flags, "--record", "trace", "--offline", "--out", "run")
        assert ran.code == 0, ran.err

    return made_run


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page, lines in RUN.items() if lines],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_commands_of_a_page_run(page, sps, workplace, target, tmp_path):
    """In their order, with the bundled models and few tokens; a command may use what one made."""
    if any(word in NAMED for line in RUN[page] for word in line if NAMED.get(word) == "run"):
        workplace()
    for given in RUN[page]:
        if "smollm2" in given and not fetched_folder("smollm2").is_dir():
            continue
        for costs in tmp_path.glob("results/*/costs.json"):
            shutil.copy(costs, tmp_path)  # what a plan has measured
        for line in smaller(given, target):
            ran = sps(*line, stdin=b"")
            assert ran.code == 0, f"sps {shlex.join(line)}: {ran.err}"
