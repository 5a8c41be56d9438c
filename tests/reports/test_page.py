"""The page: its numbers are the report's, and no text of others becomes a part of it."""

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from spsbench.errors import DataError
from spsbench.metrics.intervals import Estimate
from spsbench.metrics.parity import Parity, ParityVerdict
from spsbench.metrics.text_checks import Same
from spsbench.reports.audits import audit_section
from spsbench.reports.html import ASSETS, SCRIPTS, html
from spsbench.reports.page.answer import answers, lossless
from spsbench.reports.page.data import aggregate_tables, paired_runs, run_differences
from spsbench.reports.page.exhibits import drawn_numbers, exhibits
from spsbench.reports.page.token_origins import local_tokenizer, token_origins, token_texts, trace
from spsbench.reports.text import escape_piece
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import RoundRecord
from spsbench.spec import Spec
from spsbench.store.run_folder import AUDITS, read_audits, write_audits
from tests.reports.pages import AUDIT, cells, hostile, report_of, simulated
from tests.simulation import cell, record


class Reader(HTMLParser):
    """The tags and the attributes of a page, as a browser would read it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes = Counter[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}


HIDDEN = re.compile(r"[\u200b\u202e\u2028\u2029\u2066\ud800-\udfff\x1b\x00]")


def strings(value):
    """Every text in the data of a page, names of fields among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from strings([*value, *value.values()])
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def data_of(page):
    return json.loads(re.findall("<script[^>]*>(.*?)</script>", page, re.DOTALL)[0])


@pytest.fixture(scope="module")
def plain():
    return report_of(simulated(), cells())


@pytest.fixture(scope="module")
def page(plain):
    return html(plain)


def texts_of_plots(page):
    """The text of every plot of a page, by the id of its section."""
    parts = page.split('<section class="exhibit" id="')[1:]
    bodies = {part.partition('"')[0]: part.partition("</section>")[0] for part in parts}
    return {name: re.findall(r"<text[^>]*>([^<]*)</text>", body) for name, body in bodies.items()}


def test_plots_are_text_and_variables_of_the_page(page):
    assert texts_of_plots(page).keys() >= {"against-k", "headlines-0", "by-position", "latency"}
    assert "Time to 24 tokens (s)" in texts_of_plots(page)["against-k"]
    assert "style=" not in page.partition("<body>")[2].partition("<script")[0]
    for part in page.split('<svg class="plot"')[1:]:
        plot = part.partition("</svg>")[0]
        assert not re.search(r'(fill|stroke)="#', plot)
        assert "var(--ink)" in plot


def test_the_numbers_of_a_plot_are_those_of_the_rows(plain):
    (glance,) = [e for e in exhibits(plain.tables[0], {}, answered=False) if "headlines" in e.id]
    speeds = [row for row in drawn_numbers(glance) if row[:2] == ["Speed-up over ArS", "measured"]]
    assert [line[3:] for line in speeds] == [
        [f"{value:.4f}" for value in row.speedup[:3]] for row in plain.tables[0].rows
    ]


def test_data_of_a_page_is_what_its_script_reads(page):
    data = data_of(page)
    scripts = "".join((ASSETS / name).read_text() for name in SCRIPTS)
    for name in {*data, *data["traces"][0], *data["traces"][0]["steps"]}:
        assert f".{name}" in scripts, name


def test_runs_are_paired_by_prompt():
    tables = []
    for speed in (1.0, 2.0):
        records = [
            replace(r, rounds=[x._replace(seconds=x.seconds / speed) for x in r.rounds])
            for r in simulated()
        ]
        quality = {"rouge2": {f"s{i}": 0.1 * i * speed for i in range(10)}}
        table = report_of(records, cells()).tables[0]
        tables.append(replace(table, qualities={c.id: quality for c in cells()}))
    pairs = paired_runs(tables, aggregate_tables(tables), ["run 1", "run 2"])
    assert [(pair.run, pair.shared) for pair in pairs] == [("run 2", 10)] * 3
    for pair in pairs:
        means = {title: estimate.mean for title, estimate in pair.differences.items()}
        assert means == pytest.approx(
            {"Times as fast": 2.0, "tau, difference": 0.0, "rouge2, difference": 45.0}
        )
    figure, table = run_differences(pairs, "run 1")
    assert len(figure.panels) == 3
    assert table.rows[0][3].startswith("2.000x")


def test_hostile_text_is_never_markup(page):
    calm = Reader(page)
    page = html(hostile())
    found = Reader(page)
    assert found.tags["script"] == 2
    assert found.attributes == calm.attributes
    assert not found.tags.keys() - calm.tags.keys()
    assert not re.search(r"[\u202e\u2028\u2029\ud800-\udfff\x1b\x00]", page)
    assert not any(HIDDEN.search(text) for text in strings(data_of(page)))
    assert "20 generations over up to 10 samples" in page
    page.encode("utf-8")


def test_nothing_may_be_asked_for(page):
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href|action)=[\"']?(https?:|//)", page)
    assert "unsafe" not in page


def test_equal_reports_give_equal_bytes(plain, undrawn):
    assert html(plain) == html(report_of(simulated(), cells()))


ROUND = RoundRecord(4, 3, 2, 3, 2.5, 0.01, 0.004, 0.005)


@pytest.mark.parametrize(
    ("drafted", "accepted", "emitted", "expected"),
    [
        (0, 0, 1, ["plain"]),
        (4, 2, 3, ["accepted", "accepted", "recovered"]),
        (2, 2, 3, ["accepted", "accepted", "bonus"]),
        (4, 4, 2, ["accepted", "accepted"]),
        (4, 0, 1, ["recovered"]),
    ],
)
def test_origins(drafted, accepted, emitted, expected):
    found = token_origins(ROUND._replace(drafted=drafted, accepted=accepted, emitted=emitted))
    assert [origin.value for origin in found] == expected


def test_tokens_of_a_trace_are_the_recorded_text():
    tokenizer = local_tokenizer(ModelSpec("nano"))
    tokens = list(range(300, 340))
    text = "".join(token_texts(tokenizer, (), tokens))
    assert text == tokenizer.decode(tokens)
    made = record(cell(0), "s", 0, [ROUND._replace(emitted=40)], tokens=tokens, text=text)
    told = trace(made, name="a", group="b", tokenizer=tokenizer)
    assert told["text"] is None
    assert "".join(told["tokens"]) == escape_piece(text)
    other = trace(replace(made, text="another text"), name="a", group="b", tokenizer=tokenizer)
    assert other["text"] == "another text"
    assert other["tokens"] == [*map(str, tokens)]
    assert local_tokenizer(ModelSpec("no/such-model")) is None


@pytest.mark.parametrize(("passes", "rounds", "tau"), [(4, 4, 2.5), (0, 0, None)])
def test_a_trace_counts_rounds_by_their_passes(passes, rounds, tau):
    made = record(cell(4), "s", 0, [ROUND._replace(emitted=10, passes=passes)])
    told = trace(made, name="a", group="b", tokenizer=None)
    assert (told["rounds"], told["tau"]) == (rounds, tau)


def test_a_quality_that_differs_is_bad(plain):
    table = plain.tables[0]
    own = table.rows[-1].cell
    parity = Parity(
        "rouge2", 0.5, 0.4, Estimate(-0.1, -0.2, -0.05, 99), 0.003, 9, ParityVerdict.DIFFERENT
    )
    (other,) = answers(replace(table, parities=[(own, parity), (table.rows[1].cell, parity)]), {})
    assert other.quality.status == "bad"


def test_a_speed_up_whose_interval_contains_1_is_no_headline(plain):
    table = plain.tables[0]
    for low, figure in ((0.66, "no difference shown"), (1.02, "1.13x")):
        gained = Estimate(1.13, low, 1.49, 20)
        rows = [replace(row, speedup=gained) if row.cell.k else row for row in table.rows]
        (found,) = answers(replace(table, rows=rows), {})
        assert found.figure == figure
        assert "1.49" in found.interval


def test_identical_texts_have_identical_quality_without_scores():
    greedy = cells(temperature=0.0)
    table = report_of(simulated(temperature=0.0), greedy).tables[0]
    same = {each.id: Same(10, 10) for each in greedy[1:]}
    (found,) = answers(table, same)
    assert found.quality == ("good", "Quality: identical, since all texts are equal.")
    (other,) = answers(table, {name: Same(9, 10) for name in same})
    assert other.quality.status == "open"


def test_lossless_is_not_said_of_what_is_not():
    assert lossless(cell(4, verifier=Spec("synthetic")), None).status == "bad"
    assert lossless(cell(4, verifier=Spec("theirs")), None).status == "open"
    greedy = cell(4, temperature=0.0)
    assert lossless(greedy, Same(5, 5)).status == "good"
    assert lossless(greedy, Same(4, 5)).status == "open"
    rule = lossless(cell(4, temperature=0.0, verifier=Spec("lenient")), Same(4, 5))
    assert (rule.status, "fault" in rule.text) == ("bad", False)  # the rule explains them


def test_an_audit_kept_with_a_run_is_in_its_answer(plain, undrawn, tmp_path):
    table = plain.tables[0]
    cell = table.rows[-1].cell
    audit = {**AUDIT, "settings": {"id": cell.id, "records": 10}}
    write_audits(tmp_path, [audit])
    assert read_audits(tmp_path) == [audit]
    section = audit_section(read_audits(tmp_path)[0], table.title.run, 12)
    assert "Made when there were 10 records; now there are 12." in section.notes
    page = html(replace(plain, sections=[replace(section, status="bad")]))
    assert page.count('<li class="bad">') == 2
    assert f"Audit of these records: {AUDIT['line']}." in page
    assert "bets against this run" not in page


def test_a_damaged_audit_is_refused(tmp_path):
    assert read_audits(tmp_path) == []
    for text in ("{}", "nonsense", '{"schema": 99, "audits": []}', '{"schema": 1, "audits": [{}]}'):
        (tmp_path / AUDITS).write_text(text)
        with pytest.raises(DataError):
            read_audits(tmp_path)
