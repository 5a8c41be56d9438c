"""What cannot be meant: the exit code and the one line of each command in `tests/refusals.toml`.

`pytest -n 0 tests/test_refusals.py --approve` rewrites lines that changed, to be read as a diff.
"""

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

import spsbench
from spsbench.errors import Exit
from tests.adapters import faulty_adapters
from tests.folders import edit, random_model
from tests.heads import writers

TABLE = Path(__file__).with_name("refusals.toml")
ROWS = [
    pytest.param(Exit[code.upper()], command, line, id=command)
    for code, rows in tomllib.loads(TABLE.read_text("utf-8")).items()
    for command, line in rows.items()
]


@pytest.fixture(scope="module")
def places(pair, tmp_path_factory):
    """Name in the table -> a path: models, heads, files with one fault, an empty folder."""
    folder = tmp_path_factory.mktemp("refused")
    model = random_model(scale=0.5, num_hidden_layers=6)
    made = {"target": pair.target, "draft": pair.draft, "package": spsbench.__path__[0]}
    for name, more in (("eagle3", {}), ("eagle", {}), ("falcon", {"recurrence": ""})):
        made[name] = str(getattr(writers, name)(folder / name, model, **more))
    made["pickle"] = str(writers.eagle(folder / "pickle", model, pickle=True))
    made["other"] = str(writers.speculators(folder / "other", random_model(hidden_size=40)))
    made["adapters"] = str(faulty_adapters(folder / "adapters", Path(pair.target)))
    for field, value in re.findall(r"{damaged}/(\w+)=(\d+)'", TABLE.read_text("utf-8")):
        place = shutil.copytree(pair.target, folder / "damaged" / f"{field}={value}")
        edit(place / "config.json", **{field: int(value)})
    made["damaged"] = str(folder / "damaged")
    line = '{"task_id": "HumanEval/0", "completion": ""}\n'
    texts = {"empty": "", "some": line, "ids": '{"token_ids": [1, 2]}'}
    for name, text in {**texts, "unknown": line.replace("/0", "/999")}.items():
        (folder / f"{name}.jsonl").write_text(text)
        made[name] = str(folder / f"{name}.jsonl")
    return made


@pytest.mark.needs_fast
@pytest.mark.parametrize(("code", "command", "line"), ROWS)
def test_a_refusal_is_one_line(sps, places, code, command, line, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    ran = sps(*(word.format(**places) for word in shlex.split(command)))
    said = ran.err
    for name, path in sorted(places.items(), key=lambda item: -len(item[1])):
        said = said.replace(path, f"{{{name}}}")
    said = re.sub(r"See .+ (\S+ --help)$", r"See sps \1", said.removesuffix("\n"))
    said = said.removeprefix("error: ")
    if request.config.getoption("approve") and said != line:
        old, new = (f"'{command}' = {json.dumps(text)}" for text in (line, said))
        TABLE.write_text(TABLE.read_text("utf-8").replace(old, new), "utf-8")
        line = said
    assert (ran.code, ran.out, said) == (code, "", line)
    assert ran.err.startswith("error: ")
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []
