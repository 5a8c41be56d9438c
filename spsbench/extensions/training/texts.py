"""The target's texts: how they are written, the file that keeps them, and how it is resumed.

Many prompts are continued in a batch, sampled by inverse CDF; finished rows leave the batch. Line 1
of the file holds all settings that the texts depend on; each further line is a batch.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import DynamicCache, DynamicLayer, PreTrainedModel

from spsbench.engines.session.cache import PreallocatedLayer
from spsbench.errors import DataError, MismatchError
from spsbench.extensions.training.options import FEWEST, Training
from spsbench.extensions.training.prompts import BenchmarkIndex, asks_itself, bos_prompt, user_mark
from spsbench.hardware.files import clock
from spsbench.loop.sampling import Warp, sample
from spsbench.models.tokenizers import encode_chat
from spsbench.store.atomic import replace_file
from spsbench.store.log import HeadedLog
from spsbench.store.manifest import differences
from spsbench.untrusted import open_untrusted

log = logging.getLogger(__name__)

Text = tuple[list[int], list[int]]  # prompt and continuation
ENDED = 8  # finished rows are removed once they exceed 1 / ENDED of the batch


@torch.inference_mode()
def continue_texts(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    most: int,
    warp: Warp,
    ends: frozenset[int],
    vocab: int,
    seed: int,
) -> list[list[int]]:
    """Return the model's continuation of each prompt, including the token that ends it.

    `model` is on its device; the `prompts`, one or more, have a token or more. A continuation ends
    at one of `ends`, or after `most` tokens, 1 or more. Tokens are sampled under `warp` from the
    first `vocab` logits, by uniforms of `seed` and `most`: token t of prompt i always has the same.
    """
    device, longest = model.device, max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    draws = torch.Generator().manual_seed(seed % (1 << 62))
    uniforms = torch.rand(len(prompts), most, generator=draws, dtype=torch.float64)
    cache = _cache(model, longest + most)
    takes = signature(model.forward).parameters
    texts: list[list[int]] = [[] for _ in prompts]
    rows = torch.arange(len(prompts))  # the prompt of each remaining row
    for at in range(most):
        model_inputs: dict[str, Any] = {"attention_mask": mask, "past_key_values": cache}
        if "position_ids" in takes:
            model_inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        if "logits_to_keep" in takes:
            model_inputs["logits_to_keep"] = 1
        logits = model(input_ids=ids, use_cache=True, **model_inputs).logits[:, -1, :vocab]
        tokens = sample(warp(logits), uniforms[rows, at]).cpu()
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            if not texts[row] or texts[row][-1] not in ends:
                texts[row].append(token)
        going = torch.tensor([texts[row][-1] not in ends for row in rows.tolist()])
        if not going.any():
            break
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
        ids = tokens[:, None].to(device)
        if int((~going).sum()) * ENDED > len(rows):
            remaining = going.nonzero()[:, 0]
            rows = rows[remaining]
            ids, mask = ids[remaining.to(device)], mask[remaining.to(device)]
            cache.batch_select_indices(remaining.to(device))
    return texts


def _cache(model: PreTrainedModel, room: int) -> DynamicCache:
    """Return an empty cache, with `room` allocated where all layers keep whole texts."""
    cache = DynamicCache(config=model.config)
    if all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [PreallocatedLayer(room) for _ in cache.layers]
    return cache


@dataclass
class Writer:
    """Generator of a target's texts in batches; batch i is a function of the seed and i."""

    model: PreTrainedModel  # the target
    tokenizer: Any
    eos: frozenset[int]  # tokens that end a text
    vocab: int  # number of tokens
    options: Training
    chat: bool  # whether to use the target's chat template
    prompts: Sequence[list[int]]  # the user's, as `collect_prompts` reads them

    def __post_init__(self) -> None:
        together, missing = self.options.together, self.options.count - len(self.prompts)
        self._invented_count = max(0, missing) if asks_itself(self.options) else 0
        self._user_batches = -(-len(self.prompts) // together)
        self.batches = self._user_batches + -(-self._invented_count // together)

    def batch(self, index: int) -> list[Text]:
        """Return a batch's (prompt, continuation) pairs; first batches have the user's prompts."""
        together, invented_index = self.options.together, index - self._user_batches
        if invented_index < 0:
            prompts = self.prompts[index * together : (index + 1) * together]
        else:
            count = min(together, self._invented_count - invented_index * together)
            prompts = list(self._invented(index, count))
        return list(zip(prompts, self._written(prompts, (index, 1)), strict=True))

    def _invented(self, index: int, count: int) -> Iterator[list[int]]:
        """Yield `count` prompts of BOS; in a chat, up to `count` questions that the target writes.

        A question without text is left out. `index` is the number of the batch.
        """
        if not self.chat:
            yield from [bos_prompt(self.tokenizer, self.eos)] * count
            return
        mark = user_mark(self.tokenizer)
        for question in self._written([mark] * count, (index, 0), self.options.prompt_tokens):
            text = self.tokenizer.decode(question, skip_special_tokens=True).strip()
            if text:
                yield encode_chat(self.tokenizer, [{"role": "user", "content": text}])

    def _written(
        self, prompts: Sequence[list[int]], key: tuple[int, int], most: int | None = None
    ) -> list[list[int]]:
        """Return each prompt's continuation of up to `most` tokens (None: `options.tokens`).

        `key`: of their randomness, a batch's number, and 0 for its prompts or 1 for the texts.
        """
        if not prompts:
            return []
        options = self.options
        return continue_texts(
            self.model,
            prompts,
            most=most or options.tokens,
            warp=Warp(options.temperature, top_p=options.top_p),
            ends=self.eos,
            vocab=self.vocab,
            seed=(options.seed * 1_000_003 + key[0]) * 2 + key[1],
        )


SCHEMA = 1
OF_TARGET = ("tokenizer", "vocab")  # must match for texts of another run


@dataclass(frozen=True, slots=True)
class TargetTexts:
    """Texts of one target, each a prompt and its continuation."""

    header: Mapping[str, Any]  # target, digests, prompts, seed, temperature ...
    texts: tuple[Text, ...]

    @property
    def tokens(self) -> int:
        """Return the number of tokens that the target wrote."""
        return sum(len(text) for _, text in self.texts)


def read_texts(
    path: Path, overlap: BenchmarkIndex | None, decode: Callable[[list[int]], str]
) -> TargetTexts:
    """Return the texts of a file, without duplicates; DataError: damaged, or none is left.

    Texts of fewer than two new tokens are left out, and those that, by `decode`, repeat a text of
    `overlap` (None: none do); a line counts both, and so does `left_out` in the header returned.
    """
    header = read_head(path)
    vocab = header.get("vocab", 0)
    texts: dict[tuple[tuple[int, ...], tuple[int, ...]], Text] = {}
    empty = shared = 0
    for number, line in enumerate(path.read_bytes().splitlines()[1:], start=2):
        for prompt, text in _texts(parse_object(line, path, number), path, number, vocab):
            if len(text) < 2:
                empty += 1
            elif overlap is not None and overlap.of(decode(prompt + text)) is not None:
                shared += 1
            else:
                texts[tuple(prompt), tuple(text)] = (prompt, text)
    if not texts:
        why = "all are texts of the benchmark" if shared else "no prompt was written"
        why = "the target ends at once" if empty else why
        raise DataError(
            f"no text could be made ({path}): {why}. Give it something to answer or to continue, "
            "with `prompts`"
        )
    if empty or shared:
        log.info(f"note: {empty} texts of fewer than two tokens and {shared} of tasks are left out")
    return TargetTexts(
        {**header, "left_out": {"empty": empty, "of tasks": shared}}, tuple(texts.values())
    )


def split(texts: TargetTexts, held_out: int, seed: int) -> tuple[list[Text], list[Text]]:
    """Return texts to train on, and `held_out` others, at most one in `FEWEST`; in their order.

    `seed` draws them. DataError: fewer texts than `FEWEST`.
    """
    count = min(held_out, len(texts.texts) // FEWEST)
    if count < 1:
        raise DataError(
            f"{len(texts.texts)} texts: expected {FEWEST} or more, some of them to watch on. "
            "Give more `prompts`, or a higher `count`"
        )
    order = torch.randperm(len(texts.texts), generator=torch.Generator().manual_seed(seed))
    chosen = set(order[:count].tolist())
    learnt = [text for i, text in enumerate(texts.texts) if i not in chosen]
    return learnt, [text for i, text in enumerate(texts.texts) if i in chosen]


def read_head(path: Path) -> dict[str, Any]:
    """Return the header of a file of texts, without its `schema`; SpsError: it cannot be read."""
    with open_untrusted(path, "texts that `sps train` wrote") as (file, _):
        first = file.readline()
    head = parse_object(first, path)
    if head.get("schema") != SCHEMA or "target" not in head:
        raise DataError(
            f"{path} has no head (line 1): expected texts that sps train wrote. Check `texts`"
        )
    return {name: value for name, value in head.items() if name != "schema"}


def check_texts_target(head: Mapping[str, Any], expected: Mapping[str, Any], path: Path) -> None:
    """Raise DataError for texts whose header `head` is of another tokenizer than `expected`."""
    if any(head.get(name) != expected[name] for name in OF_TARGET):
        raise DataError(
            f"{path} has tokens of {head.get('target')}, not of {expected['target']}: expected "
            "texts in the target's own tokens. Let the target write: leave out `texts`"
        )


def refuse_other(head: Mapping[str, Any], expected: Mapping[str, Any], path: Path) -> None:
    """Raise MismatchError, which lists the differences, unless keys and values are as expected."""
    if lines := differences(expected, head):
        raise MismatchError.of(
            f"other texts ({path}): expected those that were asked for. Give this one another "
            "folder, or start over with `overwrite`",
            lines,
        )


def parse_object(line: bytes, path: Path, number: int = 1) -> dict[str, Any]:
    """Return the object on a line; DataError: there is none."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except ValueError as error:
        raise DataError(f"{path} is damaged (line {number}): expected a JSON object") from error


def _texts(row: Mapping[str, Any], path: Path, number: int, vocab: int) -> Iterator[Text]:
    """Yield (prompt, continuation) of each item of `texts` in a line's object, none without it.

    `number`: the line's, for messages. DataError: a part is no list of ids below `vocab`.
    """
    for item in row.get("texts", ()):
        parts = (item.get("prompt"), item.get("text")) if isinstance(item, dict) else (None, None)
        for part in parts:
            if not isinstance(part, list) or not all(
                type(token) is int and 0 <= token < vocab for token in part
            ):
                raise DataError(f"{path} is damaged (line {number}): expected tokens below {vocab}")
        yield parts[0] or [], parts[1] or []


def write_texts(
    path: Path, header: Mapping[str, Any], writer: Writer, stop: Callable[[], bool]
) -> bool:
    """Generate the file `path`, or resume it; return False if stopped before it is complete.

    Incomplete texts are in a log, `.partial`, next to it, which goes at the end; `stop` is polled
    before each batch. A file that is there is complete. MismatchError: it, or the log, has another
    header. Lines log the progress.
    """
    if path.exists():
        refuse_other(read_head(path), header, path)
        return True
    partial_path = path.with_suffix(".partial")
    log_header = {"schema": SCHEMA, **header}
    lines: dict[int, bytes] = {}

    def add(values: Mapping[str, Any]) -> None:
        lines[values["batch"]] = (json.dumps(values) + "\n").encode()

    with HeadedLog(
        partial_path, log_header, lambda old: refuse_other(old, log_header, partial_path), add
    ) as journal:
        began, count_before = time.monotonic(), len(lines)
        for index in range(writer.batches):
            if index in lines:
                continue
            if stop():
                return False
            texts = [{"prompt": prompt, "text": text} for prompt, text in writer.batch(index)]
            batch = {"batch": index, "texts": texts}
            journal.append(batch)
            add(batch)
            is_first = len(lines) == count_before + 1
            if is_first or len(lines) % max(1, writer.batches // 10) == 0:
                seconds = (time.monotonic() - began) / (len(lines) - count_before)
                time_left = clock(seconds * (writer.batches - len(lines)))
                log.info(
                    f"texts: {len(lines)} of {writer.batches} batches  {time_left} left"
                    + ", before the steps and their `minutes`" * is_first
                )
        head = (json.dumps(log_header, sort_keys=True) + "\n").encode()
        replace_file(path, b"".join([head, *(lines[index] for index in sorted(lines))]))
        partial_path.unlink()
    return True
