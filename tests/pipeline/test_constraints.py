"""Constraints from detections: what is chosen, what is left out and counted, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from caption.vocabulary import SPECIALS, Vocabulary
from pipeline.cli import main
from pipeline.commands.constraints import command
from pipeline.constraints import asked_of, read_constraints
from pipeline.errors import PipelineError
from pipeline.open_images import overlap, read_detections, read_hierarchy
from pipeline.word_forms import forms_of, plural, read_forms
from tests.caption.toy import write_glove

HIERARCHY = {
    "LabelName": "Entity",
    "Subcategory": [
        {
            "LabelName": "Animal",
            "Subcategory": [
                {"LabelName": "Carnivore", "Subcategory": [{"LabelName": "Dog"}]},
                {"LabelName": "Zebra"},
            ],
        },
        {"LabelName": "Person", "Part": [{"LabelName": "Human face"}]},
        {"LabelName": "Traffic light"},
        {"LabelName": "Human face"},
    ],
}
HERE, THERE = [0, 0, 10, 10], [50, 50, 60, 60]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("hierarchy.json", HIERARCHY)
    Path("blacklist.txt").write_text("Person\n\nhuman face\n")


def write(path: str, content: Any) -> Path:
    Path(path).write_text(json.dumps(content), encoding="utf-8")
    return Path(path)


def seen(name: str, score: float, box: list[float] = HERE) -> dict[str, Any]:
    return {"class": name, "score": score, "box": box}


def make(detections: Any, *options: str, code: int = 0) -> tuple[dict[str, Any], str]:
    """What `constraints make` writes, and what it says."""
    write("detections.json", detections)
    files = ["--hierarchy", "hierarchy.json", "--blacklist", "blacklist.txt"]
    typed = ["make", "detections.json", "--out", "constraints.json", *files, *options]
    ended = CliRunner().invoke(command, typed)
    assert ended.exit_code == code, ended.output
    return json.loads(Path("constraints.json").read_text()), ended.output


def test_blacklist_hierarchy_and_scores_decide() -> None:
    found, said = make(
        {
            "1": [
                seen("Animal", 0.99),
                seen("Dog", 0.5),
                seen("Carnivore", 0.9, [0, 0, 10, 9]),  # 0.9 of the dog's box
                seen("Animal", 0.4, THERE),
                seen("Zebra", 0.8, [0, 0, 10, 8]),
                seen("Person", 1.0, THERE),
                seen("Dog", 0.6, THERE),
            ],
            "2": [],
            "3": [seen("Person", 0.9), seen("Traffic light", 0.9)],
        }
    )
    assert found == {"1": [["zebra", "zebras"], ["dog", "dogs"]], "2": [], "3": []}
    assert "3 images with 9 detections; constraints: 1 have 2, 2 have 0" in said
    assert "2 blacklisted, 3 with a finer kind in the same place" in said
    assert "1 (traffic light 1) whose name is no single word" in said
    assert "pipeline eval --run RUN --constraints constraints.json" in said


def test_phrases_forms_and_the_limits_are_options() -> None:
    Path("forms.tsv").write_text("Dog\tdog, dogs,puppy\n\ntraffic light\tstop light\n")
    detections = {"a": [seen("Dog", 0.5), seen("Traffic light", 0.9), seen("Zebra", 0.2)]}
    found, _ = make(detections, "--phrases", "--forms", "forms.tsv", "--most", "2")
    assert found == {"a": [["stop light"], ["dog", "dogs", "puppy"]]}
    found, said = make(detections, "--min-score", "0.3", "--json")
    assert found == {"a": [["dog", "dogs"]]}
    summary = json.loads(said)
    assert summary["too_low_a_score"] == 1 and summary["images_by_constraints"]["1"] == 1
    assert summary["without_a_single_word"] == {"traffic light": 1}
    pair = {"a": [seen("Animal", 0.9), seen("Dog", 0.5, [0, 0, 10, 5])]}
    assert len(make(pair)[0]["a"]) == 2
    assert make(pair, "--iou", "0.5")[0]["a"] == [["dog", "dogs"]]


def test_no_more_than_three_and_the_first_of_equals() -> None:
    names = ("Dog", "Zebra", "Animal", "Carnivore")
    boxes = ([0, 0, 1, 1], [5, 5, 6, 6], [10, 10, 12, 12], [20, 20, 30, 30])
    detections = {"a": [seen(n, 0.5, b) for n, b in zip(names, boxes, strict=True)]}
    assert [words[0] for words in make(detections)[0]["a"]] == ["dog", "zebra", "animal"]


def test_labels_are_named_and_lists_are_read_too() -> None:
    labels = {"LabelName": "/m/0", "Subcategory": [{"LabelName": "/m/1"}, {"LabelName": "/m/2"}]}
    write("hierarchy.json", labels)
    Path("names.csv").write_text('/m/1,Zebra\n/m/2,"Person"\n')
    Path("blacklist.txt").write_text("Person\n")
    detections = {"x": [["/m/1", 0.9, HERE], ["Person", 1, HERE]]}
    assert make(detections, "--names", "names.csv")[0] == {"x": [["zebra", "zebras"]]}


def test_cocos_form_wants_to_know_its_boxes() -> None:
    coco = {
        "categories": [{"id": 7, "name": "Dog"}, {"id": 8, "name": "Animal"}],
        "images": [{"id": 1}, {"id": 2}],
        "annotations": [
            {"image_id": 1, "category_id": 8, "score": 0.9, "bbox": [5, 5, 4, 4]},
            {"image_id": 1, "category_id": 7, "score": 0.8, "bbox": [5, 5, 4, 4]},
        ],
    }
    assert make(coco, "--boxes", "xywh")[0] == {"1": [["dog", "dogs"]], "2": []}
    path = write("coco.json", coco)
    with pytest.raises(PipelineError, match="--boxes xywh or --boxes xyxy"):
        read_detections(path, {})
    with pytest.raises(PipelineError, match=r"annotations\[0\]: box is \[5, 5, 4, 4\]"):
        read_detections(path, {}, sides=False)


def test_classes_that_the_hierarchy_lacks_are_said_or_refused() -> None:
    found, said = make({"1": [seen("Dog", 0.5), seen("Gnu", 0.9)]})
    assert found == {"1": [["gnu", "gnus"], ["dog", "dogs"]]}
    assert "kept, but not in the hierarchy: 1 (gnu 1)" in said
    path = write("d.json", {"1": [seen("/m/0bt9lr", 0.5)]})
    with pytest.raises(SystemExit), pytest.MonkeyPatch.context():
        main(["constraints", "make", str(path), "--hierarchy", "hierarchy.json", "--out", "o.json"])
    assert not Path("o.json").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "holds []"),
        ({"1": 3}, "image '1': holds 3"),
        ({"1": [{"class": "Dog", "score": 1}]}, "image '1', detection 1: no box"),
        ({"1": [seen("Dog", 1), ["Dog", 1]]}, "image '1', detection 2: no class"),
        ({"1": [seen("Dog", 1, [0, 0, 1])]}, "box is [0, 0, 1], wanted four numbers"),
        ({"1": [seen("Dog", 1, [5, 0, 1, 1])]}, "wanted x1 <= x2 and y1 <= y2"),
        ({"1": [seen("Dog", float("nan"))]}, "score is NaN, wanted a number"),
        ({"1": [seen("", 1)]}, "class is '', wanted a name"),
        ({"annotations": [], "categories": [{}]}, "categories[0]: wanted an id and a name"),
        ({"annotations": [{"image_id": 1}]}, "annotations[0]: no key 'category_id'"),
    ],
)
def test_wrong_detections_are_named(content: Any, said: str) -> None:
    path = write("wrong.json", content)
    with pytest.raises(PipelineError) as error:
        read_detections(path, {}, sides=False)
    assert str(error.value).startswith("wrong.json") and said in str(error.value)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"hierarchy.json": '{"LabelName": 3}'}, "hierarchy.json: top: LabelName is 3"),
        (
            {"hierarchy.json": '{"LabelName": "a", "Subcategory": [{}]}'},
            "hierarchy.json: Subcategory[0]: LabelName is null",
        ),
        ({"blacklist.txt": "Person\nZebbra\n"}, "line 2: 'zebbra' is no class of hierarchy.json"),
        ({"blacklist.txt": "Zebbra\n"}, "did you mean 'zebra'"),
        ({"names.csv": "/m/1\n"}, "names.csv: line 1: 1 columns, wanted label,name"),
        ({"forms.tsv": "dog dogs\n"}, "forms.tsv: line 1: 'dog dogs\\n'"[:20]),
        ({"forms.tsv": "dog\tdog\nDog\tdogs\n"}, "forms.tsv: line 2: 'dog' stands there twice"),
    ],
)
def test_wrong_files_are_named(
    files: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("names.csv").write_text("")
    Path("forms.tsv").write_text("")
    for name, text in files.items():
        Path(name).write_text(text)
    write("d.json", {"1": [seen("Dog", 0.5)]})
    options = "--hierarchy hierarchy.json --blacklist blacklist.txt --names names.csv"
    typed = f"constraints make d.json --out o.json {options} --forms forms.tsv"
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 1 and said in capsys.readouterr().err
    assert not Path("o.json").exists()


def test_the_hierarchy_knows_all_kinds_above() -> None:
    found = read_hierarchy(Path("hierarchy.json"), {})
    assert found.above["dog"] == {"entity", "animal", "carnivore"}
    assert found.above["human face"] == {"entity"}  # a part of a person is no kind of person


def test_overlap_is_intersection_over_union() -> None:
    assert overlap((0, 0, 2, 2), (1, 0, 3, 2)) == pytest.approx(1 / 3)
    assert overlap((0, 0, 1, 1), (5, 5, 6, 6)) == 0 == overlap((1, 1, 1, 1), (1, 1, 1, 1))


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("dog", "dogs"),
        ("bus", "buses"),
        ("box", "boxes"),
        ("brush", "brushes"),
        ("cherry", "cherries"),
        ("monkey", "monkeys"),
        ("knife", "knives"),
        ("sheep", "sheep"),
        ("glasses", "glasses"),
        ("scissors", "scissors"),
        ("dress", "dresses"),
    ],
)
def test_plurals(one: str, many: str) -> None:
    assert plural(one) == many


def test_forms_of_a_class(tmp_path: Path) -> None:
    (tmp_path / "forms.tsv").write_text("Jet Ski\tjet  ski,jet skis, jetski\n")
    listed = read_forms(tmp_path / "forms.tsv")
    assert forms_of("jet ski", listed) == ("jet ski", "jet skis", "jetski")
    assert forms_of("traffic light", listed) == ("traffic light", "traffic lights")
    assert forms_of("bow (of a ship)", listed) == ("bow", "bows")
    assert forms_of("sheep", listed) == ("sheep",)


def test_the_words_of_all_classes_with_a_vector(tmp_path: Path) -> None:
    glove = write_glove(tmp_path / "glove.txt", ["zebra", "zebras", "dog", "person", "light"], 4)
    typed = ["words", "--hierarchy", "hierarchy.json", "--blacklist", "blacklist.txt"]
    typed += ["--vectors", str(glove), "--width", "4", "--out", "words.txt"]
    said = CliRunner().invoke(command, typed)
    assert said.exit_code == 0 and Path("words.txt").read_text().split() == [
        "dog",
        "zebra",
        "zebras",
    ]
    assert "3 words of 6 classes" in said.output and "without a vector" in said.output
    CliRunner().invoke(command, [*typed, "--phrases"])
    assert "light" in Path("words.txt").read_text().split()


VOCABULARY = Vocabulary([*SPECIALS, "dog", "traffic", "light", "a"])


def test_words_that_a_vocabulary_lacks_are_counted() -> None:
    path = write(
        "c.json",
        {
            "000000000001.jpg": [["dog", "dogs"], ["zebra", "zebras"]],
            "two": [["zebra"], ["traffic light", "light"], ["<unk>"]],
            "3": [],
        },
    )
    ids = {"1": ["1"], "2": ["2", "two"], "3": ["3"], "4": ["4"]}
    asked = asked_of(read_constraints(path), ids, VOCABULARY)
    assert [asked.machines[i].constraints for i in ids] == [1, 1, 0, 0]
    assert asked.machines["2"].words == (5, 6) and asked.missing == 1
    assert asked.unknown == {"dogs": 1, "zebra": 2, "zebras": 1, "<unk>": 1}
    assert asked.dropped == {"zebra": 2, "<unk>": 1}
    said = "\n".join(asked.remarks())
    assert "1 of 4 images are not in c.json" in said and "zebra 2" in said
    record = asked.record(2, {"1": 1, "2": 0, "3": 0, "4": 0})
    assert record["images_with_constraints"] == 2 and record["images_that_hold_them"] == 1
    with pytest.raises(PipelineError, match="has none of the 1 image"):
        asked_of(read_constraints(path), {"9": ["9", "nine"]}, VOCABULARY)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1], "c.json: holds [1], wanted"),
        ({}, "c.json: holds {}, wanted"),
        ({"1": "dog"}, "c.json: image '1': holds 'dog', wanted"),
        ({"1": [["a"], ["b"], ["c"], ["d"]]}, "image '1': 4 constraints, wanted 3 at most"),
        ({"1": [["a"], []]}, "image '1': constraint 2 is [], wanted"),
        ({"1": ["dog"]}, "image '1': constraint 1 is 'dog', wanted"),
        ({"1": [["a", " "]]}, "image '1': constraint 1 is"),
        ({"1": [], "01": []}, "image '01': this image stands there twice (as '1')"),
    ],
)
def test_wrong_constraints_are_named(content: Any, said: str) -> None:
    path = write("c.json", content)
    with pytest.raises(PipelineError) as error:
        read_constraints(path)
    assert said in str(error.value)
