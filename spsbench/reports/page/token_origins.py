"""Generations by token for the page: the origin of each token and the cost of its round."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spsbench.loop.text import Detokenizer, Origin, Tokenizer
from spsbench.metrics.rates import metrics
from spsbench.reports.page.escape import shown
from spsbench.settings.models import BUNDLED, ModelSpec
from spsbench.settings.records import Record, RoundRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A displayed round."""

    drafted: int
    tested: int
    accepted: int
    emitted: int
    overlap: float | None
    seconds: float
    draft: float
    target: float
    laws: tuple[tuple[str, float, float], ...] = ()  # text, p, q of each drafted token
    parents: tuple[int, ...] = ()  # parent of each node of a tree, -1 = the context
    likeliest: tuple[tuple[tuple[str, float], ...], ...] = ()  # after the context and each token
    tree: tuple[Any, ...] | None = None  # depth, path, siblings, offered: see `TreeRound`


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A displayed generation."""

    name: str
    group: str  # generations of one prompt and setting are next to each other
    finish: str
    flags: tuple[str, ...]  # reasons why the times are unreliable
    prompt: str
    prefill: float
    words: bool  # `tokens` are texts; else ids, and `text` is complete
    text: str
    tokens: tuple[str, ...]
    origins: tuple[str, ...]
    steps: tuple[Step, ...]
    rounds: int  # of the target, of which a step may hold several; 0 = not told
    tau: float | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def trace(
    record: Record,
    *,
    name: str,
    group: str,
    tokenizer: Tokenizer | None = None,
    prompt: Sequence[int] = (),
    prompt_text: str = "",
) -> Trace:
    """Return the trace of a record; without a tokenizer its tokens are ids.

    Tokens are also ids if the tokenizer does not reproduce the recorded text, for then the
    tokenizer is not the run's.
    """
    texts = None if tokenizer is None else pieces(tokenizer, prompt, record.tokens)
    if texts is not None and not _agree("".join(texts), record.text):
        texts = None
    of = tokenizer if texts is not None else None
    figures = metrics(record.rounds, record.prefill_seconds)
    return Trace(
        name=shown(name),
        group=shown(group),
        finish=record.finish,
        flags=record.flags,
        prompt=shown(prompt_text, 4000),
        prefill=record.prefill_seconds,
        words=texts is not None,
        text=shown(record.text, 8000),
        tokens=tuple(map(shown, texts if texts is not None else map(str, record.tokens))),
        origins=tuple(o.value for r in record.rounds for o in origins(r)),
        steps=tuple(_step(record, i, of) for i in range(len(record.rounds))),
        rounds=figures.rounds,
        tau=figures.block_efficiency,
    )


def origins(r: RoundRecord) -> list[Origin]:
    """Return the origin of each emitted token of a round; a cut round lacks the last tokens."""
    if r.passes != 1:
        return [Origin.UNTOLD] * r.emitted
    if r.drafted == 0:
        return [Origin.PLAIN] * r.emitted
    final = Origin.BONUS if r.full else Origin.RECOVERED
    final = final if r.drafted > 0 else Origin.UNTOLD
    return ([Origin.ACCEPTED] * r.accepted + [final])[: r.emitted]


def pieces(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """Return the text of each token; a character split over tokens comes with the last of them."""
    reader = Detokenizer(tokenizer, prompt)
    texts = [reader.push(token) for token in tokens]
    remainder = reader.flush() if tokens else ""
    return [*texts[:-1], texts[-1] + remainder] if texts else []


def tokenizer_of(model: ModelSpec) -> Tokenizer | None:
    """Load the tokenizer of a model from local files, without network; None if unavailable."""
    folder = BUNDLED.get(model.id) or Path(model.id).expanduser()
    file = folder / "tokenizer.json"
    if not file.is_file():
        cached = _cached(model)
        if cached is None:
            return None
        file = cached
    from tokenizers import Tokenizer as Fast

    try:
        return _Plain(Fast.from_file(str(file)).decode)
    except Exception:  # any error in the file: the page shows ids instead
        return None


class _Plain:
    def __init__(self, decode: Callable[..., str]) -> None:
        self._decode = decode

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._decode(list(token_ids), skip_special_tokens=skip_special_tokens)


def _cached(model: ModelSpec) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(model.id, "tokenizer.json", revision=model.revision)
    except (HFValidationError, OSError):
        return None
    return Path(path) if isinstance(path, str) else None


def _agree(joined: str, recorded: str) -> bool:
    """Return whether the pieces equal the recorded text, which may end before a stop string."""
    return joined.lstrip().startswith(recorded.strip()) if recorded.strip() else not joined.strip()


def _step(record: Record, number: int, tokenizer: Tokenizer | None) -> Step:
    r = record.rounds[number]
    laws: tuple[tuple[str, float, float], ...] = ()
    parents: tuple[int, ...] = ()
    likeliest: tuple[tuple[tuple[str, float], ...], ...] = ()
    if record.laws is not None and number < len(record.laws):
        of = record.laws[number]
        laws = tuple(
            (shown(_one(tokenizer, token)), p, q)
            for token, p, q in zip(of.tokens, of.p, of.q, strict=True)
        )
        parents = tuple(of.parents or ())
        likeliest = tuple(
            tuple(
                (shown(_one(tokenizer, int(token))), q)
                for token, q in zip(row[::2], row[1::2], strict=True)
            )
            for row in of.likeliest or ()
        )
    return Step(
        drafted=r.drafted,
        tested=r.tested,
        accepted=r.accepted,
        emitted=r.emitted,
        overlap=r.overlap,
        seconds=r.seconds,
        draft=r.draft_seconds,
        target=r.target_seconds,
        laws=laws,
        parents=parents,
        likeliest=likeliest,
        tree=None if r.tree is None else tuple(r.tree),
    )


def _one(tokenizer: Tokenizer | None, token: int) -> str:
    return str(token) if tokenizer is None else tokenizer.decode([token])
