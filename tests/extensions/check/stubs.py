"""Weights and servers of checks."""

from dataclasses import replace

import numpy as np

from spsbench.extensions.check.check import examine_server
from spsbench.extensions.check.options import CheckOptions
from spsbench.extensions.check.weights import LocalModel
from spsbench.settings.options import parse
from tests.oracles.stub import DEFECTS, SIZE, TARGET, serving

UNSEEN = ("temperature not applied to the draft", "first token drawn twice")
SEEN = [defect for defect in DEFECTS if defect not in UNSEEN]
TEXT = ("law", "greedy")


def encode(text):
    return [sum(word.encode()) % SIZE for word in text.split()]


def weights(logits=TARGET, **more):
    def score(prompt, tokens):
        return logits[[prompt[-1], *tokens[:-1]]] if tokens else np.zeros((0, SIZE))

    given = {"name": "table", "score": score, "encode": encode, "chat": encode}
    texts = [f" w{i}" for i in range(SIZE)]
    return LocalModel(**{**given, "texts": texts, "ends": frozenset(), **more})


RENAMED = {"length": "max_new_tokens", "most": "max_tokens", "parts": "only"}


def Plan(url, **options):  # noqa: N802
    """The options of a check of `url`, by short names."""
    direct = {"texts": options.pop("prompts")} if "prompts" in options else {}
    options = {RENAMED.get(name, name): value for name, value in options.items()}
    if "temperatures" in options:
        options["temperature"] = tuple(map(str, options.pop("temperatures")))
    (plan,) = parse(options, CheckOptions)
    return replace(plan, url=url, **direct)


def check(url, scored=None, draft=None, journal=None, **more):
    given = {"parts": TEXT, "bias": 0.15, "length": 16, "retries": 1, **more}
    names = {"weights": scored and scored.name, "draft": draft and draft.name}
    return examine_server(Plan(url, **names, **given), scored, journal, draft=draft)


def of_stub(stub, scored=None, draft=None, **more):
    with serving(stub) as url:
        return check(url, scored, draft, **more)
