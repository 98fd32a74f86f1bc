"""`pipeline eval` as a user types it: two files, several files, runs, errors and exit codes."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evaluate.scores import Scores
from pipeline.cli import main
from pipeline.scoring import names_of
from pipeline.training import train
from tests.caption.toy import write_toy
from tests.pipeline.test_train import CPU, quick

REFERENCES = {
    1: ["A man rides a horse.", "A person on a brown horse."],
    2: ["Two dogs play in the snow.", "Dogs run through snow."],
    3: ["A red bus on a street.", "A bus drives down the road."],
}
CAPTIONS = {1: "A man on a horse.", 2: "Two dogs run in the snow.", 3: "A red car on a road."}
FAST = ["--metrics", "bleu,rouge,cider"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_CORENLP", str(tmp_path / "none"))  # no SPICE, which takes long
    write("c.json", coco(REFERENCES))
    write("a.json", results(CAPTIONS))
    write("b.json", {str(image): "a man on a red street" for image in CAPTIONS})


def write(path: str, content: Any) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content), encoding="utf-8")
    return Path(path)


def results(captions: dict[int, str]) -> list[dict[str, Any]]:
    return [{"image_id": image, "caption": text} for image, text in captions.items()]


def coco(references: dict[int, list[str]]) -> dict[str, Any]:
    texts = [(image, text) for image, captions in references.items() for text in captions]
    return {
        "images": [
            {"id": image, "file_name": f"COCO_val2014_{image:012d}.jpg"} for image in references
        ],
        "annotations": [
            {"id": number, "image_id": image, "caption": text}
            for number, (image, text) in enumerate(texts)
        ],
    }


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["eval", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_two_files_are_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--results", "a.json", "--references", "c.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == "B-1 B-2 B-3 B-4 M R C S".split()
    row = lines[1].split()
    assert row[0] == "a" and all(float(value) >= 0 for value in row[1:8])
    assert float(row[5]) > 40  # METEOR
    assert row[8] == "n/a"
    (spice,) = [line for line in lines if line.startswith("SPICE: not available: ")]
    assert "stanford-corenlp-3.6.0.jar" in spice and spice.endswith("pipeline setup spice")


def test_several_files_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--results", "a.json", "b.json", "--references", "c.json", *FAST, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["results"]] == ["a", "b"]
    (difference,) = found["differences"].values()
    first, second = (one["corpus"]["CIDEr"] for one in found["results"])
    assert difference["CIDEr"]["value"] == pytest.approx(second - first)
    assert 0 < difference["CIDEr"]["p"] <= 1
    assert found["results"][0]["intervals"]["Bleu_4"].keys() == {"low", "high"}
    assert run("--results", "b.json", "a.json", "--references", "c.json", *FAST) == 0
    assert "a - b" in capsys.readouterr().out


def test_forms_of_tables(capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--results", "a.json", "--references", "c.json", "--metrics", "rouge")
    assert run(*files, "--markdown") == 0
    assert capsys.readouterr().out.startswith("|  | R |\n| --- | ---: |\n| a | ")
    assert run(*files, "--latex", "--resamples", 0) == 0
    out = capsys.readouterr().out
    assert out.startswith(r"\begin{tabular}{lr}") and "95" not in out


def test_tables_of_two_files_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """LaTeX: all but the tables are comments. Markdown: a table begins behind an empty line."""
    files = ("--results", "a.json", "b.json", "--references", "c.json", "--metrics", "rouge")
    assert run(*files, "--latex") == 0
    out = capsys.readouterr().out
    outside = re.sub(r"(?s)\\begin.*?\\end\{tabular\}", "", out).split("\n")
    assert all(line.startswith("% ") for line in outside if line)
    for said in ("± is half", "signature: ", "paired bootstrap"):
        assert f"\n% {said}" in out
    assert run(*files, "--markdown") == 0
    lines = capsys.readouterr().out.split("\n")
    starts = [n for n, line in enumerate(lines) if line.startswith("| ---")]
    assert len(starts) == 3 and all(n == 1 or not lines[n - 2] for n in starts)


def test_per_image_file() -> None:
    files = ("--results", "a.json", "b.json", "--references", "c.json")
    assert run(*files, *FAST, "--per-image", "out/images.csv") == 0
    rows = list(csv.DictReader(Path("out/images.csv").read_text().splitlines()))
    assert [(row["results"], row["image_id"]) for row in rows] == [
        (name, image) for name in "ab" for image in "123"
    ]
    assert rows[0]["caption"] == "A man on a horse." and rows[0]["references"] == "2"
    assert float(rows[1]["ROUGE_L"]) > float(rows[4]["ROUGE_L"])


def test_domains(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "d.json",
        {
            "images": [
                {"id": i, "domain": f"{d}-domain"}
                for i, d in zip((1, 2, 3), ("out", "in", "in"), strict=True)
            ]
        },
    )
    assert run("--results", "a.json", "--references", "c.json", *FAST, "--domains", "d.json") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["in", "out", "overall"] in lines
    write("d.json", {"1": "in-domain"})
    assert run("--results", "a.json", "--references", "c.json", *FAST, "--domains", "d.json") == 1
    assert "no domain for 2 of 3 images (2, 3)" in capsys.readouterr().err
    write("d.json", {"1": "in-domian", "2": "mine", "3": "in-domain"})
    assert run("--results", "a.json", "--references", "c.json", *FAST, "--domains", "d.json") == 0
    said = capsys.readouterr().err
    assert (
        "'in-domian' is none of nocaps; did you mean 'in-domain'?" in said and "'mine'" not in said
    )
    Path("d.json").write_text("{")
    assert run("--results", "a.json", "--references", "c.json", *FAST, "--domains", "d.json") == 1
    assert 'wanted {"image id": "in-domain", ...}' in capsys.readouterr().err


def test_novel_captions_and_collapse(capsys: pytest.CaptureFixture[str]) -> None:
    many = {image: ["A dog.", f"Dog {image}"] for image in range(30)}
    write("many.json", coco(many))
    write("same.json", results({image: "a dog" for image in many}))
    files = ("--results", "same.json", "--references", "many.json", "--metrics", "rouge")
    assert run(*files, "--train-captions", "c.json") == 0
    out = capsys.readouterr().out
    assert 'warning: collapsed captions: 100.0 % of 30 images get "a dog"' in out
    assert "novel" in out and "100.0 %" in out


def test_empty_captions_are_not_novel(capsys: pytest.CaptureFixture[str]) -> None:
    write("empty.json", results({1: "", 2: "", 3: "a new dog"}))
    files = ("--results", "empty.json", "--references", "c.json", "--metrics", "rouge", "--json")
    assert run(*files, "--allow-empty", "--train-captions", "c.json") == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert found["diversity"]["novel"] == pytest.approx(1 / 3)
    assert found["diversity"]["empty"] == 2


def test_splits_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--results", "a.json", "--references", "c.json", "--metrics", "rouge")
    assert run(*files, "--split", "test") == 2
    assert "c.json: has no splits; leave out --split test" in capsys.readouterr().err
    content = coco(REFERENCES)
    for image in content["images"]:
        image["split"] = "test"
    write("s.json", content)
    assert run("--results", "a.json", "--references", "s.json", "--split", "tset") == 2
    assert "no image of split 'tset'; it has test" in capsys.readouterr().err


def test_missing_and_extra_images(capsys: pytest.CaptureFixture[str]) -> None:
    write("part.json", results({2: "two dogs", 9: "a cat"}))
    files = ("--results", "part.json", "--references", "c.json", *FAST)
    assert run(*files) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: part.json has no caption for 2 images (1, 3) of c.json; ")
    assert "captions for 1 image (9) not in c.json" in error
    typed = " ".join(FAST)
    assert f"pipeline eval --results part.json --references c.json {typed} --subset" in error
    assert run(*files, "--subset", "--json") == 0
    assert json.loads(capsys.readouterr().out)["images"] == 1


def test_swapped_files_are_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    swapped = "the references have one each: are --results and --references swapped?"
    assert run("--results", "c.json", "--references", "a.json", *FAST) == 1
    assert f"3 images (1, 2, 3) with more than one caption, wanted one per image; {swapped}" in (
        capsys.readouterr().err
    )
    assert run("--results", "c.json", "--references", "c.json", *FAST) == 1
    assert "keep the caption to be scored" in capsys.readouterr().err
    write("some.json", coco({**REFERENCES, 3: ["A bus."]}))
    assert run("--results", "some.json", "--references", "a.json", *FAST) == 1
    assert "2 images (1, 2) with more than one caption, wanted one per image; keep" in (
        capsys.readouterr().err
    )


FILES = {71: "train/man.jpg", 72: "train/dogs.jpg", 73: "bus.v2.png"}


def named_by_file(**names: str) -> Path:
    """References with numbers as ids and file names that do not hold them."""
    content = coco({70 + image: texts for image, texts in REFERENCES.items()})
    files = FILES | {int(key[1:]): name for key, name in names.items()}
    content["images"] = [{"id": image, "file_name": name} for image, name in files.items()]
    return write("numbers.json", content)


@pytest.mark.parametrize("names", [FILES.values(), ("man", "dogs.jpg", "./x/bus.v2.PNG")])
def test_results_by_file_name(names: Any, capsys: pytest.CaptureFixture[str]) -> None:
    named_by_file()
    write("names.json", dict(zip(names, CAPTIONS.values(), strict=True)))
    files = ("--results", "names.json", "--references", "numbers.json", *FAST)
    assert run(*files, "--json", "--per-image", "names.csv") == 0
    found = capsys.readouterr()
    assert "names.json: images are named by their file_name in numbers.json" in found.err
    assert run("--results", "a.json", "--references", "c.json", *FAST, "--json") == 0
    by_id = json.loads(capsys.readouterr().out)["results"][0]["corpus"]
    assert json.loads(found.out)["results"][0]["corpus"] == by_id
    rows = csv.DictReader(Path("names.csv").read_text().splitlines())
    assert [row["image_id"] for row in rows] == list(names)


def test_results_by_file_name_are_named_where_they_do_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    named_by_file()
    files = ("--results", "names.json", "--references", "numbers.json", *FAST)
    write("names.json", {"man.jpg": "a man", "dogs.jpg": "dogs", "car.jpg": "a car"})
    assert run(*files) == 1
    said = capsys.readouterr().err
    assert "names.json has no caption for 1 image (73) of numbers.json" in said
    assert "names.json has captions for 1 image (car.jpg) not in numbers.json" in said
    write("names.json", {"man.jpg": "a man", "two.jpg": "dogs", "car.jpg": "a car"})
    assert run(*files) == 1
    assert "share no image: the ids are like man.jpg, two.jpg, car.jpg" in capsys.readouterr().err
    named_by_file(_72="val/man.jpg")
    write("names.json", {"man.jpg": "a man", "bus.v2.png": "a bus"})
    assert run(*files) == 1
    said = capsys.readouterr().err
    assert "1 image (man.jpg) named by file names that are not of one image each in num" in said
    assert "share no image" in said


@pytest.mark.parametrize("taken", ["a.json", "c.json"])
def test_per_image_scores_take_the_place_of_nothing_else(
    taken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--results", "a.json", "--references", "c.json", *FAST, "--per-image")
    before = Path(taken).read_bytes()
    assert run(*files, taken) == run(*files, f"./{taken}") == 2
    assert f"--per-image {taken} is read by this very command" in capsys.readouterr().err
    assert Path(taken).read_bytes() == before
    Path("notes.csv").write_text("mine\n")
    assert run(*files, "notes.csv") == 2 and Path("notes.csv").read_text() == "mine\n"
    assert "notes.csv is there and holds no scores of an earlier" in capsys.readouterr().err
    assert run(*files, "new.csv") == run(*files, "new.csv") == 0


def test_a_submission_takes_the_place_of_nothing_that_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write("captions_val2014_net_results.json", results(CAPTIONS))
    before = path.read_bytes()
    write("ids.json", list(CAPTIONS))
    files = ("--results", path, "--submission", "net", "--submission-ids", "ids.json")
    assert run(*files) == 2
    assert f"{path} is read by this very command" in capsys.readouterr().err
    assert path.read_bytes() == before and not Path("net_results.zip").exists()
    assert run(*files, "--out", "server") == 0


def test_fixed_table(capsys: pytest.CaptureFixture[str]) -> None:
    from evaluate.document_frequency import DocumentFrequency

    DocumentFrequency.build({1: ["a man on a horse"], 2: ["a dog"]}).save("df.npz")
    write("one.json", results({1: CAPTIONS[1]}))
    files = ("--results", "one.json", "--references", "c.json", "--subset", "--metrics", "cider")
    assert run(*files, "--json") == 0
    alone = json.loads(capsys.readouterr().out)["results"][0]
    assert alone["corpus"]["CIDEr"] == 0 and "CIDEr is 0" in alone["warnings"][0]
    assert run(*files, "--json", "--df", "df.npz") == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["corpus"]["CIDEr"] > 0
    Path("df.npz").write_bytes(b"PK no table")
    assert run(*files, "--df", "df.npz") == 1
    assert "df.npz: not a document-frequency table" in capsys.readouterr().err


def test_submission_needs_no_references(capsys: pytest.CaptureFixture[str]) -> None:
    write("ids.json", list(CAPTIONS))
    submit = ("--submission", "net", "--submission-split", "test2014", "--out", "server")
    assert run("--results", "a.json", *submit, "--submission-ids", "ids.json") == 0
    written = json.loads(Path("server/captions_test2014_net_results.json").read_text())
    assert written == results(CAPTIONS) and Path("server/net_results.zip").exists()
    assert "the server also wants val2014" in capsys.readouterr().err
    assert run("--results", "a.json", *submit) == 1
    assert "3 images, wanted the 40,775 of test2014" in capsys.readouterr().err


def test_none_of_the_metrics_available(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_JAVA", "/no/such/java")
    files = ("--results", "a.json", "--references", "c.json")
    assert run(*files, "--metrics", "meteor") == 1
    assert "none of the metrics asked for is available: METEOR: " in capsys.readouterr().err
    assert run(*files) == 0
    assert "METEOR: not available: no Java" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --results FILE --references FILE or --run RUN"),
        (("--results", "a.json"), "--references FILE is missing"),
        (("--results", "a.json", "--run", "."), "exclude each other"),
        (
            ("--results", "a.json", "--references", "c.json", "--markdown", "--latex"),
            "--markdown and --latex exclude each other",
        ),
        (("--results", "a.json", "--references", "c.json", "."), ". is no results file"),
        (("--run", ".", "a.json"), "a.json is no run folder"),
        (
            ("--results", "a.json", "--references", "c.json", "--out", "scores"),
            "--out goes with --submission only",
        ),
        (("--run", ".", "--references", "c.json"), "--references goes with --results only"),
        (
            ("--results", "a.json", "--references", "c.json", "--beam", "3"),
            "--beam goes with --run",
        ),
        (("--results", "a.json", "--references", "c.json", "--metrics", "bleu,blue"), "blue given"),
        (("--results", "a.json", "--references", "c.json", "--json", "--latex"), "exclude each"),
        (("--results", "a.json", "b.json", "--submission", "net"), "takes one results file"),
        (("--results", "none.json", "--references", "c.json"), "does not exist"),
    ],
)
def test_wrong_usage_ends_with_2(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@dataclass
class FakeDecoded:
    """What decoding hands over."""

    results: Path
    captions: Path
    references: dict[str, list[str]] = field(
        default_factory=lambda: {str(image): texts for image, texts in REFERENCES.items()}
    )
    train_captions: tuple[str, ...] = ("a man on a horse", "a bird")
    nbest: Path | None = None
    manner: dict[str, Any] = field(default_factory=dict)
    constraints: dict[str, Any] | None = None
    remarks: tuple[str, ...] = ()


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A decoder that writes fixed captions; returns the options of each call."""
    calls: list[dict[str, Any]] = []

    def decode_split(path: Path, split: str, **options: Any) -> FakeDecoded:
        calls.append({"run": path, "split": split, **options})
        name = f"{split}-shuffled" if options["shuffle"] else split
        decoded = FakeDecoded(
            results=write(f"{path}/results/{name}.json", results({**CAPTIONS, 3: ""})),
            captions=Path("c.json"),
        )
        if options["num_captions"]:
            lists = [
                {"image_id": image, "captions": [text, "a dog runs"]}
                for image, text in CAPTIONS.items()
            ]
            decoded.nbest = write(f"{path}/results/{name}.nbest.json", lists)
        return decoded

    module = ModuleType("pipeline.decoding")
    module.decode_split = decode_split  # type: ignore[attr-defined]
    module.check_runs_before = lambda *_: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pipeline.decoding", module)
    Path("net").mkdir()
    Path("other").mkdir()
    return calls


def test_runs_are_decoded_and_scored(
    decoding: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--beam", 5, "--num-captions", 2, "--device", "cpu")
    assert run("--run", "net", "other", *options, *FAST, "--json") == 0
    assert [call["run"] for call in decoding] == [Path("net"), Path("other")]
    assert {call["split"] for call in decoding} == {"test"}
    assert (decoding[0]["beam"], decoding[0]["num_captions"]) == (5, 2)
    found = json.loads(capsys.readouterr().out)["results"][0]
    assert found["name"] == "net" and found["diversity"]["nbest"] == 2
    assert found["diversity"]["novel"] == pytest.approx(1 / 3)  # the empty one is not
    kept = Path("net/scores/test.json").read_text()
    assert Scores.from_json(kept).corpus == found["corpus"]
    assert json.loads(kept)["intervals"].keys() == found["corpus"].keys()


def test_shuffled_features_have_files_of_their_own(decoding: list[dict[str, Any]]) -> None:
    assert run("--run", "net", "--split", "val", "--shuffle-features", *FAST) == 0
    assert decoding[0]["shuffle"] is True
    assert Path("net/scores/val-shuffled.json").exists()
    assert not Path("net/scores/val.json").exists()


def test_a_trained_run_is_decoded_for_real(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features, captions = write_toy(tmp_path)
    train(quick("xe.epochs=1", "scst.epochs=0"), captions, features, Path("real"), CPU)
    files = ("--run", "real", "--device", "cpu", *FAST)
    assert run(*files, "--num-captions", 2, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    (one,) = found["results"]
    images = json.loads(Path("real/results/test.json").read_text())
    assert found["images"] == len(images) == one["diversity"]["captions"]
    assert one["diversity"]["nbest"] == 2 and one["diversity"]["novel"] is not None
    assert run("--results", "real/results/test.json", "--references", captions, "--split", "test",
               "--allow-empty", *FAST, "--json") == 0  # fmt: skip
    again = json.loads(capsys.readouterr().out)["results"][0]
    assert again["corpus"] == pytest.approx(one["corpus"])
    kept = Scores.from_json(Path("real/scores/test.json").read_text())
    assert kept.corpus == pytest.approx(one["corpus"])


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a.json", "sub/b.json"], ["a", "b"]),
        (["a.json.gz", "b.csv.gz"], ["a", "b"]),
        (["x/test.json", "y/test.json"], ["x/test", "y/test"]),
        (["net.v1", "net.v2"], ["net.v1", "net.v2"]),  # folders
        (["a.json", "a.json"], ["a.json (1)", "a.json (2)"]),
        (["p/x/test.json", "q/x/test.json"], ["p/x/test.json", "q/x/test.json"]),
    ],
)
def test_names_of_rows(paths: list[str], names: list[str]) -> None:
    for name in ("net.v1", "net.v2"):
        Path(name).mkdir()
    assert names_of([Path(path) for path in paths]) == names


def test_what_all_sources_share_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    write("empty.json", results({**CAPTIONS, 2: ""}))
    files = ("--results", "a.json", "empty.json", "--references", "c.json", "--allow-empty")
    assert run(*files, *FAST) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "empty: warning: captions without a word score 0: image 2" in lines
    assert sum("CIDEr weighs words by these 3 images alone" in line for line in lines) == 1
