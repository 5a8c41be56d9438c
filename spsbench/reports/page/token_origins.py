"""Generations by token for the page: the origin of each token and the cost of its round."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from spsbench.loop.text import Detokenizer, Origin, Tokenizer
from spsbench.metrics.rates import generation_metrics
from spsbench.reports.text import escape_piece
from spsbench.settings.models import BUNDLED, ModelSpec
from spsbench.settings.records import Record, RoundRecord

ROUND = {  # column of the viewer: field of a round
    **{name: name for name in ("drafted", "tested", "accepted", "emitted", "overlap", "tree")},
    "seconds": "seconds",
    "draft": "draft_seconds",
    "target": "target_seconds",
}


def trace(
    record: Record,
    *,
    name: str,
    group: str,
    tokenizer: Tokenizer | None = None,
    prompt: Sequence[int] = (),
    prompt_text: str = "",
) -> dict[str, Any]:
    """Return what the viewer reads of a record, for JSON; without a tokenizer its tokens are ids.

    Tokens are also ids if the tokenizer does not reproduce the recorded text, for then the
    tokenizer is not the run's. Only with ids is the whole text there. `name` is the method's;
    `group` is the prompt's and setting's, whose generations are next to each other. `prompt` are
    the ids before the tokens, for the tokenizer alone; `prompt_text` is shown. Texts are cut, and
    escaped as by `escape_piece`; `origins` has a letter a token, `steps` a list of rounds a column.
    """
    texts = None if tokenizer is None else token_texts(tokenizer, prompt, record.tokens)
    if texts is not None and not _agree("".join(texts), record.text):
        texts = None
    figures = generation_metrics(record.rounds, record.prefill_seconds)
    return {
        "name": escape_piece(name),
        "group": escape_piece(group),
        "finish": record.finish,
        "flags": record.flags,  # reasons why the times are unreliable
        "prompt": escape_piece(prompt_text, 4000),
        "prefill": record.prefill_seconds,
        "text": escape_piece(record.text, 8000) if texts is None else None,
        "tokens": [*map(escape_piece, map(str, record.tokens) if texts is None else texts)],
        "origins": "".join(o.value[0] for r in record.rounds for o in token_origins(r)),
        "steps": _columns(record, None if texts is None else tokenizer),
        "rounds": figures.rounds,  # passes of the target; a step may hold several; 0 = unknown
        "tau": figures.block_efficiency,
    }


def token_origins(r: RoundRecord) -> list[Origin]:
    """Return the origin of each emitted token of a round; a cut round lacks the last tokens.

    UNTOLD are all tokens of several passes, or of passes that an engine does not tell, and the last
    token where the number of drafted ones is unknown.
    """
    if r.passes != 1:
        return [Origin.UNTOLD] * r.emitted
    if r.drafted == 0:
        return [Origin.PLAIN] * r.emitted
    final = Origin.UNTOLD
    if r.drafted > 0:
        final = Origin.BONUS if r.full else Origin.RECOVERED
    return ([Origin.ACCEPTED] * r.accepted + [final])[: r.emitted]


def token_texts(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """Return the text of each token; a character split over tokens comes with the last of them."""
    reader = Detokenizer(tokenizer, prompt)
    texts = [reader.push(token) for token in tokens]
    remainder = reader.flush() if tokens else ""
    return [*texts[:-1], texts[-1] + remainder] if texts else []


def local_tokenizer(model: ModelSpec) -> Tokenizer | None:
    """Return a decoder of ids, by `tokenizer.json` in a model's folder or hub cache; None: none."""
    from tokenizers import Tokenizer as Fast

    file: Any = (BUNDLED.get(model.id) or Path(model.id).expanduser()) / "tokenizer.json"
    try:
        if not file.is_file():
            from huggingface_hub import try_to_load_from_cache

            file = try_to_load_from_cache(model.id, "tokenizer.json", revision=model.revision)
        return _Plain(Fast.from_file(str(file)).decode) if file else None
    except Exception:  # any error in the name or the file: the page shows ids instead
        return None


class _Plain:
    def __init__(self, decode: Callable[..., str]) -> None:
        self._decode = decode

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._decode(list(token_ids), skip_special_tokens=skip_special_tokens)


def _agree(joined: str, recorded: str) -> bool:
    """Return whether the pieces equal the recorded text, which may end before a stop string."""
    return joined.lstrip().startswith(recorded.strip()) if recorded.strip() else not joined.strip()


def _columns(record: Record, tokenizer: Tokenizer | None) -> dict[str, list[Any]]:
    """Return name -> values by round, tokens of `laws` as text; a name without any is left out."""

    def words(tokens: Iterable[float]) -> list[str]:
        ids = map(int, tokens)
        return [escape_piece(str(i) if tokenizer is None else tokenizer.decode([i])) for i in ids]

    columns: dict[str, list[Any]] = {
        name: [getattr(r, field) for r in record.rounds] for name, field in ROUND.items()
    }
    distributions = record.laws or []
    columns["laws"] = [[*zip(words(of.tokens), of.p, of.q, strict=True)] for of in distributions]
    columns["parents"] = [of.parents or [] for of in distributions]
    columns["likeliest"] = [
        [[*zip(words(row[::2]), row[1::2], strict=True)] for row in of.likeliest or []]
        for of in distributions
    ]
    empty: tuple[Any, ...] = None, []
    return {name: column for name, column in columns.items() if any(v not in empty for v in column)}
