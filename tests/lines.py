"""The size of each room of the package, held by numbers: `python -m tests.lines`.

The numbers are `[tool.spsbench.lines]` of pyproject.toml; `--write` lowers them to today's sizes,
and raises those of the rooms that are named after it.
"""

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Collection
from pathlib import Path

TABLE = re.compile(r"(?<=^\[tool\.spsbench\.lines\]\n)(?:.+\n)*", re.MULTILINE)


def measure(root: Path) -> Counter[str]:
    """Return lines of Python by room, lines of C, modules and classes, and words of documents."""
    sizes: Counter[str] = Counter()
    for source in sorted(root.glob("spsbench/**/*.py")):
        folders = source.relative_to(root / "spsbench").parts[:-1]
        room = "/".join(folders[: 2 if folders[:1] == ("extensions",) else 1]) or "top"
        text = source.read_text(encoding="utf-8")
        sizes[room] += text.count("\n")
        sizes["modules"] += 1
        sizes["classes"] += len(re.findall(r"^\s*class \w", text, re.MULTILINE))
    for name, pattern in (("C", "spsbench/**/*.[ch]"), *((d, f"{d}/**/*.py") for d in BESIDE)):
        sizes[name] = sum(p.read_text(encoding="utf-8").count("\n") for p in root.glob(pattern))
    sizes["words of docs"] = sum(len(p.read_text().split()) for p in root.glob("docs/**/*.md"))
    return sizes


BESIDE = ("tests", "benchmarks", "recipes")


def main(root: Path, write: bool, raised: Collection[str] = ()) -> int:
    """Print room, size and number; return 1 where a size is above its number or has none.

    With `write` numbers fall to sizes, and those of the `raised` rooms rise to them.
    """
    path = root / "pyproject.toml"
    sizes, text = measure(root), path.read_text(encoding="utf-8")
    limits = tomllib.loads(text)["tool"]["spsbench"]["lines"]
    if write:
        limits = {
            room: size if room in raised else min(limits.get(room, size), size)
            for room, size in sizes.items()
        }
        path.write_text(TABLE.sub("".join(f'"{k}" = {v}\n' for k, v in limits.items()), text))
    for room, size in sizes.items():
        excess = size - limits.get(room, 0)
        print(f"{room:22}{size:8,}{limits.get(room, 0):8,}{f'   {excess} above' * (excess > 0)}")
    return int(any(size > limits.get(room, 0) for room, size in sizes.items()))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent.parent, "--write" in sys.argv, sys.argv[1:]))
