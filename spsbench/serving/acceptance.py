"""Acceptance statistics of engines, in this project's terms and in those of the engine.

Per request: vLLM's `metrics.speculative_decoding` (rounds are those with a draft), SGLang's
`meta_info.spec_*` or `sglext.spec_tokens_details`, TensorRT-LLM's `speculative_decoding` of a
choice, llama-server's `timings`. Per server: the difference of its counters at /metrics
before and after, which is valid only without other clients. Counts that cannot be true of the
answer's tokens are refused, since what follows allocates by them.
"""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate, islice, pairwise, zip_longest
from statistics import median
from typing import Any, NamedTuple

from spsbench.serving.answers import Answer
from spsbench.serving.wire import MAX_COUNT, MAX_DEPTH, Histogram, first_known, read_json
from spsbench.untrusted import RangeError

SAMPLE = re.compile(r"([A-Za-z_:][\w:]*+)(\{[^}\n]*+\})?+[ \t]++(\S++)")
COUNTER = re.compile(r"(?:vllm|llamacpp|trtllm)[:_]spec_decode_(\w++)")
PLACE = re.compile(r'position="([0-9]{1,4})"')

log = logging.getLogger(__name__)


class PassTokens(NamedTuple):
    """The tokens of one pass, or of several of which an engine tells only sums."""

    emitted: int
    seconds: float
    drafted: int = 0
    tested: int = 0  # -1 = not reported
    accepted: int = 0
    passes: int = 1  # 0 = not reported


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts of rounds, drafted and accepted tokens, and rounds that accepted each position."""

    rounds: float
    drafted: float | None  # None: not told
    accepted: float
    emitted: float | None  # tokens of the answers; None if only counters are known
    kept: tuple[float, ...] = ()  # rounds that accepted position 1, 2, ...
    source: str = ""

    @property
    def speculated(self) -> bool:
        """Return whether any token was drafted."""
        return bool(self.accepted if self.drafted is None else self.drafted)

    def rows(self) -> list[tuple[str, float | None, str]]:
        """Return ratios (our term, value, engines'), positions last, twice; None, NaN: unknown."""
        rounds = self.rounds or float("nan")
        mean = 1 + self.accepted / rounds
        drafted = self.accepted / self.drafted if self.drafted else None
        tau = self.emitted / rounds if self.emitted else None
        rows: list[tuple[str, float | None, str]] = [
            ("tokens a pass, accepted + 1", mean, "vLLM mean acceptance length"),
            ("block efficiency tau, emitted / rounds", tau, "SGLang spec_accept_length"),
            ("draft acceptance, accepted / drafted", drafted, "vLLM draft acceptance rate"),
        ]
        for i, count in enumerate(self.kept if self.rounds else ()):
            words = f"position {i + 1} accepted, of all rounds"
            rows.append((words, count / self.rounds, "vLLM per position"))
        for i, (before, count) in enumerate(pairwise((self.rounds, *self.kept))):
            if before:
                words = f"position {i + 1} accepted, where those before were"
                rows.append((words, count / before, "SPEED-Bench conditional"))
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return counts and figures."""
        return asdict(self) | {"figures": {name: value for name, value, _ in self.rows()}}


def of_answers(answers: Sequence[Answer]) -> Acceptance | None:
    """Add up the counts in the answers; None if the answers have none, or some cannot be true.

    The latter is logged. Answers without are left out: `drafted` and `emitted` are None unless all
    others tell them, and `kept` is () unless all others that accepted tokens tell positions.
    """
    try:
        parts = [counts for counts in map(of_answer, answers) if counts is not None]
    except RangeError as error:
        log.warning(f"acceptance is not available: {error}")
        return None
    if not parts:
        return None
    drafted = [part.drafted for part in parts if part.drafted is not None]
    emitted = [part.emitted for part in parts if part.emitted is not None]
    have_positions = all(part.kept or not part.accepted for part in parts)
    positions = zip_longest(*(part.kept for part in parts), fillvalue=0.0)
    return Acceptance(
        sum(part.rounds for part in parts),
        sum(drafted) if len(drafted) == len(parts) else None,
        sum(part.accepted for part in parts),
        sum(emitted) if len(emitted) == len(parts) else None,
        tuple(map(sum, positions)) if have_positions else (),
        parts[0].source,
    )


def of_answer(answer: Answer) -> Acceptance | None:
    """Return an answer's counts; None: some are not told. RangeError: they cannot be true of it.

    Read are vLLM's, SGLang's, TensorRT-LLM's or llama-server's, whose rounds are tokens less those
    accepted.
    """
    if answer.counts.wrong:
        raise RangeError(answer.counts.wrong)
    emitted: int | None = answer.tokens
    kept: tuple[float, ...] = ()
    if vllm := answer.counts.vllm:
        rounds, accepted = vllm.num_spec_steps, vllm.num_accepted_draft_tokens
        drafted, emitted, source = vllm.num_draft_tokens, None, "vLLM, per request"
        steps = vllm.per_step_accepted
        kept = steps_by_position(Counter(steps) if steps else vllm.acceptance_histogram)
    elif sglang := answer.counts.sglang:
        rounds = sglang.spec_verify_ct
        none = None if rounds else rounds  # no round: nothing was drafted
        accepted = first_known(sglang.spec_num_correct_drafts, sglang.spec_accept_token_num, none)
        drafted = first_known(sglang.spec_num_proposed_drafts, sglang.spec_draft_token_num, none)
        kept = steps_by_position(
            first_known(sglang.spec_correct_drafts_histogram, sglang.spec_accept_histogram)
        )
        source = "SGLang, per request"
    elif trtllm := answer.counts.trtllm:
        rounds, accepted = trtllm.num_spec_steps, trtllm.total_accepted_draft_tokens
        drafted, emitted, source = trtllm.total_draft_tokens, None, "TensorRT-LLM, per request"
        kept = steps_by_position(trtllm.acceptance_histogram)
    elif llama := answer.counts.llama:
        drafted = llama.draft_n
        accepted = first_known(llama.draft_n_accepted, None if drafted else drafted)
        emitted = answer.tokens if llama.predicted_n is None else llama.predicted_n
        rounds = None if accepted is None else emitted - accepted
        source = "llama-server timings; rounds = predicted_n - draft_n_accepted"
    else:
        return None
    if rounds is None or accepted is None:
        return None
    counts = Acceptance(rounds, drafted, accepted, emitted, kept, source)
    if wrong := contradiction(counts, answer.tokens):
        raise RangeError(wrong)
    return counts


def contradiction(counts: Acceptance, tokens: int, texts: int | None = None) -> str | None:
    """Return in words what cannot be true of `counts` for so many `tokens`; None: nothing.

    They may be too many, never too few: not all passes draft. A draft may go beyond a text's end.
    `texts`: the number of texts, nobody else's among them, in which a server counted together.
    None: the counts are an answer's own, and the sum of rounds and accepted tokens is not checked.
    """
    rounds, drafted, accepted = counts.rounds, counts.drafted, counts.accepted
    if not 0 <= rounds <= tokens:
        return f"{rounds} rounds of {tokens} tokens, expected as many at most"
    if not 0 <= accepted <= tokens + MAX_DEPTH:
        return f"{accepted} accepted of {tokens} tokens, expected fewer"
    if drafted is not None and not accepted <= drafted <= rounds * MAX_DEPTH:
        return f"{accepted} accepted of {drafted} drafted in {rounds} rounds"
    if any(later > earlier for earlier, later in pairwise((rounds, *counts.kept))):
        return f"more accepted at a position than at the one before, or than the {rounds} rounds"
    if texts is not None and rounds:
        beyond = texts * 2 * (1 + (accepted if drafted is None else drafted) / rounds)
        if rounds + accepted > tokens + beyond:
            return f"{accepted:.0f} accepted in {rounds:.0f} rounds of {tokens} tokens"
    return None


def steps_by_position(counts: Any) -> tuple[float, ...]:
    """Return how many steps accepted position 1, 2, ..., from those that accepted 0, 1, ..."""
    histogram: Any = read_json(counts or [], Histogram)  # type: ignore[arg-type]
    if isinstance(histogram, dict):
        histogram = [histogram.get(depth, 0) for depth in range(max(histogram, default=0) + 1)]
    return tuple(map(float, accumulate(reversed(histogram[1:]))))[::-1]


def counters(page: Any) -> dict[str, float]:
    """Return `NAME` or `NAME@POSITION` -> total of a /metrics page's counters of speculation."""
    totals: defaultdict[str, float] = defaultdict(float)  # over the engines of one server
    for full_name, labels, number in samples(page):
        if name := COUNTER.fullmatch(full_name):
            place = PLACE.search(labels)
            key = name[1].removesuffix("_total")
            totals[f"{key}@{int(place[1])}" if place else key] += number
    return totals


def samples(page: Any) -> Iterator[tuple[str, str, float]]:
    """Yield name, labels and value of each count from 0 up on a /metrics page; none: not a text."""
    for line in page.splitlines() if isinstance(page, str) else ():
        if sample := SAMPLE.match(line):
            with suppress(ValueError):
                if 0 <= (number := float(sample[3])) < MAX_COUNT:
                    yield sample[1], sample[2] or "", number


def page_delta(before: Mapping[str, float], after: Mapping[str, float]) -> Acceptance | None:
    """Return the difference of two pages' counters; None: none there, or one fell by a restart."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    rounds, accepted = grown.get("num_drafts"), grown.get("num_accepted_tokens")
    if rounds is None or accepted is None or min(grown.values()) < 0:
        return None
    position = "num_accepted_tokens_per_pos@"
    places = sorted(int(name.split("@")[1]) for name in grown if name.startswith(position))
    kept = [grown[f"{position}{place}"] for place in places[:MAX_DEPTH]]
    while kept and kept[-1] == 0:
        kept.pop()
    drafted = grown.get("num_draft_tokens")
    return Acceptance(rounds, drafted, accepted, None, tuple(kept), "/metrics, before and after")


def spans(
    answer: Answer, counts: Acceptance | None, *, plain: bool
) -> tuple[float, list[PassTokens]]:
    """Return the seconds of the prefill, and what is known of the passes of a streamed answer.

    Where all chunks tell their tokens, the prefill is the first one's time beyond the median of the
    others', and an item is a chunk; with `counts`, a pass, or several of unknown order. Where they
    do not, or `counts` do not fit them, the prefill is the first chunk's time; an empty item and
    one of all tokens follow, whose passes are a lower bound where the end cut the last round.
    Without tokens or chunks: all seconds and []. A `plain` server drafts nothing: a pass a token.
    """
    n = answer.tokens
    if not n or not answer.stamps:
        return answer.seconds, []
    gaps = [later - former for former, later in pairwise(answer.stamps)]
    first, decode_seconds = answer.stamps[0], sum(gaps)
    sizes = answer.sizes if all(answer.sizes) and sum(answer.sizes) == n else []
    usual = min(first, median(gaps)) if gaps else 0.0
    times = [usual, *gaps]
    if plain or counts is None:
        if sizes:
            chunks = zip(sizes, times, strict=True)
            return first - usual, [PassTokens(m, t, passes=m if plain else 0) for m, t in chunks]
        whole = PassTokens(n, decode_seconds, passes=n if plain else 0)
    elif groups := passes_in(answer, counts, sizes):
        chunks = zip(sizes, times, strict=True)
        round_spans = [_sum(list(islice(chunks, passes)), steps) for passes, steps in groups]
        return first - usual, round_spans
    else:
        drafted = -1 if counts.drafted is None else int(counts.drafted)
        with_prompt = int(counts.rounds) + (answer.counts.llama is None)
        passes = min(n, max(with_prompt, n - int(counts.accepted), len(sizes)))
        whole = PassTokens(n, decode_seconds, drafted, -1, int(counts.accepted), passes)
    return first, [PassTokens(0, 0.0, passes=0), whole]


def _sum(chunks: Sequence[tuple[int, float]], steps: Sequence["Step"]) -> PassTokens:
    emitted, seconds = zip(*chunks, strict=True)
    drafted = sum(drafted for drafted, _ in steps)
    tested = sum(min(accepted + 1, drafted) for drafted, accepted in steps)
    accepted = sum(accepted for _, accepted in steps)
    return PassTokens(sum(emitted), sum(seconds), drafted, tested, accepted, len(chunks))


Step = tuple[int, int]
"""Drafted and accepted tokens of a round with a draft."""
Passes = tuple[int, list[Step]]
"""A number of passes, and the rounds with a draft among them."""


def passes_in(answer: Answer, counts: Acceptance, sizes: Sequence[int]) -> list[Passes] | None:
    """Return the passes of an answer, by its chunks' `sizes` in tokens; None: only sums are known.

    An item is a number of passes, and (drafted, accepted) of each round with a draft in them.
    """
    vllm = answer.counts.vllm
    if vllm and vllm.per_step_accepted is not None and vllm.per_step_drafted is not None:
        accepted, drafted = vllm.per_step_accepted, vllm.per_step_drafted
        if len(accepted) == len(drafted):
            return in_chunks(list(zip(drafted, accepted, strict=True)), sizes)
    rounds = int(counts.rounds)
    if not rounds:
        return in_chunks([], sizes)
    if counts.drafted is None or counts.drafted % rounds:
        return None
    k = int(counts.drafted) // rounds
    exact = [a - b for a, b in pairwise([rounds, *map(int, counts.kept), 0])]
    plain = len(sizes) - rounds  # passes without a draft; the order is known of one, the prompt's
    steps = [(k, size - 1) for size in sizes[plain == 1 :] if size > 1 or exact[0]]
    if len(steps) != rounds or sizes[:1] != [1] * bool(sizes and plain):
        return None
    if Counter(accepted for _, accepted in steps) != +Counter(dict(enumerate(exact))):
        return None  # the end cut a round, or a chunk holds several
    return in_chunks(steps, sizes)


def in_chunks(steps: Sequence[Step], sizes: Sequence[int]) -> list[Passes] | None:
    """Assign rounds with a draft, in their order, to chunks of one pass each; None: no fit.

    Each item is (number of passes, their rounds), `sizes` the chunks' tokens. A chunk of several is
    a round. One of one token is a round that accepted nothing, or a pass without a draft: the first
    is that of the prompt, and the order of others is unknown.
    """
    whole = [at for at, size in enumerate(sizes) if size > 1]  # chunks of a round that accepted
    accepting = [at for at, (_, accepted) in enumerate(steps) if accepted]
    if sizes and sizes[-1] == 1 and len(accepting) == len(whole) + 1:
        whole.append(len(sizes) - 1)  # the end cut its last round to one token
    if not sizes or len(accepting) != len(whole):
        return None
    passes: list[Passes] = []
    at = done = 0  # chunks and steps that are assigned
    for chunk, step in zip([*whole, len(sizes)], [*accepting, len(steps)], strict=True):
        empty, ones = list(steps[done:step]), chunk - at
        if len(empty) > ones:
            return None
        if at == 0 and ones > len(empty):
            passes.append((1, []))
            ones -= 1
        if empty and ones > len(empty):
            passes.append((ones, empty))
        else:
            passes += [(1, [one]) for one in empty] or [(1, [])] * ones
        if step < len(steps):
            emitted, is_last = steps[step][1] + 1, chunk == len(sizes) - 1
            if emitted < sizes[chunk] or (emitted > sizes[chunk] and not is_last):
                return None
            passes.append((1, [steps[step]]))
        at, done = chunk + 1, step + 1
    return passes
