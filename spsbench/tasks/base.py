"""The base of tasks whose samples are read at once: plain prompts, or messages by `instruct`."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from spsbench.errors import DataError
from spsbench.metrics.parity import average
from spsbench.settings.task import Fits, Sample, Task
from spsbench.tasks.reader import digest_of


class PromptTask(Task):
    """A task of prompts that are never cut. Its constructor ends with `hold`."""

    form: ClassVar[str] = "raw-1"  # version of how a plain prompt is laid out
    hub: ClassVar[tuple[str, ...]] = ()  # values of `data` that may need a hub, the default first
    is_asked = False  # whether each prompt is a message to an instruct model

    def hold(self, title: str, samples: Sequence[Sample], max_new_tokens: int) -> None:
        """Keep title, samples (texts of the data as prompts), length; ValueError: no new tokens."""
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}: expected 1 or more")
        self.title, self._samples, self.max_new_tokens = title, samples, max_new_tokens
        self._set_version()

    def prompt(self, text: str) -> str:
        """Return the prompt of a text of the data."""
        return text

    def parts(self) -> Iterable[str]:
        """Yield the texts that the version of the prompts depends on."""
        return (text for s in self._samples for text in (s.id, self.prompt(s.prompt)))

    def instruct(self) -> Self:
        """Return the same task as messages, without examples or stop strings."""
        task = copy.copy(self)
        task.is_asked, task.stop = True, ()
        task._set_version()
        return task

    def _set_version(self) -> None:
        form = "ask-1" if self.is_asked else self.form
        self.prompt_version = f"{form}-{digest_of(self.parts())[:8]}"

    def samples(self, fits: Fits) -> Iterator[Sample]:
        """Yield all samples in the order of the data; DataError: one does not fit the context."""
        for sample in self._samples:
            prompted = replace(sample, prompt=self.prompt(sample.prompt))
            if not fits(prompted):
                raise DataError(
                    f"prompt {sample.id!r} ({self.title}): expected it to fit the context with "
                    f"{self.max_new_tokens} tokens to come. Ask for fewer, or choose models with "
                    "a longer one"
                )
            yield prompted

    @classmethod
    def online(cls, arguments: Mapping[str, Any]) -> bool:
        """Return whether these arguments may need a hub."""
        return arguments.get("data", *cls.hub[:1]) in cls.hub

    @staticmethod
    def combine(scores: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
        """Return each metric's mean over the repeats of each sample."""
        return average(scores)
