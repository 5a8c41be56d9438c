"""Outputs of earlier generations, for drafters that look up in them."""

from collections.abc import Sequence

from spsbench.methods.drafters.lookup.automaton import SuffixAutomaton

MOST = 100_000  # tokens that are kept: about 60 MB


class EarlierTexts:
    """An automaton of the outputs that were made for other prompts than the present one.

    Answers to the same prompt are left out: a benchmark that repeats a prompt would else find its
    own answer. The oldest outputs are forgotten when there are more than `most` tokens.
    """

    def __init__(self, most: int = MOST) -> None:
        self.automaton = SuffixAutomaton()
        self._most = most
        self._texts: list[tuple[tuple[int, ...], Sequence[int]]] = []  # prompt, and with output
        self._indexed: list[int] = []  # which of them are in the automaton
        self._prompt: tuple[int, ...] = ()
        self._seen: Sequence[int] = ()  # the text that is being made

    def begin(self, prompt: Sequence[int]) -> None:
        """Keep the text made so far, and look up for `prompt` from now on."""
        if len(self._seen) > len(self._prompt):
            self._texts.append((self._prompt, list(self._seen)))
        self._seen, self._prompt = (), tuple(prompt)
        dropped = self._forget()
        wanted = [i for i, (of, _) in enumerate(self._texts) if of != self._prompt]
        if dropped or self._indexed != wanted[: len(self._indexed)]:
            self.automaton, self._indexed = SuffixAutomaton(), []
        for index in wanted[len(self._indexed) :]:
            of, text = self._texts[index]
            self.automaton.begin()
            self.automaton.add(text[len(of) :])
        self._indexed = wanted

    def watch(self, text: Sequence[int]) -> None:
        """Prompt and output so far; it may grow after the call, and is read when it is done."""
        self._seen = text

    def _forget(self) -> bool:
        """Drop the oldest texts above the limit; down to half of it, so that this is rare."""
        sizes = [len(text) - len(of) for of, text in self._texts]
        if sum(sizes) <= self._most:
            return False
        while sum(sizes) > self._most // 2:
            sizes.pop(0)
            self._texts.pop(0)
        return True
