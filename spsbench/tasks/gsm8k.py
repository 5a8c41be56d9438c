"""GSM8K: grade-school word problems (Cobbe et al. 2021, arXiv 2110.14168), by exact match.

A row is `{"question", "answer"}`, and the answer ends with a line `#### 18`. The answer of a model
after worked examples is extracted as the paper's authors do: the number behind the first `####`,
without thousands' commas (`exact_match`). An instruct model is asked to end with a line of `####`
and the number alone, and the last such line counts. Models without training in that form often end
with the number as well, so the last number of the text is a second metric (`exact_match_last`), as
in evaluation harnesses. Thoughts are no answer (`thoughts.MARKS`).
"""

import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from unicodedata import digit

from spsbench.errors import DataError
from spsbench.metrics.parity import average
from spsbench.settings.task import Metric, Sample
from spsbench.settings.thoughts import without_thinking
from spsbench.tasks.answers import UNMARKED
from spsbench.tasks.base import PromptTask
from spsbench.tasks.reader import FileRow, drop_repeated, read_rows

REPOSITORY, FILE = "openai/gsm8k", "main/test-00000-of-00001.parquet"
# A sign after a word or a number is a dash, and digits after a comma are a group only if three.
# A plain space parts such groups only behind `####`, where no other number follows.
_COMMAS = r", | \{,\} | \\, | [\u00a0\u2009\u202f]"
_NUMBER = r"""
    (?P<sign> (?<![\w)\]}%]) [-\u2212])?
    (?: \\?\$ (?P<inner_sign> [-\u2212])? )?
    (?:
        (?P<whole>
            \d{1,3} (?P<comma> COMMAS) \d{3} (?!\d)
            (?: (?P=comma) \d{3} (?!\d))*+
        | \d++ )
        (?P<fraction> \. \d++)?
    | (?<![\d.]) (?P<only_fraction> \. \d++) )
"""
NUMBER = re.compile(_NUMBER.replace("COMMAS", _COMMAS), re.VERBOSE)
MARKED = re.compile(
    r"\#{4} [\s*_=:]*+ (?: \\boxed\{ | \\\( )?" + _NUMBER.replace("COMMAS", rf"{_COMMAS} | [ ]"),
    re.VERBOSE,
)
NEXT_QUESTION = re.compile(r"\W{0,9}(?:question|problem|user|human)\b.{0,9}:", re.IGNORECASE)

WORD = re.compile(r"\w")
QUESTION = (
    "{question}\n\nThink step by step. End your answer with a line that holds only #### and the "
    "number."
)
EXAMPLES = Path(__file__).with_name("gsm8k_examples.txt").read_text(encoding="utf-8")
"""Two worked examples in the form of the data, written for this package."""


class Gsm8k(PromptTask):
    """GSM8K: the problems of a file, or the test split of the hub."""

    name, form = "gsm8k", "two-shot-1"
    data, hub = "data", ("hub",)
    nucleus = MappingProxyType({"top_p": 0.95, "temperature": 0.8})
    stop: tuple[str, ...] = ("\nQuestion:", "\n\n")
    metrics = ("exact_match", "exact_match_last")
    # The margin is about three standard errors of the test split's 1,319 problems.
    quality = MappingProxyType({"exact_match": Metric(margin=0.04), "exact_match_last": Metric()})

    def __init__(self, data: str = "hub", max_new_tokens: int = 256) -> None:
        """Read the problems; ValueError: no new tokens. SpsError: unusable data, with the line.

        Args:
            data: `hub` is the test split of openai/gsm8k (1,319 problems); anything else is a path
                to JSONL (perhaps gzipped), parquet, or a folder that `datasets` loads.
            max_new_tokens: maximum number of tokens to generate.
        """
        from spsbench.models.hub import fetch_file

        path = fetch_file(REPOSITORY, FILE) if data == "hub" else Path(data).expanduser()
        read = ((row.where, _sample(number, row)) for number, row in enumerate(read_rows(path)))
        samples, _ = drop_repeated(read)
        if not samples:
            raise DataError(f"no problems ({path}): expected one a line. Check the path")
        source = f"{REPOSITORY} at {path.parts[-3][:8]}" if data == "hub" else str(path)
        self.hold(f"GSM8K, {len(samples):,} problems of {source}", samples, max_new_tokens)

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """Return 1.0 or 0.0 for each metric, from an answer without its thoughts.

        `exact_match`: the number behind `####` is the reference; `exact_match_last`: so is that or,
        without one, the last number of the answer; `unmarked`: there is none behind `####`.
        """
        answer = without_thinking(completion)
        marked = final_number(answer) if self.is_asked else marked_number(answer)
        expected = sample.reference
        return {
            "exact_match": float(marked == expected),
            "exact_match_last": float((marked or last_number(answer)) == expected),
            UNMARKED: float(marked is None),
        }

    @staticmethod
    def combine(scores: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
        """Return the mean over the repeats of each metric that tables show."""
        return {name: values for name, values in average(scores).items() if name != UNMARKED}

    def prompt(self, text: str) -> str:
        """Return a question as a message, or after two worked examples."""
        if self.is_asked:
            return QUESTION.format(question=text)
        return f"{EXAMPLES}Question: {text}\nAnswer:"


def marked_number(text: str) -> str | None:
    """Return the number behind the first `####` of `text`, as `plain_number`, or None."""
    match = MARKED.search(text)
    return None if match is None else plain_number(match)


def final_number(text: str) -> str | None:
    """Return the number, as `plain_number`, of the last line that is `####` and a number alone.

    After such a line a line that asks a next question ends the text. Without such a line it is the
    number behind the last `####`; None: there is none.
    """
    number = None
    for line in text.splitlines():
        if number is not None and NEXT_QUESTION.match(line):
            break
        match = MARKED.search(line)
        if match is not None and not WORD.search(line[: match.start()] + line[match.end() :]):
            number = plain_number(match)
    last = deque(MARKED.finditer(text), maxlen=1) if number is None else ()
    return plain_number(last[0]) if last else number


def last_number(text: str) -> str | None:
    """Return the last number of `text`, as `plain_number`, or None."""
    match = deque(NUMBER.finditer(text), maxlen=1)
    return plain_number(match[0]) if match else None


def plain_number(match: re.Match[str]) -> str:
    """Return a number in digits alone: `-$1,200.00` is `-1200`, `.5` is `0.5`, `007` is `7`."""
    whole = digits(match["whole"] or "").lstrip("0") or "0"
    fraction = digits(match["fraction"] or match["only_fraction"] or "").rstrip("0")
    number = f"{whole}.{fraction}" if fraction else whole
    return f"-{number}" if (match["sign"] or match["inner_sign"]) and number != "0" else number


def digits(text: str) -> str:
    """Return the digits of a text, of whatever script, without what separates them."""
    return "".join(str(digit(character)) for character in text if character.isdecimal())


def _sample(number: int, row: FileRow) -> Sample:
    """Return a row as a sample, by its id or `number`; DataError: no question, no marked answer."""
    if (reference := marked_number(row.text("answer"))) is None:
        raise DataError(
            f"'answer' ({row.where}): expected a line '#### NUMBER' at its end. Correct the line"
        )
    name = row.name("id") if "id" in row.values else f"gsm8k/{number}"
    return Sample(name, row.text("question").strip(), reference)
