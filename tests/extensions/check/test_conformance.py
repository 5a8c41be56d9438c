"""Matrices of servers: rows run, rows that cannot be run say why, and the others go on."""

import gzip
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from spsbench.errors import Exit, MissingError, UsageError
from spsbench.extensions.check.conformance import mode_of, run_matrix, run_row
from spsbench.extensions.check.matrix import read_matrix
from spsbench.extensions.check.served import Servers, last_words
from tests.cli.conftest import sps  # noqa: F401
from tests.extensions.check.test_check import weights
from tests.serving.stub import Engine, Stub, serving

ROOT = Path(__file__).parents[3]
QUICK = 'only = ["law"]\nmax_new_tokens = 32\nbias = 0.3\nretries = 0\n'
SERVER = """
import os, socket, sys, time
from tests.extensions.check.test_check import weights
from tests.serving.stub import Engine, Stub, handler_of
from http.server import ThreadingHTTPServer

def dies(number, http):
    if number == int(os.environ.get("ENDS_AFTER", "1000")) + 1:
        print("no more today", flush=True)
        http.connection.shutdown(socket.SHUT_RDWR)
        time.sleep(0.5)  # a large process ends later than its connections
        os._exit(9)

stub = Stub(Engine(), trouble=dies)
ThreadingHTTPServer.handle_error = lambda *_: None  # of requests that their client gave up
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler_of(stub)).serve_forever()
"""


def written(tmp_path, rows, defaults=QUICK, engine='name = "Stub 0.33"\nversion = "0.33.0"\n'):
    path = tmp_path / "matrix.toml"
    path.write_text(f"[engine]\n{engine}[defaults]\n{defaults}" + rows)
    return path


def run(tmp_path, rows, **more):
    return run_matrix(read_matrix(written(tmp_path, rows, **more), {}), tmp_path / "run")


def test_rows_are_checked_and_the_table_shows_them(tmp_path):
    refused = Stub(Engine(), trouble=lambda _, http: bool(http.send({"error": "min_p"}, 400)) or 1)
    biased = Stub(Engine(defect="verifies greedily"))
    with serving(Stub(Engine())) as honest, serving(biased) as bad, serving(refused) as no:
        rows = f"""
[[row]]
name = "honest"
url = "{honest}"
method = "draft|model"
k = 3
speculates = true
upstream = "#1, open"
[[row]]
name = "biased"
url = "{bad}"
twin = "honest"
[[row]]
name = "refused"
url = "{no}"
[[row]]
name = "nobody"
url = "http://127.0.0.1:9"
[[row]]
name = "not-here"
skip = "no CUDA"
twin = "none"
"""
        results = run(tmp_path, rows)
    assert [r.verdict.partition(":")[0] for r in results] == [
        *("held", "bias found", "not run", "not run", "not run")
    ]
    assert "400" in results[2].why
    assert "no server" in results[3].why
    table = (tmp_path / "run" / "table.md").read_text()
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(lines) == 6
    assert lines[1].startswith("| honest | draft\\|model | 3 | table | T 1 | stated |")
    assert "no twin could be had" in lines[-1]
    assert "sps check http" in table
    kept = gzip.decompress((tmp_path / "run" / "honest.jsonl.gz").read_bytes())
    assert b'"sps_check"' in kept.splitlines()[0]


def test_progress_names_the_row_and_its_part(tmp_path):
    shown = []
    with serving(Stub(Engine())) as url:
        rows = "".join(
            f'[[row]]\nname = "{name}"\nurl = "{url}"\nonly = ["greedy"]\n' for name in "ab"
        )
        matrix = read_matrix(written(tmp_path, rows), {})
        run_matrix(matrix, tmp_path / "run", watch=lambda pace: shown.append(str(pace)))
    assert shown[0] == "row 1 of 2, a: its server starts"
    last = "row 2 of 2, b: greedy texts of the server 8/8"
    assert any(line.startswith(last) for line in shown)


def test_a_row_with_a_result_is_not_run_again(tmp_path):
    stub = Stub(Engine())
    with serving(stub) as url:
        rows = f'[[row]]\nname = "one"\nurl = "{url}"\n'
        run(tmp_path, rows)
        asked = len(stub.asked)
        (again,) = run(tmp_path, rows)
    assert len(stub.asked) == asked
    assert again.held


@pytest.mark.parametrize(
    ("k", "words"), [(0, "plain server where speculation is claimed"), (3, "held")]
)
def test_a_plain_server_is_told_from_one_that_speculates(tmp_path, k, words):
    with serving(Stub(Engine(k=k))) as url:
        (result,) = run(tmp_path, f'[[row]]\nname = "a"\nurl = "{url}"\nspeculates = true\n')
    assert result.verdict.startswith(words)
    assert result.held is (k > 0)


def test_another_version_is_said(tmp_path):
    with serving(Stub(Engine())) as url:
        rows = f'[[row]]\nname = "a"\nurl = "{url}"\n'
        (result,) = run(tmp_path, rows, engine='version = "0.34.1"\n')
    assert result.remarks == ["the server says vllm 0.33.0, the matrix 0.34.1"]


def test_an_engine_that_dies_in_the_middle_leaves_the_others_running(tmp_path):
    dying, honest = Stub(Engine(), ends_after=12), Stub(Engine())
    with serving(dying) as one, serving(honest) as two:
        rows = f'[[row]]\nname = "dies"\nurl = "{one}"\n[[row]]\nname = "lives"\nurl = "{two}"\n'
        results = run(tmp_path, rows)
    assert results[0].verdict.startswith("not run: sampled texts")
    assert results[1].held
    assert (tmp_path / "run" / "dies.jsonl").is_file()  # its answers, to go on from


def test_a_row_whose_server_died_goes_on_where_it_was(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    rows = f"""
[[row]]
name = "a"
serve = ["{sys.executable}", "{script}", "{{port}}"]
environment = {{PYTHONPATH = "{ROOT}", ENDS_AFTER = "16"}}
"""
    (died,) = run(tmp_path, rows)
    assert "the server ended with 9 in the middle, no more today: sampled texts" in died.why
    kept = (tmp_path / "run" / "a.jsonl").read_bytes()
    assert kept.count(b'"server/sampled/') >= 4
    (result,) = run(tmp_path, rows.replace("16", "1000"))  # at another port
    assert result.held, result.why
    whole = gzip.decompress((tmp_path / "run" / "a.jsonl.gz").read_bytes())
    assert whole.startswith(kept)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("\n\xff one\ntwo\n\n", ", two"),
        (
            "WARNING errors like `OSError: [Errno 24]`\n"
            "(EngineCore pid=7) ERROR 11-26 04:46:58 [core.py:1] ValueError: no drafter\n"
            "  of this name\nRuntimeError: see above\n",
            ", (EngineCore pid=7) ERROR 11-26 04:46:58 [core.py:1] ValueError: no drafter of this"
            " name",
        ),
    ],
)
def test_the_reason_of_an_end_is_read_from_a_log(tmp_path, log, words):
    path = tmp_path / "server.log"
    path.write_text(log)
    assert last_words(path) == words
    assert last_words(tmp_path / "none.log") == ""


def test_rows_with_one_command_share_a_server(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    row = f"""
[[row]]
name = "NAME"
serve = ["{sys.executable}", "{script}", "{{port}}"]
environment = {{PYTHONPATH = "{ROOT}", OTHER = "WORD"}}
"""
    listed = (("a", "1"), ("b", "1"), ("c", "2"))
    rows = "".join(row.replace("NAME", name).replace("WORD", word) for name, word in listed)
    results = run(tmp_path, rows)
    assert all(result.held for result in results), [result.why for result in results]
    ports = [result.result["url"] for result in results]
    assert ports[0] == ports[1] != ports[2]
    assert [(tmp_path / "run" / f"{name}.log").is_file() for name in "abc"] == [True, False, True]


def test_a_request_that_an_engine_refuses_with_speculation_is_said(tmp_path):
    def refuses(number, http):
        if stub.asked[number - 1].get("top_k", 0) < 1:
            return False
        http.send({"error": {"message": "top_k is not yet supported with speculation"}}, 400)
        return True

    stub = Stub(Engine(), trouble=refuses)
    with serving(stub) as url, serving(Stub(Engine())) as two:
        rows = f"""
[[row]]
name = "cut"
url = "{url}"
weights = "table"
top_k = 5
[[row]]
name = "other"
url = "{two}"
"""
        matrix = read_matrix(written(tmp_path, rows), {})
        with Servers() as servers:
            cut, other = (
                run_row(matrix, row, tmp_path, servers, load=lambda name: weights())
                for row in matrix.rows
            )
    assert "HTTP 400" in cut.why
    assert "not yet supported with speculation" in cut.why
    assert other.held


def test_a_defect_of_this_program_in_a_row_leaves_the_others(tmp_path):
    def breaks(name):
        raise RuntimeError("a defect")

    with serving(Stub(Engine())) as url:
        rows = "".join(
            f'[[row]]\nname = "{name}"\nurl = "{url}"\n{more}'
            for name, more in (("bad", 'weights = "x"\n'), ("good", ""))
        )
        matrix = read_matrix(written(tmp_path, rows), {})
        with Servers() as servers:
            results = [run_row(matrix, row, tmp_path, servers, load=breaks) for row in matrix.rows]
    assert results[0].why == "a defect of this program (RuntimeError: a defect)"
    assert results[1].held


def test_a_server_without_a_version_is_said(tmp_path):
    with serving(Stub(Engine(), "openai")) as url:
        (result,) = run(tmp_path, f'[[row]]\nname = "a"\nurl = "{url}"\nspeculates = true\n')
    assert result.remarks == [
        "the server says openai, without a version, the matrix 0.33.0",
        "the engine tells nothing of its drafts",
    ]


def test_modes_and_evidence_stand_in_the_table(tmp_path):
    with serving(Stub(Engine())) as url:
        rows = (
            f'[[row]]\nname = "a"\nurl = "{url}"\nonly = ["greedy", "mixed", "seeds"]\n'
            'evidence = "evidence/stub"\n'
        )
        (result,) = run(tmp_path, rows)
    table = (tmp_path / "run" / "table.md").read_text()
    assert result.held
    assert "greedy, greedy beside sampled, seeds" in table
    assert "mixed against greedy texts in batches of their own: 8 identical; seeds: 8 of 8" in table
    assert "[a.jsonl.gz](evidence/stub/a.jsonl.gz)" in table


def test_a_server_is_started_by_its_command_and_ended(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    rows = f"""
[[row]]
name = "served"
serve = ["{sys.executable}", "{script}", "{{port}}"]
environment = {{PYTHONPATH = "{ROOT}"}}
[[row]]
name = "ends"
serve = ["{sys.executable}", "-c", "raise SystemExit(3)", "{{port}}"]
[[row]]
name = "missing"
serve = "no-such-program --port {{port}}"
"""
    served, ends, missing = run(tmp_path, rows)
    assert served.held, served.why
    assert "server.py" in served.result["command"]
    assert "{port}" not in served.result["command"]
    assert "the server ended with 3" in ends.why
    assert "no-such-program cannot be started" in missing.why


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("", "1 to 1000 tables"),
        ('[[row]]\nname = "a b"\nurl = "x"\n', "row 1: name"),
        ('[[row]]\nname = "a"\n', "`url`, or `serve`"),
        ('[[row]]\nname = "a"\nurl = "http://x"\nserve = "s {port}"\n', "`url`, or `serve`"),
        ('[[row]]\nname = "a"\nserve = "vllm serve"\n', "{port}"),
        ('[[row]]\nname = "a"\nserve = "\'"\n', "a command line"),
        ('[[row]]\nname = "a"\nurl = "http://x"\nbais = 0.1\n', "unknown bais"),
        ('[[row]]\nname = "a"\nurl = "http://x"\nbias = "much"\n', "bias"),
        ('[[row]]\nname = "a"\nurl = "http://x"\nkeep = "x"\n', "keep"),
        ('[[row]]\nname = "a"\nurl = "http://x"\ntwin = "b"\n', "twin b"),
        ('[[row]]\nname = "a"\nskip = "x"\n[[row]]\nname = "a"\nskip = "x"\n', "two rows a"),
        ("[[row]\n", "TOML"),
        ("[other]\n", "unknown other"),
    ],
)
def test_a_matrix_that_cannot_be_meant_is_one_line(tmp_path, rows, words):
    with pytest.raises(UsageError) as error:
        read_matrix(written(tmp_path, rows), {})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_no_file_is_said(tmp_path):
    with pytest.raises(MissingError):
        read_matrix(tmp_path / "none.toml", {})


def test_the_command_exits_by_the_worst_row(sps, tmp_path):  # noqa: F811
    rows = '[[row]]\nname = "not-here"\nskip = "no CUDA"\n'
    path, keep = written(tmp_path, rows), tmp_path / "run"
    ran = sps("check", "--conformance", str(path), "--keep", str(keep))
    assert ran.code == Exit.NOT_VALID
    assert "not run: no CUDA" in ran.out
    ran = sps("check", "--conformance", str(path), "--keep", str(keep), "--json")
    assert json.loads(ran.out)[0]["verdict"] == "not run: no CUDA"
    for wrong in (("check",), ("check", "http://x", "--conformance", str(path))):
        assert sps(*wrong).code == Exit.USAGE


def test_the_matrix_of_the_recipe_is_read():
    matrix = read_matrix(ROOT / "recipes" / "vllm" / "matrix.toml", {})
    assert {row.name for row in matrix.rows} >= {"plain", "ngram", "ngram-mended", "eagle3"}
    assert all(row.word("twin") for row in matrix.rows)
    servers = [(row.serve, tuple(row.environment.items())) for row in matrix.rows if row.serve]
    changes = sum(a != b for a, b in pairwise(servers))
    assert changes == len(set(servers)) - 1  # rows with one server stand together


def test_the_example_of_the_docs_is_read(tmp_path):
    page = (ROOT / "docs" / "audited" / "index.md").read_text()
    path = tmp_path / "matrix.toml"
    path.write_text(page.split("```toml\n")[1].split("```")[0].replace('"ngram-mended" ', '"none"'))
    row, modes = read_matrix(path, {}).rows
    assert modes.options.only == ("greedy", "mixed", "stop", "cache", "seeds")
    assert row.options.together == 8
    assert row.serve[-1].startswith('{"method": "ngram"')


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ('only = ["greedy"]\n', "greedy"),
        ('only = ["law"]\ntogether = 8\n', "T 1, batch 8"),
        ('weights = "nano"\ntop_p = 0.9\n', "T 1 and 0.5, top-p 0.9, greedy"),
        ("temperature = [1, 0]\n", "T 1 and 0, greedy"),
    ],
)
def test_the_mode_of_a_row_follows_its_options(tmp_path, options, mode):
    path = written(tmp_path, f'[[row]]\nname = "a"\nurl = "http://x"\n{options}', defaults="")
    assert mode_of(read_matrix(path, {}).rows[0]) == mode
