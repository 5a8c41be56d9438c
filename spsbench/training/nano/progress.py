"""Lines in the log while a model trains."""

from __future__ import annotations

import logging

log = logging.getLogger("nano")


class Progress:
    """Logs the mean loss and the tokens a second once every `every` steps."""

    def __init__(self, name: str, every: int) -> None:
        """Start counting."""
        self.name, self.every = name, every
        self.steps, self.loss, self.seconds = 0, 0.0, 0.0
        self.tokens: int | None = None

    def __call__(self, tokens: int, loss: float, seconds: float) -> None:
        """Take one step's tokens so far, loss in nats a token, and seconds."""
        if self.tokens is None:  # the first step of a process compiles: not for the rate
            self.tokens = tokens
            return
        self.steps, self.loss, self.seconds = (
            self.steps + 1,
            self.loss + loss,
            self.seconds + seconds,
        )
        if self.steps == self.every:
            rate = (tokens - self.tokens) / self.seconds
            mean = self.loss / self.steps
            log.info("%s %9d tokens  loss %.3f  %5.0f tok/s", self.name, tokens, mean, rate)
            self.steps, self.loss, self.seconds, self.tokens = 0, 0.0, 0.0, tokens
