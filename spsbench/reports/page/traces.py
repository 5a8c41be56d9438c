"""Generations to be read token by token: where each token came from, and what its round cost."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spsbench.loop.text import Detokenizer, Origin, Tokenizer
from spsbench.reports.page.safe import shown
from spsbench.settings.models import BUNDLED, ModelSpec
from spsbench.settings.records import Record, RoundRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A round as it is shown."""

    drafted: int
    tested: int
    accepted: int
    emitted: int
    overlap: float | None
    seconds: float
    draft: float
    target: float
    laws: tuple[tuple[str, float, float], ...] = ()  # of each drafted token: text, p, q
    parents: tuple[int, ...] = ()  # of a whole tree: the node before each, -1 = the context
    likeliest: tuple[tuple[tuple[str, float], ...], ...] = ()  # after the context and each token
    tree: tuple[Any, ...] | None = None  # depth, path, siblings, offered: see `TreeRound`


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One generation."""

    name: str
    group: str  # generations of one prompt and setting are shown beside each other
    row: int  # of the page's rows; -1 = none
    category: str | None  # of its prompt
    finish: str
    flags: tuple[str, ...]  # why its times are not to be trusted
    prompt: str
    prompt_tokens: int
    prefill: float
    words: bool  # whether `tokens` are texts; else their numbers, and `text` is whole
    text: str
    tokens: tuple[str, ...]
    origins: tuple[str, ...]
    steps: tuple[Step, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def trace(
    record: Record,
    *,
    name: str,
    group: str,
    row: int = -1,
    category: str | None = None,
    tokenizer: Tokenizer | None = None,
    prompt: Sequence[int] = (),
    prompt_text: str = "",
) -> Trace:
    """A record as it is shown; without a tokenizer its tokens are numbers.

    So they are where the tokenizer does not give the text that was recorded: it is another one.
    """
    texts = None if tokenizer is None else pieces(tokenizer, prompt, record.tokens)
    if texts is not None and not _agree("".join(texts), record.text):
        texts = None
    of = tokenizer if texts is not None else None
    return Trace(
        name=shown(name),
        group=shown(group),
        row=row,
        category=category,
        finish=record.finish,
        flags=record.flags,
        prompt=shown(prompt_text, 4000),
        prompt_tokens=record.prompt_tokens,
        prefill=record.prefill_seconds,
        words=texts is not None,
        text=shown(record.text, 8000),
        tokens=tuple(map(shown, texts if texts is not None else map(str, record.tokens))),
        origins=tuple(o.value for r in record.rounds for o in origins(r)),
        steps=tuple(_step(record, i, of) for i in range(len(record.rounds))),
    )


def origins(r: RoundRecord) -> list[Origin]:
    """Where each emitted token of a round came from; a cut round lacks its last ones."""
    if r.drafted == 0:
        return [Origin.PLAIN] * r.emitted
    final = Origin.BONUS if r.full else Origin.RECOVERED
    return ([Origin.ACCEPTED] * r.accepted + [final])[: r.emitted]


def pieces(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """The text of each token; a character whose bytes span tokens comes with the last."""
    reader = Detokenizer(tokenizer, prompt)
    texts = [reader.push(token) for token in tokens]
    rest = reader.flush() if tokens else ""
    return [*texts[:-1], texts[-1] + rest] if texts else []


def tokenizer_of(model: ModelSpec) -> Tokenizer | None:
    """The tokenizer of a model that is on this machine; None where it is not. No network."""
    folder = BUNDLED.get(model.id) or Path(model.id).expanduser()
    file = folder / "tokenizer.json"
    if not file.is_file():
        found = _cached(model)
        if found is None:
            return None
        file = found
    from tokenizers import Tokenizer as Fast

    try:
        return _Plain(Fast.from_file(str(file)).decode)
    except Exception:  # whatever is in that file, the page shows numbers then
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
        found = try_to_load_from_cache(model.id, "tokenizer.json", revision=model.revision)
    except (HFValidationError, OSError):
        return None
    return Path(found) if isinstance(found, str) else None


def _agree(made: str, recorded: str) -> bool:
    """Whether the pieces are the recorded text, which may end before a stop string."""
    return made.lstrip().startswith(recorded.strip()) if recorded.strip() else not made.strip()


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
