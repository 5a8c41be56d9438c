"""The page in a real browser: a headless Chromium, driven by its own driver."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spsbench.reports.html import html, trace_page
from spsbench.reports.page.token_origins import trace
from spsbench.reports.run_tables import report_on
from spsbench.settings.records import DraftProbs, TreeRound
from tests.reports.pages import HOSTILE, Spelled, simulated

pytestmark = pytest.mark.browser
RESULTS = Path(__file__).parents[2] / "results"
BINARIES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def driver():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = next(filter(None, map(shutil.which, BINARIES)), None)
    service = shutil.which("chromedriver")
    if binary is None or service is None:
        pytest.skip("no Chromium here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    own = webdriver.Chrome(options=options, service=webdriver.ChromeService(service))
    yield own
    own.quit()


class Page:
    def __init__(self, driver: Any, file: Path, width: int = 1280) -> None:
        self.driver, self.file = driver, file
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get(file.as_uri())

    def run(self, code: str, *arguments: object) -> Any:
        return self.driver.execute_script(f"return {code}", *arguments)

    def keys(self, selector: str, *names: str) -> None:
        self.run("document.querySelector(arguments[0]).focus()", selector)
        for name in names:
            for kind in ("keyDown", "keyUp"):
                self.driver.execute_cdp_cmd(
                    "Input.dispatchKeyEvent", {"type": kind, "key": name, "code": name}
                )

    def clean(self) -> None:
        """Nothing on the console, and nothing was asked for but the file."""
        assert [line["message"] for line in self.driver.get_log("browser")] == []
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        asked = [
            e["params"]["request"]["url"]
            for e in events
            if e["method"] == "Network.requestWillBeSent"
        ]
        assert {url for url in asked if url != "data:,"} <= {self.file.as_uri()}
        assert self.run("document.documentElement.dataset.ready") == "yes"


def opened(driver, folder, text, width=1280):
    file = folder / "page.html"
    file.write_text(text, "utf-8")
    return Page(driver, file, width)


def test_the_viewer_obeys_its_keys(driver, tmp_path):
    page = opened(driver, tmp_path, html(report_on([RESULTS / "table1-nano"])))
    where = "document.querySelector('.controls output').textContent"
    rounds = int(page.run(where).rpartition(" ")[2])
    for names, expected in (
        (("ArrowRight",), 2),
        (("ArrowRight",), 3),
        (("ArrowLeft",), 2),
        (("End",), rounds),
        (("ArrowRight",), rounds),
        (("Home",), 1),
        (("ArrowLeft",), 1),
    ):
        page.keys(".stage", *names)
        assert page.run(where) == f"round {expected} of {rounds}"
    page.clean()


def test_hostile_tokens_stay_text(driver, tmp_path):
    record = next(r for r in simulated() if r.rounds[0].drafted)
    tokens = [i % len(HOSTILE) for i in range(len(record.tokens))]
    text = "".join(HOSTILE[token] for token in tokens)
    made = trace(
        replace(record, tokens=tokens, text=text), name="SpS", group="", tokenizer=Spelled()
    )
    page = opened(driver, tmp_path, trace_page(HOSTILE[0], [made], {}, [HOSTILE[1]]))
    spans = page.run("[...document.querySelectorAll('.text .token')].map((s) => s.textContent)")
    assert spans == made["tokens"]
    assert page.run("document.title") != "owned"
    page.keys(".stage", "ArrowRight", "End")
    page.clean()


def walked(record):
    """The record with trees of seven nodes, whose distributions are known."""
    tree = TreeRound(2, (1, 4), (1, 1), (3, 2, 0))
    laws = DraftProbs(
        list(range(7)), [0.5] * 7, [0.25] * 7, [-1, -1, -1, 1, 1, 0, 0], [[3, 0.5, 4, 0.25]] * 8
    )
    rounds = [
        r._replace(drafted=7, tested=2, accepted=2, emitted=3, overlap=None, tree=tree)
        for r in record.rounds[:4]
    ]
    tokens = [1, 4, 5] * len(rounds)
    text = "".join(HOSTILE[token] for token in tokens)
    return replace(record, rounds=rounds, laws=[laws] * len(rounds), tokens=tokens, text=text)


def test_trees_are_drawn_with_the_path_that_was_kept(driver, tmp_path):
    record = walked(next(r for r in simulated() if r.rounds[0].drafted))
    known = trace(record, name="SpS", group="", tokenizer=Spelled())
    bare = trace(replace(record, laws=None), name="without laws", group="", tokenizer=Spelled())
    page = opened(driver, tmp_path, trace_page("trees", [known, bare], {}, []))
    count = "[...document.querySelectorAll('.stage svg.tree g.node')].map((n) => n.classList[1])"
    fates = page.run(count)
    assert (len(fates), fates.count("accepted"), fates.count("rejected")) == (7, 2, 2)
    label = page.run("document.querySelector('svg.tree').getAttribute('aria-label')")
    assert label.startswith("A tree of 7 drafted tokens; accepted: ")
    page.keys(".stage", "ArrowRight")
    assert "leaf" in page.run("document.querySelector('.story').textContent")
    hover = (
        "document.querySelectorAll('.text .token')[1].dispatchEvent(new Event('pointerenter')),"
        " document.getElementById('tip').textContent"
    )
    assert "the target's likeliest: " in page.run(f"({hover})")
    driver.execute_script(
        "const s = document.querySelector('[aria-label=Generation]');"
        "s.value = 1; s.dispatchEvent(new Event('change'))"
    )
    assert len(page.run(count)) == 5
    assert "2 more below" in page.run("document.querySelector('svg.tree').textContent")
    page.clean()


def test_two_texts_are_aligned_by_token(driver, tmp_path):
    """The same, other, and missing tokens: what is the same again stands beside itself."""
    record = next(r for r in simulated() if r.rounds[0].drafted)
    texts = [[1, 2, 3, 4, 5, 7, 0, 1, 2], [1, 2, 6, 4, 5, 7, 7, 0, 1, 2]]
    made = []
    for name, tokens in zip(("SpS", "ArS"), texts, strict=True):
        whole = [record.rounds[0]._replace(drafted=0, emitted=1)] * len(tokens)
        text = "".join(HOSTILE[token] for token in tokens)
        one = replace(record, tokens=tokens, rounds=whole, text=text)
        made.append(trace(one, name=name, group="", tokenizer=Spelled()))
    page = opened(driver, tmp_path, trace_page("two", made, {}, []))
    driver.execute_script(
        "const s = document.querySelector('[aria-label=\"Compare with\"]');"
        "s.value = 1; s.dispatchEvent(new Event('change'))"
    )
    page.keys(".stage", "a")
    cells_of = "[...document.querySelectorAll('.aligned .pair')].map((p) => p.classList.length)"
    assert page.run(cells_of) == [1, 1, 2, 1, 1, 1, 2, 1, 1, 1]
    assert page.run("document.querySelectorAll('.aligned .gap').length") == 1
    told = page.run("document.querySelector('.together .sum').textContent")
    assert told.startswith("The first 2 tokens are the same: at token 3 SpS has ")
    assert "8 of 10 tokens are aligned with an equal one" in told
    page.keys(".stage", "ArrowRight", "a")
    assert page.run("document.querySelectorAll('.pane').length") == 2
    page.clean()
