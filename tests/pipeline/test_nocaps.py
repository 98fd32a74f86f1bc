"""nocaps from end to end, small: words as vectors, constraints, scores by domain."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.training import train
from tests.caption.toy import COLOURS, NOUNS, write_glove, write_toy
from tests.pipeline.test_train import CPU, quick

KNOWN = ("a", "is", "there", "here", "one", *NOUNS, *COLOURS)


@dataclass(frozen=True)
class Nocaps:
    """A run on the toy's captions, and an evaluation set with an object that no caption has."""

    run: Path
    captions: Path  # COCO's form without splits; ids 0, 1, ...; file names as in the cache
    constraints: Path
    ids: tuple[int, ...]


@pytest.fixture(scope="module")
def nocaps(tmp_path_factory: pytest.TempPathFactory) -> Nocaps:
    folder = tmp_path_factory.mktemp("nocaps")
    cache, captions = write_toy(folder)
    write_glove(folder / "glove.txt", [*KNOWN, "zebra", "zebras"], 8)
    hierarchy = {
        "LabelName": "/m/0",
        "Subcategory": [{"LabelName": "/m/1", "Subcategory": [{"LabelName": "/m/2"}]}],
    }
    (folder / "hierarchy.json").write_text(json.dumps(hierarchy))
    (folder / "names.csv").write_text("/m/1,Animal\n/m/2,Zebra\n")
    files = f"--hierarchy {folder}/hierarchy.json --names {folder}/names.csv"
    typed(f"constraints words {files} --vectors {folder}/glove.txt --width 8 --out {folder}/w.txt")
    recipe = quick(
        "model.vectors=8",
        f"vocabulary.vectors={folder / 'glove.txt'}",
        f"vocabulary.extra={folder / 'w.txt'}",
        "xe.epochs=3",
        "scst.epochs=0",
    )
    train(recipe, captions, cache, folder / "run", CPU)
    (folder / "glove.txt").unlink()
    content = json.loads(captions.read_text())
    test = [image for image in content["images"] if image["split"] == "test"]
    domains = ("in-domain", "near-domain", "out-domain", "out-domain")
    images = [
        {"id": n, "file_name": image["filename"], "domain": domain}
        for n, (image, domain) in enumerate(zip(test, domains, strict=True))
    ]
    annotations = [
        {"image_id": n, "caption": s["raw"]}
        for n, image in enumerate(test)
        for s in image["sentences"]
    ]
    (folder / "val.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    box = [0, 0, 9, 9]
    out = [["/m/2", 0.9, box], ["/m/1", 0.8, box]]
    detections = {test[2]["filename"]: out, test[3]["filename"]: out, test[0]["filename"]: []}
    (folder / "detections.json").write_text(json.dumps(detections))
    typed(f"constraints make {folder}/detections.json {files} --out {folder}/c.json")
    return Nocaps(
        run=folder / "run",
        captions=folder / "val.json",
        constraints=folder / "c.json",
        ids=tuple(range(len(images))),
    )


def typed(line: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert int(ended.value.code or 0) == code


def test_both_rows_of_the_table_come_from_one_run(
    nocaps: Nocaps, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        f"eval --run {nocaps.run} --captions {nocaps.captions} --split nocaps-val"
        f" --domains {nocaps.captions} --metrics cider,rouge --resamples 0 --device cpu"
    )
    typed(command)
    plain = capsys.readouterr().out
    headings = [line.split() for line in plain.splitlines() if "near" in line]
    assert headings == [["in", "near", "out", "overall"]] and "constraints:" not in plain
    typed(f"{command} --constraints {nocaps.constraints}")
    said = capsys.readouterr().out
    assert ["in", "near", "out", "overall"] in [line.split() for line in said.splitlines()]
    assert "2 of an image's or all: 2 of 4 images have some, 2 captions hold them" in said
    assert "1 of 4 images are not in" in said
    captions = {}
    for name in ("nocaps-val", "nocaps-val-constrained"):
        entries = json.loads((nocaps.run / "results" / f"{name}.json").read_text())
        captions[name] = {entry["image_id"]: entry["caption"].split() for entry in entries}
        assert tuple(captions[name]) == nocaps.ids
    free, held = captions.values()
    assert free[0] == held[0] and free[1] == held[1]
    assert all({"zebra", "zebras"}.intersection(held[image]) for image in (2, 3))
    kept = json.loads((nocaps.run / "scores" / "nocaps-val-constrained.json").read_text())
    assert kept["constraints"]["images_that_hold_them"] == 2 and kept["constraints"]["satisfy"] == 2
    assert len(kept["constraints"]["sha256"]) == 64
    assert list(kept["domains"]) == ["in-domain", "near-domain", "out-domain"]
    before = json.loads((nocaps.run / "scores" / "nocaps-val.json").read_text())
    assert before["constraints"] is None


def test_an_ensemble_may_be_constrained_and_the_lists_are_in_order(nocaps: Nocaps) -> None:
    options = f"--captions {nocaps.captions} --metrics rouge --resamples 0 --device cpu"
    runs = f"--run {nocaps.run} --run {nocaps.run} --ensemble probabilities"
    typed(f"eval {runs} {options} --constraints {nocaps.constraints} --num-captions 2")
    own = f"captions-{nocaps.captions.stem}"  # not the run's, and test is a split of the run
    name = f"test+{nocaps.run.name}-{own}-constrained.nbest.json"
    lists = json.loads((nocaps.run / "results" / name).read_text())
    for entry in lists:
        first, second = entry["log_probabilities"]
        assert first >= second
    assert all("zebra" in text for entry in lists[2:] for text in entry["captions"])


def test_what_does_not_go_together_is_wrong_usage(
    nocaps: Nocaps, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(f"eval --run {nocaps.run} --satisfy 1", 2)
    assert "--satisfy goes with --constraints" in capsys.readouterr().err
    files = f"--results {nocaps.captions} --references {nocaps.captions}"
    typed(f"eval {files} --constraints {nocaps.constraints}", 2)
    assert "--constraints goes with --run" in capsys.readouterr().err
