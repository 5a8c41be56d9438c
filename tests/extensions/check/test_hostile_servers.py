"""`sps check` beside servers that send anything: one line, no traceback, no end."""

from collections import Counter
from itertools import islice

import pytest

from spsbench.errors import Exit
from tests.oracles import hostile
from tests.oracles.hostile import KEY, ended_well, sending
from tests.oracles.stub import Engine, Stub, serving

FEW = "--max-tokens 64 -n 2 --concurrency 1 --requests 1 --bias 0.9 --timeout 20 --retries 0"


def stubs():
    """A name, a stub and options of each hostile answer, twice, and of each hostile page."""
    for first in (0, 7):
        for kind, name, content in islice(hostile.answers(), first, None, 59):
            schema = "sglang" if kind.startswith("generate") else "vllm"
            trouble = sending(content, stream=kind.endswith("stream"), first=first)
            options = ("--format", "json", *["--chat"] * kind.startswith("chat"))
            yield (kind, name), Stub(Engine(), schema, trouble=trouble), options
    for path, name, content in islice(hostile.pages(), 0, None, 23):

        def page(http, content=content):
            http.send_response(200)
            http.send_header("content-type", "application/json; charset=rot13")
            http.send_header("content-length", str(len(content)))
            http.end_headers()
            http.wfile.write(content)

        yield (path, name), Stub(pages={path: page}), ("--only", "greedy")


@pytest.mark.slow
def test_check_ends_in_one_line_whatever_a_server_sends(sps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPS_API_KEY", KEY)
    codes: Counter[int] = Counter()
    for name, stub, options in stubs():
        with serving(stub) as url:
            ran = sps("check", url, *FEW.split(), *options)
        ended_well(ran, name, tmp_path)
        codes[ran.code] += 1
        for path in tmp_path.iterdir():
            path.unlink()
    assert codes[Exit.DATA] > 10, codes
