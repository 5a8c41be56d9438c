"""Output of `sps generate`: text as it comes, with the origin of every token and figures below.

Or JSON, a page, or a conversation.
"""

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

from spsbench.cli.doctor import describe_environment
from spsbench.cli.terminal import (
    BOLD,
    DIM,
    RESET,
    align_columns,
    is_terminal,
    safe_text,
    say,
    wants_colour,
    write,
)
from spsbench.errors import DataError
from spsbench.loop.text import Origin, Piece
from spsbench.messages import ignore
from spsbench.models.prompts import ids_of
from spsbench.pair.pair import Pair
from spsbench.pair.text import Comparison, Text, make_text
from spsbench.parallel.process_group import on_rank_0
from spsbench.reports.html import trace_page
from spsbench.reports.page.token_origins import trace
from spsbench.settings.labels import method, setting
from spsbench.settings.records import SCHEMA

NA = "n/a"
WARM_UP = 3.0  # times a usual round that a first one takes where it is said
SGR = {Origin.ACCEPTED: "\x1b[32m", Origin.RECOVERED: "\x1b[35m", Origin.BONUS: "\x1b[36m"}
MARKS = {Origin.RECOVERED: ("[~", "~]"), Origin.BONUS: ("[+", "+]")}
NAMES = {Origin.ACCEPTED: "green", Origin.RECOVERED: "magenta", Origin.BONUS: "cyan"}
MEANINGS = {
    Origin.ACCEPTED: "drafted and accepted",
    Origin.RECOVERED: "recovered after a rejection",
    Origin.BONUS: "bonus after full acceptance",
}


class Paint(StrEnum):
    """Style in which the origin of a token is shown."""

    NONE = "none"  # text alone, for pipes and files
    MARKS = "marks"
    COLOUR = "colour"


def choose_paint(color: str) -> Paint:
    """Return COLOUR for always, or auto on a colour terminal; MARKS on other terminals; or NONE."""
    if color == "always":
        return Paint.COLOUR
    if not is_terminal(sys.stdout):
        return Paint.NONE
    return Paint.COLOUR if color == "auto" and wants_colour() else Paint.MARKS


def paint_piece(piece: Piece, how: Paint) -> str:
    """Return the piece's text, escaped, in its origin's colour (ended with it) or marks, if any."""
    text = safe_text(piece.text)
    if how is Paint.COLOUR and piece.origin in SGR:
        return f"{SGR[piece.origin]}{text}{RESET}"
    if how is Paint.MARKS and piece.origin in MARKS:
        before, after = MARKS[piece.origin]
        return f"{before}{text}{after}"
    return text


class Screen:
    """Unbuffered writer of pieces to stdout; `end` leaves the cursor at a line start."""

    def __init__(self, how: Paint) -> None:
        self._how = how
        self._mid_line = False

    def legend(self) -> str | None:
        """Return a line that explains colours or marks; None if there are none."""
        if self._how is Paint.NONE:
            return None
        if self._how is Paint.COLOUR:
            explanations = [f"{NAMES[origin]} {meaning}" for origin, meaning in MEANINGS.items()]
        else:
            explanations = [
                paint_piece(Piece(MEANINGS[origin], origin), self._how) for origin in MEANINGS
            ]
        return ", ".join([*explanations, "the rest sampled by the target alone"])

    def show(self, pieces: Iterable[Piece]) -> None:
        """Write the pieces that have text to stdout and flush; without any, write nothing."""
        pieces = [piece for piece in pieces if piece.text]
        if pieces:
            # Before the text: an interrupt may come right after it.
            self._mid_line = self._how is Paint.MARKS or not pieces[-1].text.endswith("\n")
            write("".join(paint_piece(piece, self._how) for piece in pieces))

    def end(self) -> None:
        """End the last line, unless it has ended."""
        if self._mid_line:
            self._mid_line = False
            write("\n")


def show_stats(texts: Mapping[str, Text]) -> None:
    """Print figures on stderr, a column per method, and a line on each slow first round."""
    figures = figure_rows(list(texts.values()))
    for line in align_columns([("", *texts), *figures] if len(texts) > 1 else figures):
        say(line.rstrip())
    for name, text in texts.items():
        first, *later = [one.seconds for one in text.record.rounds] or [0.0]
        if len(later) > 1 and first > WARM_UP * (usual := median(later)):
            which = f" of {name}" * (len(texts) > 1)
            say(
                f"the first round{which} took {1e3 * first:.0f} ms, a later one "
                f"{1e3 * usual:.2f} ms: it warms up, and is in the time to first token"
            )


def figure_rows(texts: Sequence[Text]) -> list[tuple[str, ...]]:
    """Return rows: a label, each text's value or n/a; last the distribution if one is lossy."""
    figures, cells = [text.metrics for text in texts], [text.cell for text in texts]
    distributions = [f"lossy: {c.verifier}" if c.lossy else "the target's" for c in cells]
    return [
        ("tokens", *(str(f.tokens) for f in figures)),
        ("rounds", *(NA if f.tokens > f.rounds == 0 else str(f.rounds) for f in figures)),
        ("acceptance rate α", *map(format_acceptance, texts)),
        ("block efficiency τ", *(format_number(f.block_efficiency) for f in figures)),
        ("mean token time", *(milliseconds(f.mean_token_time_ms) for f in figures)),
        ("loop time", *(milliseconds(f.loop_time_ms) for f in figures)),
        (
            "draft / target / verify",
            *(format_shares(f.draft_share, f.target_share, f.verify_share) for f in figures),
        ),
        ("prefill", *(milliseconds(f.prefill_ms) for f in figures)),
        ("time to first token", *(milliseconds(f.ttft_ms) for f in figures)),
        ("time to last token", *(milliseconds(f.answer_ms) for f in figures)),
        ("finish", *(text.record.finish for text in texts)),
        *([("distribution", *distributions)] if any(t.cell.lossy for t in texts) else ()),
    ]


def format_acceptance(text: Text) -> str:
    """Format the acceptance rate, noting deterministic drafts, or n/a and why there is none."""
    alpha, drafted = text.metrics.alpha, text.metrics.drafted
    if alpha is not None:
        return f"{alpha:.3f}{' (over tested deterministic drafts)' if text.by_rule else ''}"
    if not drafted:
        return f"{NA} (nothing drafted)"
    rule = text.cell.verifier.name  # block and trees are not tested token by token
    return f"{NA} ({'tree' if rule == 'match' else rule})"


def summary(text: Text) -> str:
    """Return tokens, acceptance rate, block efficiency and mean token time of a text in a line."""
    figures = text.metrics
    return (
        f"{figures.tokens} tokens, α {format_acceptance(text)}, τ "
        f"{format_number(figures.block_efficiency)}, "
        f"{milliseconds(figures.mean_token_time_ms)} per token"
    )


def format_number(value: float | None, unit: str = "") -> str:
    """Format a figure in two digits, with its unit; n/a where it does not apply."""
    return NA if value is None else f"{value:.2f}{unit}"


milliseconds = partial(format_number, unit=" ms")


def format_shares(*values: float | None) -> str:
    """Format shares of the decode time as `12% / 80% / n/a`, where None is n/a."""
    return " / ".join(NA if value is None else f"{value:.0%}" for value in values)


ENOUGH = 16  # rounds from which the absence of matches is reported


def advice(text: Text, comparison: Comparison | None) -> Iterator[str]:
    """Yield a line if lookup drafted nothing in `ENOUGH` rounds, one if SpS is surely slower."""
    figures = text.metrics
    if text.by_rule and text.cell.k != 0 and figures.drafted == 0 and figures.rounds >= ENOUGH:
        yield (
            f"prompt lookup found nothing to draft in {figures.rounds} rounds, and gained nothing: "
            "it is for texts that repeat their prompt. Name a draft model with --draft"
        )
    gained = comparison.speedup if comparison else None
    if gained is not None and gained.high is not None and gained.high < 1:
        yield (
            f"slower than without a draft ({gained.mean:.2f}x): the draft costs more than it "
            "saves. Try a smaller --k or a smaller draft model, or --k 0 for none"
        )


def payload(
    text: Text,
    engines: Mapping[str, str],
    comparison: Comparison | None = None,
    *,
    prompt: str = "",
    digests: Mapping[str, str] | None = None,
) -> str:
    """Return the result as ASCII JSON in one line; ValueError: NaN or Infinity in it.

    The result has digests of models (`digests`, by name) and of `prompt`, the text and its figures,
    settings, `engines` (words by role), what `comparison` adds, advice and environment.
    """
    content = {
        "schema": SCHEMA,
        "prompt_sha256": sha256(prompt.encode()).hexdigest(),
        "models": dict(digests or {}),
        "prompt_tokens": text.record.prompt_tokens,
        **text_json(text),
        "settings": text.cell.to_json(),
        "engines": dict(engines),
        **(comparison_json(comparison) if comparison else {}),
        "advice": list(advice(text, comparison)),
        "environment": describe_environment(),
    }
    return json.dumps(content, ensure_ascii=True, allow_nan=False)


def text_json(text: Text) -> dict[str, Any]:
    """Return by name a text's tokens, text, finish reason, rounds and metrics, for JSON."""
    return {
        "tokens": text.record.tokens,
        "text": text.record.text,
        "finish_reason": text.record.finish,
        "rounds": [r._asdict() for r in text.record.rounds],
        "metrics": asdict(text.metrics),
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return ars, loaded, answer_speedup, identical, and dicts speedup and divergence, for JSON."""
    gained, divergence = comparison.speedup, comparison.divergence
    return {
        "ars": text_json(comparison.ars),
        "speedup": gained._asdict() if gained else None,
        "answer_speedup": comparison.answer_speedup,
        "loaded": comparison.loaded,
        "identical": comparison.identical,
        "divergence": divergence.divergence if divergence else None,
    }


def answer(
    pair: Pair,
    prompt: str,
    screen: Screen,
    *,
    compared: bool,
    format: str,
    out: Path | None,
    stats: bool,
    **how: Any,
) -> None:
    """Generate from `prompt`; write the text as it comes, one line of JSON, or a page.

    In `format` text, stderr has the figures and engines of `stats`, the comparison, and advice
    with either. `compared` generates by ArS too, and compares. `out` is the file of a page, which
    `format` html makes; None: stdout. `how`: `chat`, `system`, `truncate` of `Pair.generation`.
    """
    show = screen.show if format == "text" else ignore
    comparison = None
    try:
        if compared:
            comparison = pair.compare(prompt, show=show, **how)
            texts = {"SpS": comparison.sps, "ArS": comparison.ars}
        else:
            generation = pair.generation(prompt, **how)
            for update in generation:
                show(update.pieces)
            texts = {"SpS": make_text(generation)}
    finally:
        screen.end()
    speculative = texts["SpS"]
    if format == "json":
        digests = pair.digests()
        text = payload(speculative, pair.engines(), comparison, prompt=prompt, digests=digests)
        write(text + "\n")
        return
    lines = comparison.lines() if comparison else []
    if format == "html":
        ids = ids_of(pair.loaded, prompt, chat=how["chat"], system=how["system"])
        prompt_ids = ids if isinstance(ids, list) else list(ids.ids or ())
        lines += advice(speculative, comparison)
        write_page(pair, list(texts.values()), prompt, prompt_ids, lines, out)
        return
    if stats:
        show_stats(texts)
        for name, engine in pair.engines().items():
            say(f"{name} engine: {engine}")
    for line in lines:
        say(line, BOLD if comparison and line in (comparison.speed, comparison.answer) else DIM)
    if stats or comparison:
        for line in advice(speculative, comparison):
            say(f"advice: {line}")


ASK = "you> "
HELP = "conversation: /reset starts anew, /exit or Ctrl-D ends it, Ctrl-C stops an answer"
COMMANDS = ("/help", "/reset", "/exit")
COMMAND = re.compile(r"/\w*+(\s|$)")
"""Pattern of a command; a path, with its second slash, is a message."""


def converse(pair: Pair, screen: Screen, *, stats: bool, **how: Any) -> None:
    """Hold a conversation until /exit or Ctrl-D; `how` has `system` and `truncate`.

    /reset forgets it, /help explains; a message with / at its start is typed with //. A question
    without an answer is forgotten, and noise is drawn anew for each turn.
    """
    with contextlib.suppress(ImportError):  # line editing where the platform has it
        import readline  # noqa: F401

    say(HELP)
    pair.configured(chat=True)  # logs the sampling parameters
    messages: list[dict[str, str]] = []
    turn = 0
    while (line := on_rank_0(read_line)) is not None and line != "/exit":
        if line == "/reset":
            messages = []
        elif line == "/help":
            say(f"{HELP}. A message that begins with / is typed with //")
        elif COMMAND.match(line):
            say(f"no command {line}: expected {', '.join(COMMANDS)}. To say it, begin with //")
        elif line:
            question = {"role": "user", "content": line[1:] if line.startswith("//") else line}
            # Independent noise for every turn: the same numbers would correlate the answers.
            how["sample"] = f"turn {turn}"
            answer = answer_turn(pair, screen, [*messages, question], stats, **how)
            if answer is not None:
                messages += [question, {"role": "assistant", "content": answer}]
            turn += 1


def read_line() -> str | None:
    """Read a line from stdin, stripped, after the prompt `ASK`; return None at Ctrl-D."""
    try:
        return input(ASK).strip()
    except EOFError:
        print()
        return None


def answer_turn(
    pair: Pair, screen: Screen, messages: list[dict[str, str]], stats: bool, **how: Any
) -> str | None:
    """Print an answer to `messages` as it comes, with `stats` a summary after it; return its text.

    An interrupted answer's text so far is returned, even ""; None: it was not begun. A DataError is
    printed, with a hint, and gives None. `how` is as `Pair.generation` takes it.
    """
    generation = None
    try:
        generation = pair.generation(messages, **how)
        for update in generation:
            screen.show(update.pieces)
        screen.end()
    except DataError as error:
        say(f"error: {error}. Or forget the conversation with /reset")
        return None
    except KeyboardInterrupt:
        screen.end()
        say("stopped")
        return generation.record.text if generation else None
    if stats:
        say(summary(make_text(generation)))
    return generation.record.text


def write_page(
    pair: Pair,
    texts: Sequence[Text],
    prompt: str,
    prompt_ids: Sequence[int],
    lines: Sequence[str],
    out: Path | None,
) -> None:
    """Write the page of texts, token by token, to `out` or stdout, `lines` below its settings.

    `prompt` is shown; `prompt_ids` are the tokens before each text's, which its decoding needs.
    """
    from spsbench.cli.publish import deliver

    traces = [
        trace(
            text.record,
            name=method(text.cell),
            group="",
            tokenizer=pair.loaded.tokenizer,
            prompt=prompt_ids,
            prompt_text=prompt,
        )
        for text in texts
    ]
    cell = texts[0].cell
    about = {
        "models": ", ".join(str(model) for model in cell.models),
        "method": cell.noise_key,
        "setting": setting(cell),
        **{f"{name} engine": engine for name, engine in pair.engines().items()},
    }
    deliver(trace_page("A text, token by token", traces, about, lines), "html", out)
