"""An adversary: a vLLM that drafts what this check writes into its script, scenario by scenario.

The server's proposer (`spsbench.extensions.vllm`) was started with the script, a file of prompts
with the drafts at each position of their answers, and reads it anew where it changes. Greedy texts
must be those that the server writes without drafts; sampled ones are bet on as usual.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import msgspec

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.errors import DataError
from spsbench.extensions.check.bets import SampledResult
from spsbench.extensions.check.greedy import ServerGreedy, compare_served
from spsbench.extensions.check.modes import long_prompt
from spsbench.extensions.check.sampled import Sampled
from spsbench.extensions.check.texts import GREEDY, OWN, CheckTexts, why_unexercised
from spsbench.extensions.check.weights import LocalModel
from spsbench.serving.engines import Answer, Ask
from spsbench.store.atomic import replace_file
from spsbench.untrusted import read_json

END, STOP = "end token", "stop string"
SAMPLED = ("rare", "fuzz", "right", "special")
STOP_LENGTH = 6  # characters, which several tokens write


class Adversary:
    """Scenarios of a check; `truths` are greedy answers without drafts, half of long prompts."""

    def __init__(self, texts: CheckTexts) -> None:
        self.texts, self.path, self.truths = texts, Path(str(texts.plan.adversary)), list[Answer]()
        journal, key, what = texts.journal, "connected/adversary", "a script, as vLLM writes it"
        about = read_json(self.path, what) if journal.asks else journal.read(key, dict)
        if not isinstance(about, dict) or not {"k", "vocab"} <= about.keys():
            raise DataError(f"no script ({self.path}, `adversary`): expected {what} at its start")
        self.k, self.vocab = int(about["k"]), int(about["vocab"])
        journal.note(key, {"k": self.k, "vocab": self.vocab})
        ends = texts.weights.ends if texts.weights else ()
        self.rare = self.special = [*sorted(ends), 0, 1, 2, self.vocab - 1]

    async def run(self, draft: LocalModel | None) -> dict[str, ServerGreedy | SampledResult]:
        """Play the scenarios of the parts; return "NAME, greedy" or "NAME, sampled" -> its result.

        The greedy answers without drafts come first and are kept in `truths`, and ids that are in
        none of their rows in `rare`. A sampled scenario that cannot be audited is left out; `draft`
        (None: unknown), the server's draft model, adds a bet to each. The script is without drafts
        in the end, also after an error.
        """
        texts, plan, parts = self.texts, self.texts.plan, self.texts.plan.parts
        results: dict[str, ServerGreedy | SampledResult] = {}
        prompts = [long_prompt(plan.texts, i) if i % 2 else p for i, p in enumerate(plan.texts)]
        asks = [texts.ask(OWN, i, 0.0, prompt) for i, prompt in enumerate(prompts[:GREEDY])]
        try:
            self._play("")
            longer = [replace(ask, tokens=ask.tokens + self.k + 1) for ask in asks]
            self.truths = await self._answers_to("none", longer)
            likely = {key for text in self.truths for row in text.stated for key, _ in row}
            likely |= {f"#{i}" for text in self.truths for i in text.ids or ()}
            rare = [i for i in reversed(range(self.vocab)) if f"#{i}" not in likely]
            self.rare = rare or self.special  # all of a tiny vocabulary may be likely
            for name in self._drafts(0, 0) if "greedy" in parts else ():
                results[f"{name}, greedy"] = await self._greedy(name, asks)
            for name in SAMPLED if "law" in parts else ():
                self._play(name)
                some, level = tuple(prompts[:GREEDY:2]), plan.level / len(SAMPLED)
                under = replace(plan, prompts=None, texts=some, level=level)
                sampled = Sampled(replace(texts, plan=under), draft)
                sampled.kind = sampled.part = f"adversary {name} sampled"
                if result := await sampled.audit():
                    results[f"{name}, sampled"] = result
        finally:
            self._play("")
        return results

    async def _greedy(self, name: str, asks: Sequence[Ask]) -> ServerGreedy:
        """Play `name`; return how its greedy texts compare with `truths`.

        In `END` a token half-way through each text ends it, in `STOP` a string from its first third
        on; texts of `STOP` are compared letter by letter. `doubts` of the result say why HELD is in
        doubt where no token is known to have been drafted.
        """
        texts, whole = self.texts, [text.text for text in self.truths]
        bases = [first_tokens(text, asks[0].tokens) for text in self.truths]
        before, count = await texts.counters(), len(texts.answers)
        if name == END:
            # half-way through the text, at each place of a draft in turn
            places = [len(t.keys) // 2 - i % (self.k + 1) for i, t in enumerate(bases)]
            ends = [t.ids[i] if t.ids else 0 for t, i in zip(bases, places, strict=True)]
            asks = [replace(ask, stop_ids=(i,)) for ask, i in zip(asks, ends, strict=True)]
            cuts = [(base.ids or [i]).index(i) + 1 for base, i in zip(bases, ends, strict=True)]
            bases = list(map(first_tokens, bases, cuts))
        if name == STOP:
            stops = [text[len(text) // 3 :][:STOP_LENGTH] for text in whole]
            asks = [replace(ask, stop=(stop,)) for ask, stop in zip(asks, stops, strict=True)]
            bases = [in_letters(t.partition(s)[0]) for t, s in zip(whole, stops, strict=True)]
        self._play(name)
        answers = await self._answers_to(name, asks)
        drafts = await texts.drafts(f"adversary {name}", before, texts.answers[count:])
        compared = [in_letters(text.text) for text in answers] if name == STOP else answers
        result = compare_served("the same server without drafts", bases, compared)
        result.reference += f", {drafts.accepted:,.0f} drafted tokens accepted" if drafts else ""
        if why := why_unexercised(drafts, sum(text.tokens for text in answers)):
            result.doubts[AuditVerdict.HELD] = why
        return result

    async def _answers_to(self, name: str, asks: Sequence[Ask]) -> list[Answer]:
        keyed = [(f"adversary {name}/{i}", ask) for i, ask in enumerate(asks)]
        return await self.texts.answers_to(OWN, keyed)

    def _play(self, name: str) -> None:
        """Write the drafts of scenario `name` (none of "") into the script if a server is asked."""
        if self.texts.journal.asks:
            places = range(self.texts.plan.max_new_tokens)
            tables = [
                (text.prompt_ids, [self._drafts(i, at).get(name, []) for at in places])
                for i, text in enumerate(self.truths)
            ]
            script = {"k": self.k, "vocab": self.vocab, "texts": tables}
            replace_file(self.path, msgspec.json.encode(script))

    def _drafts(self, number: int, at: int) -> Mapping[str, list[int]]:
        """Return scenario -> the ids to draft after `at` tokens of the answer to prompt `number`.

        All scenarios are there, in the order of play. Right and wrong ids are none past the end of
        the answer in `truths`. A hash gives lengths and places of errors: none falls into step.
        """
        right = (self.truths[number].ids or [])[at : at + self.k]
        turn = crc32(f"{number} {at}".encode())
        place, length = turn % (self.k + 1), (turn >> 8) % (self.k + 1)
        wrong = [(token + 1) % self.vocab for token in right]
        wrong_at = [right[:j] + wrong[j : j + 1] + right[j + 1 :] for j in range(self.k + 1)]
        cycles = (self.rare, self.special)
        rare, special = ([ids[(at + j) % len(ids)] for j in range(self.k)] for ids in cycles)
        fuzz = wrong_at[place][:length]
        return {
            "right": right,  # beyond the end of the text as well
            "wrong": wrong,
            **{f"wrong at {j + 1}": wrong_at[j] for j in range(self.k)},
            "turning": wrong_at[place],
            "rare": rare,
            "lengths": right[:length],
            "fuzz": fuzz,
            "neighbours": (fuzz, right, rare, right[:length])[number % 4],
            "special": special,
            "end inside": [*right[:1], self.special[0], *right[2:]],  # where the target has none
            END: right,
            STOP: right[:length],
            "right again": right,  # these prompts are in the server's prefix cache
        }


def first_tokens(text: Answer, n: int) -> Answer:
    """Return an answer cut to its first `n` tokens, without their text."""
    keys, logprobs, stated = text.keys[:n], text.own[:n], text.stated[:n]
    first = replace(text, keys=keys, own=logprobs, stated=stated, ids=(text.ids or [])[:n])
    return replace(first, text="", spelled="", count=n)


def in_letters(text: str) -> Answer:
    """Return an answer whose tokens are the letters of a text, so that a longer one is a bug."""
    return Answer(text, list(text), [], [], None)
