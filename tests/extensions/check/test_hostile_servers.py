"""`sps check` beside servers that send anything: one line, no traceback, no end."""

from collections import Counter
from itertools import islice

import pytest

from spsbench.errors import Exit
from tests.cli.test_hostile_servers import KEY, ended_well, sending
from tests.serving import hostile
from tests.serving.stub import Engine, Stub, serving

ONCE = ("--timeout", "20", "--retries", "0")


def check(sps, url, *more):
    few = (
        "--max-tokens",
        "64",
        "-n",
        "2",
        "--concurrency",
        "1",
        "--requests",
        "1",
        "--bias",
        "0.9",
    )
    return sps("check", url, *few, *ONCE, *more)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 7])
def test_check_ends_in_one_line_whatever_an_answer_is(sps, tmp_path, monkeypatch, first):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPS_API_KEY", KEY)
    codes: Counter[int] = Counter()
    for kind, name, content in islice(hostile.answers(), first, None, 59):
        schema = "sglang" if kind.startswith("generate") else "vllm"
        chat = ("--chat",) if kind.startswith("chat") else ()
        trouble = sending(content, stream=kind.endswith("stream"), first=first)
        with serving(Stub(Engine(), schema, trouble=trouble)) as url:
            ran = check(sps, url, *chat, "--format", "json")
        ended_well(ran, (kind, name), tmp_path)
        codes[ran.code] += 1
        for path in tmp_path.iterdir():
            path.unlink()
    assert codes[Exit.DATA] > 5, codes


@pytest.mark.slow
def test_check_ends_in_one_line_whatever_a_page_is(sps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPS_API_KEY", KEY)
    for path, name, content in islice(hostile.pages(), 0, None, 23):

        def page(http, content=content):
            http.send_response(200)
            http.send_header("content-type", "application/json; charset=rot13")
            http.send_header("content-length", str(len(content)))
            http.end_headers()
            http.wfile.write(content)

        with serving(Stub(pages={path: page})) as url:
            ran = check(sps, url, "--only", "greedy")
        ended_well(ran, (path, name), tmp_path)
