"""METEOR and SPICE against the numbers of the official programs.

METEOR's numbers and SPICE's scoring of given tuples are in the golden folder. SPICE's values of
the golden captions are the project's own: the official spice-1.0.jar with CoreNLP 3.6.0, compared
over Javas and stored by `benchmarks/compare_spice.py`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluate.corenlp import CODE, CUT_MODELS, find_corenlp
from evaluate.errors import NotAvailable
from evaluate.java import find_java, wheel_file
from evaluate.meteor import Meteor, additive_stats, meteor_score
from evaluate.meteor_process import Stats
from evaluate.spice import KINDS, Spice, SpiceScores, _java_flags
from evaluate.tokenizer import ptb_tokenize
from tests.golden.eval_files import golden_files

SPICE_VALUES = Path(__file__).parents[1] / "evaluate" / "data" / "spice_golden.json"
_FEW_IMAGES = 20  # SPICE of more takes minutes
_HEAP_MB = 1500
Captions = tuple[dict[int, list[str]], dict[int, str]]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def golden(folder: Path, name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(gzip.decompress((folder / "eval" / name).read_bytes()))
    return values


def captions(images: list[dict[str, Any]]) -> Captions:
    """Tokenised captions by position; ids occur twice in some sets."""
    references = {k: image["refs_tok"] for k, image in enumerate(images)}
    return references, {k: image["cand_tok"] for k, image in enumerate(images)}


@pytest.fixture(scope="module")
def meteor_stats(golden_dir: Path) -> dict[str, list[Stats]]:
    """METEOR's numbers of all sets, scored together."""
    images = {
        (path.name, k): image
        for path in golden_files(golden_dir, "metrics_*.json.gz")
        for k, image in enumerate(golden(golden_dir, path.name)["images"])
    }
    with Meteor() as running:
        stats = running.stats(
            {place: image["refs_tok"] for place, image in images.items()},
            {place: image["cand_tok"] for place, image in images.items()},
        )
    found: dict[str, list[Stats]] = {}
    for (name, _), numbers in zip(images, stats, strict=True):
        found.setdefault(name, []).append(numbers)
    return found


def test_meteor(golden_dir: Path, meteor_stats: dict[str, list[Stats]]) -> None:
    for name, stats in meteor_stats.items():
        expected = golden(golden_dir, name)
        assert [" ".join(map(str, s)) for s in stats] == expected["meteor_stats"], name
        per_image = [meteor_score(s) for s in stats]
        assert per_image == pytest.approx(expected["per_image"]["METEOR"], rel=0, abs=1e-12)
        sums = [sum(column) for column in zip(*additive_stats(stats), strict=True)]
        assert meteor_score(sums) == pytest.approx(expected["corpus"]["METEOR"], rel=0, abs=1e-12)


@pytest.mark.slow
def test_the_cut_table_gives_the_numbers_of_the_whole(
    golden_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = golden(golden_dir, "metrics_200.json.gz")
    monkeypatch.setattr("evaluate.meteor.cut_table", lambda _, source, *others: source)
    with Meteor(time_limit=300) as whole:
        stats = whole.stats(*captions(expected["images"]))
    assert [" ".join(map(str, s)) for s in stats] == expected["meteor_stats"]


@pytest.fixture(scope="module")
def corenlp() -> Path:
    try:
        return find_corenlp().code.parent
    except NotAvailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def scoring_half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CoreNLP without a parser: the classes of 3.4.1 are enough to score parsed captions."""
    folder = tmp_path_factory.mktemp("scoring")
    shutil.copy(wheel_file("tokenizer/stanford-corenlp-3.4.1.jar"), folder / CODE)
    with zipfile.ZipFile(folder / CUT_MODELS, "w"):
        return folder


@pytest.mark.skipif(shutil.which("javac") is None, reason="no javac to fill SPICE's cache with")
def test_spice_of_given_tuples(golden_dir: Path, scoring_half: Path, tmp_path: Path) -> None:
    """All counts and scores of 140 images, tuples handed over through SPICE's own cache."""
    images = golden(golden_dir, "spice_stage.json.gz")["images"]
    references = {
        i["id"]: [f"reference {k} of {i['id']}" for k in range(len(i["refs"]))] for i in images
    }
    candidates = {i["id"]: f"candidate of {i['id']}" for i in images}
    tuples = {candidates[i["id"]]: i["test"] for i in images}
    for image in images:
        tuples |= zip(references[image["id"]], image["refs"], strict=True)
    spice = Spice(corenlp=scoring_half, cache=tmp_path / "cache", heap=512, time_limit=120)
    fill_cache(tuples, tmp_path, tmp_path / "cache" / "corenlp-3.6.0")
    scores = spice.score(references, candidates)
    assert scores.details == [image["scores"] for image in images]
    assert scores.per_image == [image["scores"]["All"]["f"] for image in images]
    expected = golden(golden_dir, "spice_stage.json.gz")["mean_f"]
    assert scores.corpus == pytest.approx(expected, rel=0, abs=1e-12)
    for kind in KINDS:
        known = [i["scores"][kind]["f"] for i in images if i["scores"][kind]["f"] is not None]
        assert scores.sub[kind] == pytest.approx(sum(known) / len(known), rel=0, abs=1e-12)


def fill_cache(tuples: dict[str, Any], work: Path, cache: Path) -> None:
    """Put captions with their tuples into SPICE's cache, by a few lines of Java."""
    cache.mkdir(parents=True)
    (work / "tuples.json").write_text(json.dumps(tuples))
    source = Path(__file__).parents[1] / "evaluate" / "java" / "FillCache.java"
    spice = wheel_file("spice/spice-1.0.jar")
    classpath = f"{work}:{spice}:{wheel_file('spice/lib')}/*"
    compile_it = ["javac", "--release", "8", "-nowarn", "-cp", classpath, "-d", work, source]
    subprocess.run(compile_it, check=True, capture_output=True)
    java = find_java()
    command = [java.path, *_java_flags(java), "-cp", classpath, "FillCache"]
    ran = subprocess.run([*command, work / "tuples.json", cache], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def stored_values(path: Path) -> dict[str, Any] | None:
    """SPICE's values of exactly this golden file, if they are stored."""
    values: dict[str, Any] | None = json.loads(SPICE_VALUES.read_text())["sets"].get(path.name)
    same = values and values["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    return values if same else None


def spice_sets(folder: Path, *, quick: bool) -> list[Path]:
    """The golden files with stored values: those of a few images, or the others."""
    found = [
        path
        for path in golden_files(folder, "metrics_*.json.gz")
        if (len(golden(folder, path.name)["images"]) <= _FEW_IMAGES) == quick
    ]
    known = [path for path in found if stored_values(path)]
    if not known:
        pytest.skip(f"no SPICE values are stored for {[p.name for p in found]} as they are now")
    return known


def check_spice(path: Path, corenlp: Path, cache: Path) -> SpiceScores:
    """Score the images without endless captions; compare every number with the stored ones."""
    expected = stored_values(path)
    assert expected is not None
    images = json.loads(gzip.decompress(path.read_bytes()))["images"]
    assert expected["ids"] == [image["id"] for image in images]
    places = [k for k, value in enumerate(expected["f"]) if value is not None]
    assert len(places) >= len(images) - 2
    references, candidates = captions([images[k] for k in places])
    scores = Spice(corenlp=corenlp, heap=_HEAP_MB, cache=cache).score(references, candidates)
    counts = [
        [[d[kind][c] for c in ("tp", "fp", "fn")] for kind in ("All", *KINDS)]
        for d in scores.details
    ]
    assert counts == [expected["counts"][k] for k in places]
    assert scores.per_image == [expected["f"][k] for k in places]
    assert scores.corpus == expected["corpus"] and scores.sub == expected["sub"]
    return scores


def test_spice(golden_dir: Path, corenlp: Path, tmp_path: Path) -> None:
    (tmp_path / "no-parser").mkdir()
    shutil.copy(corenlp / CODE, tmp_path / "no-parser" / CODE)
    with zipfile.ZipFile(tmp_path / "no-parser" / CUT_MODELS, "w"):
        pass
    for path in spice_sets(golden_dir, quick=True):
        scores = check_spice(path, corenlp, tmp_path)
        # Again, from the cache of parsed captions: no model is loaded.
        assert check_spice(path, tmp_path / "no-parser", tmp_path) == scores


@pytest.mark.slow
def test_spice_of_many(golden_dir: Path, corenlp: Path, tmp_path: Path) -> None:
    for path in spice_sets(golden_dir, quick=False):
        check_spice(path, corenlp, tmp_path)


@pytest.mark.slow
def test_spice_of_flickr8k(shared_dir: Path, corenlp: Path, tmp_path: Path) -> None:
    """One human caption against the other four of each image."""
    raw = (shared_dir / "data" / "flickr8k_mini" / "dataset_flickr8k_mini.json").read_bytes()
    expected = json.loads(SPICE_VALUES.with_name("spice_flickr8k_mini.json").read_text())
    assert expected["sha256"] == hashlib.sha256(raw).hexdigest(), "made for another file"
    images = [i for i in json.loads(raw)["images"] if i["split"] == "test"][: len(expected["f"])]
    texts = {i["filename"]: ptb_tokenize([s["raw"] for s in i["sentences"]]) for i in images}
    scores = Spice(corenlp=corenlp, heap=_HEAP_MB, cache=tmp_path).score(
        {i: t[1:] for i, t in texts.items()}, {i: t[0] for i, t in texts.items()}
    )
    assert dict(zip(texts, scores.per_image, strict=True)) == expected["f"]
    assert scores.corpus == expected["corpus"] and scores.sub == expected["sub"]
