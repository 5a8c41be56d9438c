"""Texts under schemas, expressions and grammars: llguidance over the tokens of a loaded pair."""

import json
import random
import re
from dataclasses import replace

import pytest

import spsbench
from spsbench.errors import DataError, MissingError, UsageError
from spsbench.loop.constraint import Constraint, DeadEndError
from spsbench.methods import grammar
from spsbench.settings import constraint as options
from spsbench.settings.cell import Cell
from spsbench.settings.grid import Sweep, make_request
from spsbench.settings.options import parse
from spsbench.spec import Spec
from tests.trained import model, save
from tests.variants import first

pytest.importorskip("llguidance")

PERSON = {
    "type": "object",
    "properties": {
        "n": {"type": "string", "maxLength": 4},
        "a": {"type": "integer", "minimum": 0, "maximum": 150},
        "t": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["n", "a"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
LIST = {
    "type": "array",
    "items": {"type": "boolean"},
    "minItems": 2,
    "maxItems": 3,
    "x-guidance": {"whitespace_flexible": False},
}
NESTED = {
    "type": "object",
    "properties": {"a": {"type": "object", "properties": {"b": {"type": "object"}}}},
    "required": ["a"],
}
LARK = 'start: item ("," item)* ";"\nitem: /[a-c]{1,3}/\n'
HOW = {"max_new_tokens": 160, "seed": 5}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    target, draft = (
        str(save(tmp_path_factory.mktemp(name), model(noise)))
        for name, noise in (("target", 0.0), ("draft", 0.2))
    )
    return spsbench.load(target=target, draft=draft, engine="eager", k=4)


WAYS = {
    "alone": {"k": 0},
    "sps": {"verifier": "sps"},
    "tree": {"drafter": "tree:shape=2x2", "verifier": "traversal", "k": 2},
    "forced, then model": {"drafter": "hybrid:first=grammar,then=model,least=1"},
    "block": {"verifier": "block"},
    "match": {"verifier": "match"},
    "layers": {"drafter": "self:1-2"},
    "window": {"drafter": "self:window=8"},
}


@pytest.mark.parametrize("way", first(3, sorted(WAYS, key=lambda way: way == "alone")))
def test_texts_follow_their_schema(pair, way):
    for seed, schema in enumerate((PERSON, LIST)):
        text = pair.generate("the cat", json_schema=schema, **HOW | {"seed": seed} | WAYS[way])
        assert text.finish == "eos"
        made = json.loads(text.text)
        if schema is LIST:
            assert 2 <= len(made) <= 3
            assert set(made) <= {True, False}
        else:
            assert made.keys() <= {"n", "a", "t"}
            assert len(made["n"]) <= 4
            assert 0 <= made["a"] <= 150


def test_expressions_and_grammars(pair):
    text = pair.generate("x", regex="[0-9]{3}-[a-z]{2,4}", **HOW).text
    assert re.fullmatch("[0-9]{3}-[a-z]{2,4}", text)
    text = pair.generate("x", grammar=LARK, **HOW | {"seed": 1}).text
    assert re.fullmatch("[a-c]{1,3}(,[a-c]{1,3})*;?", text)


def test_a_text_without_a_constraint_is_unchanged(pair):
    free = pair.generate("the cat", max_new_tokens=8)
    assert free.record.masks is None
    assert "masks" not in free.record.to_json()
    assert free.cell.to_json().keys().isdisjoint(options.KINDS)


def test_a_record_counts_masks_and_forced_tokens(pair):
    record = pair.generate("the cat", json_schema=PERSON, **HOW).record
    assert record.masks >= len(record.tokens)
    assert 0 < record.forced < len(record.tokens)
    assert record.mask_seconds > 0
    assert record.removed_nats > 0
    cold = pair.generate("the cat", json_schema=PERSON, temperature=0.5, **HOW).record
    assert cold.removed_nats is None


def test_a_grammar_with_a_dead_end_is_an_error(pair):
    with pytest.raises(DeadEndError):
        pair.generate("x", regex=r"[^\s\S]", **HOW)


def opened(pair, constraint):
    cell = make_request(**constraint)
    made = grammar.open_constraint(cell, pair.loaded)
    assert isinstance(made, Constraint)
    return made._automaton


@pytest.mark.parametrize("seed", first(1, range(4)))
def test_masks_after_refused_drafts_are_those_of_the_text_read_anew(pair, seed):
    """In nested objects with any keys, over walks of random tokens."""
    automaton = opened(pair, {"json_schema": NESTED})
    words = grammar.tokens_of(pair.loaded)._words
    walk = random.Random(seed)
    for _ in range(80):
        for _ in range(4):
            allowed = set(automaton.allowed().nonzero().flatten().tolist()) - pair.loaded.eos
            if not allowed:  # the text is complete
                break
            signs = [token for token in sorted(allowed) if set(words[token]) & set(b'{}":,')]
            assert automaton.advance(walk.choice(signs or sorted(allowed)))
        automaton.back(min(walk.randrange(5), len(automaton._read)))
        other = opened(pair, {"json_schema": NESTED})
        assert all(other.advance(token) for token in automaton._read)
        assert automaton.allowed().equal(other.allowed())


def test_an_end_that_is_a_letter_ends_no_text_that_goes_on(pair):
    letter = pair.loaded.tokenizer.convert_tokens_to_ids("a")
    loaded = replace(pair.loaded, eos=pair.loaded.eos | {letter})
    cell = make_request(regex="b|ba?")
    automaton = grammar.open_constraint(cell, loaded)._automaton
    assert not automaton.allowed()[sorted(loaded.eos)].any()
    assert automaton.advance(pair.loaded.tokenizer.convert_tokens_to_ids("b"))
    assert automaton.allowed()[sorted(loaded.eos)].all()
    word = make_request(regex="[ab]b")
    automaton = grammar.open_constraint(word, loaded)._automaton
    assert not automaton.allowed()[letter]


@pytest.mark.parametrize(
    "given",
    [
        {"json_schema": {"not": {}}},
        {"json_schema": {"type": "array", "uniqueItems": True}},
        {"json_schema": {"allOf": [{"type": "string"}, {"type": "null"}]}},
        {"json_schema": '{"type": '},
        {"json_schema": {"enum": ["x" * options.MAX_CHARACTERS]}},
        {"regex": "a+("},
        {"grammar": "start: foo\n"},
        {"json_schema": PERSON, "regex": "a"},
        {"json_schema": PERSON, "stop": ["x"]},
        {"json_schema": PERSON, "ignore_eos": True},
        {"json_schema": PERSON, "decoder": "hf"},
        {"json_schema": "nowhere.json"},
        {"json_schema": "~no-such-user/x"},
        {"json_schema": '{"minimum": ' + "9" * 5000 + "}"},
        {"json_schema": {"name": "p", "strict": True, "schema": {}}},
        {"json_schema": 3},
        {"json_schema": {"default": float("nan")}},
    ],
)
def test_what_nothing_can_follow_is_refused_before_a_model_is_loaded(given):
    from spsbench.methods.resolve import resolve

    resolve(make_request(target="nowhere", drafter="ngram", json_schema=PERSON))
    with pytest.raises((DataError, UsageError, MissingError)):
        resolve(make_request(target="nowhere", drafter="ngram", **given))


def test_a_schema_is_a_dict_a_text_a_file_or_a_class(tmp_path):
    pydantic = pytest.importorskip("pydantic")

    class Point(pydantic.BaseModel):
        y: int
        x: int

    path = tmp_path / "point.json"
    path.write_text(json.dumps(Point.model_json_schema(), indent=2))
    ways = [Point, Point.model_json_schema(), path, str(path), path.read_text()]
    made = {make_request(json_schema=way) for way in ways}
    assert len(made) == 1
    cell = Cell.from_request(make_request(json_schema=Point))
    assert Cell.from_request(make_request(json_schema=cell.json_schema)) == cell
    assert cell.from_json(cell.to_json()) == cell
    assert Cell.from_request(make_request()) != cell
    assert cell.json_schema.index('"y"') < cell.json_schema.index('"x"')


def test_plans_audits_and_the_grammar_drafter_refuse_in_a_sentence(pair):
    with pytest.raises(UsageError):
        pair.plan("xsum:data=mini", json_schema=PERSON)
    with pytest.raises(UsageError):
        pair.verify(json_schema=PERSON)
    with pytest.raises(UsageError):
        pair.generate("x", drafter=Spec("grammar"))


def test_rows_of_a_file_bring_their_schemas(pair, tmp_path):
    from spsbench.benchmark.jobs import Job, run_job
    from spsbench.settings.experiment import expand_tables
    from spsbench.tasks.jsonl import Jsonl

    path = tmp_path / "rows.jsonl"
    rows = [{"id": "a", "prompt": "the cat", "json_schema": LIST}, {"id": "b", "prompt": "a dog"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Jsonl(str(path), max_new_tokens=60)
    assert task.constrained
    held, free = task.samples(lambda prompt: True)
    record = run_job(Job(pair.cell, held, 0), pair.loaded)
    assert record.masks is not None
    assert record.cell == pair.cell.id
    assert 2 <= len(json.loads(record.text)) <= 3
    assert run_job(Job(pair.cell, free, 0), pair.loaded).masks is None
    run = pair.bench(f"jsonl:path={path}", drafter="grammar", limit=1, out=tmp_path / "run")
    assert [row.failures for row in run.summary] == [0, 0]
    plain = tmp_path / "plain.jsonl"
    plain.write_text("".join(json.dumps({**row, "json_schema": None}) + "\n" for row in rows))
    assert Jsonl(str(plain)).prompt_version != task.prompt_version
    for given in {"record": "trace"}, {"stop": ["x"]}, {"decoder": "hf", "drafter": "ngram"}:
        with pytest.raises(UsageError):
            expand_tables(
                [parse({"task": f"jsonl:path={path}", "method": "ars", **given}, Sweep)[0]]
            )
    path.write_text(json.dumps({"id": "a", "prompt": "x", "json_schema": {"not": {}}}) + "\n")
    with pytest.raises(DataError):
        Jsonl(str(path))


ENDLESS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "list": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
    "required": ["text", "list"],
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_json_text_ends_within_its_budget(pair, temperature):
    how = {"json_schema": ENDLESS, "temperature": temperature, "max_new_tokens": 40}
    alone = pair.generate("the cat", k=0, **how)
    assert alone.finish == "eos"
    assert alone.record.closed > 0
    assert len(alone.tokens) <= 40
    for way in ("tree", "forced, then model"):
        text = pair.generate("the cat", **WAYS[way], **how)
        assert text.finish == "eos"
        made = json.loads(text.text)
        assert isinstance(made["text"], str)
        assert made["list"]
        assert temperature or text.tokens == alone.tokens


def test_a_text_that_is_left_open_is_cut(pair):
    text = pair.generate(
        "the cat", json_schema=ENDLESS, temperature=0.0, max_new_tokens=40, leave_open=True
    )
    assert text.finish == "length"
    assert text.record.closed is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "minLength": 5},
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "email"},
        {"type": "string", "format": "uri"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "pattern": "^[A-Z][a-z]+/[0-9]{3}$"},
        {"type": "number", "exclusiveMinimum": 0.25, "maximum": 0.5},
        {"type": "integer", "minimum": 1000, "multipleOf": 7},
        {"type": "array", "items": {"type": "number"}, "minItems": 3},
        {"enum": [{"a": [1, None]}, "b"]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [LIST, {"items": {"$ref": "#/$defs/n"}}]}}},
        {"type": "object", "required": ["a", "é"], "properties": {"b": {}, "a": {}}},
    ],
    ids=str,
)
def test_an_end_is_found_for_every_kind_of_value(pair, schema):
    jsonschema = pytest.importorskip("jsonschema")
    automaton = opened(pair, {"json_schema": schema})
    end = automaton.end()
    assert end is not None
    assert len(end) < 60
    value = json.loads(pair.loaded.tokenizer.decode(end))
    jsonschema.Draft202012Validator(schema).validate(value)
    assert automaton._read == []
