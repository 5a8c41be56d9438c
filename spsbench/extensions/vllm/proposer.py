"""The class that vLLM asks for drafts: those of a drafter by rule, or those of a script.

After each pass vLLM gives the tokens of each row of its batch and how many are new, but no request,
prompt or limit. An exception, an id beyond the vocabulary or more than K tokens end the server. So
options are refused when it starts; later a text whose draft fails has none, with a warning.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from spsbench.errors import UsageError
from spsbench.extensions.vllm.rules import KEY, open_rule
from spsbench.loop.types import Scores
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file

log = logging.getLogger(__name__)

Row = NDArray[np.int32]  # [n] the tokens of a text, prompt and answer

ENDED = 32  # texts that are kept beyond a batch: ended ones, and preempted ones, which come back


class Proposer:
    """Drafts for vLLM's method `custom_class`.

    Under `KEY` of its additional config `vllm_config` has either `drafter`, a spec, or `script`,
    the path of a `Script`. UsageError: neither or both, a drafter that vLLM cannot serve, or no
    script.
    """

    def __init__(self, vllm_config: Any) -> None:
        model, config = vllm_config.model_config, vllm_config.additional_config
        self._k = int(vllm_config.speculative_config.num_speculative_tokens)
        self._vocab, self._longest = int(model.get_vocab_size()), int(model.max_model_len)
        self._failed = False
        self._source: RuleDrafts | Script
        try:
            ((kind, value),) = config[KEY].items()
            if kind == "script":
                self._source = Script(Path(value), {"k": self._k, "vocab": self._vocab})
            else:
                most = int(vllm_config.scheduler_config.max_num_seqs) + ENDED
                self._source = RuleDrafts(Spec.parse({"drafter": value}[kind]), most)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f'--additional-config {config}: expected {{"{KEY}": {{"drafter": SPEC}}}}, or '
                f'"script" with a new file or an earlier script ({type(error).__name__} {error})'
            ) from error

    def load_model(self, *_: Any) -> None:
        """Load nothing: vLLM's CPU runner calls this of every proposer."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        **_: Any,
    ) -> list[list[int]]:
        """Return the draft of each row, of at most K tokens, and as the model's context allows.

        `sampled_token_ids` are the new tokens of each row; without any, in a part of a prompt, it
        has no draft. `token_ids_cpu` [rows, longest] are the texts, of `num_tokens_no_spec` [rows].
        """
        drafts = []
        for i, sampled in enumerate(sampled_token_ids):
            row = token_ids_cpu[i, : int(num_tokens_no_spec[i])]
            k = min(self._k, self._longest - len(row) - 1)
            drafts.append(self._draft(row, len(sampled), k) if sampled and k > 0 else [])
        return drafts

    def _draft(self, row: Row, new: int, k: int) -> list[int]:
        """Return at most `k` tokens, up to an unknown id; [] on errors, the first one logged."""
        try:
            tokens = map(int, self._source.draft(row, new, k)[:k])
            return list(takewhile(range(self._vocab).__contains__, tokens))
        except Exception:
            if not self._failed:
                log.warning("a text has no draft, and no further warning follows", exc_info=True)
            self._failed = True
            return []


class RuleDrafts:
    """Drafts by a rule, with a drafter a text.

    A row is of the text that it continues, wherever that was: rows move, and preempted texts come
    back; `most` texts are kept. What precedes a text's first new tokens is taken for its prompt.
    """

    def __init__(self, spec: Spec, most: int) -> None:
        open_rule(spec)
        self._spec, self._most = spec, most
        self._texts: dict[bytes, list[tuple[list[int], Any]]] = {}  # tokens -> them, and drafter

    def draft(self, row: Row, new: int, k: int) -> Sequence[int]:
        """Return a chain, maybe of more than `k` tokens, after a text with `new` new last tokens.

        It goes on with the drafter of the text before them, else with a new one, whose prompt that
        text is; of too many texts the one that was kept first is dropped.
        """
        before = row[: len(row) - new]
        same = self._texts.pop(before.tobytes(), [])
        tokens, drafter = same.pop() if same else self._begin(before)
        if same:
            self._texts[before.tobytes()] = same
        tokens.extend(row[len(tokens) :].tolist())
        (draft,) = drafter.proposals(tokens, (k,))
        self._texts.setdefault(row.tobytes(), []).append((tokens, drafter))
        if len(self._texts) > self._most:
            del self._texts[next(iter(self._texts))]
        return draft  # type: ignore[no-any-return]

    def _begin(self, prompt: Row) -> tuple[list[int], Any]:
        tokens, drafter = prompt.tolist(), open_rule(self._spec)
        drafter.begin(tokens, Scores(torch.empty(0), {}))
        return tokens, drafter


class Script:
    """Drafts that a file names for each position of the answers to its prompts: an adversary.

    The file is JSON. Its `texts` are pairs [ids of a prompt, drafts], where drafts[i] follows i
    tokens of the answer; other texts have no drafts. It is read anew when it is replaced. It is
    written to `path` without texts, with what its writer needs to know `about` the server: `k` and
    `vocab`. Raises ValueError or KeyError for a file there that is no script, SpsError if it cannot
    be written.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path, self._read_at = path, 0
        self._drafts: dict[int, dict[bytes, list[list[int]]]] = {}  # by length, then prompt
        if path.exists():
            self._read()
        replace_file(path, msgspec.json.encode({**about, "texts": []}))

    def draft(self, row: Row, new: int, k: int) -> Sequence[int]:
        """Return drafts[i], uncut, i >= 1 tokens after the longest prompt that begins `row`; or ().

        A file that was replaced is read anew; ValueError, KeyError or OSError: it is no script.
        """
        if self._read_at != self._path.stat().st_mtime_ns:
            self._read()
        for length, by_prompt in self._drafts.items():
            drafts = by_prompt.get(row[:length].tobytes()) if length < len(row) else None
            if drafts is not None:
                return drafts[len(row) - length] if len(row) - length < len(drafts) else ()
        return ()

    def _read(self) -> None:
        self._read_at = self._path.stat().st_mtime_ns
        content = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Any])
        texts = msgspec.convert(content["texts"], list[tuple[list[int], list[list[int]]]])
        self._drafts = {length: {} for length in sorted({len(p) for p, _ in texts}, reverse=True)}
        for prompt, drafts in texts:
            self._drafts[len(prompt)][np.array(prompt, np.int32).tobytes()] = drafts
