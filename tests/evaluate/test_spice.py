"""SPICE: started right, wrong in no silent way, right without its cache."""

from __future__ import annotations

import json
import shutil
import stat
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

from evaluate import java as java_module
from evaluate import spice as spice_module
from evaluate.corenlp import CODE, CUT_MODELS, MODEL_FILES, find_corenlp
from evaluate.errors import EvaluateError, NotAvailable
from evaluate.java import Java, stop_all
from evaluate.spice import KINDS, Spice, SpiceScores, summary

REFERENCES = {"b": ["a brown dog runs on grass"], "a": ["two cats", "a small cat sleeps"]}
CANDIDATES = {"a": "a cat", "b": "a dog"}
REAL_HEAP = 1200  # MB for the real program


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture()
def jars(tmp_path: Path) -> Path:
    """A folder that looks like CoreNLP."""
    folder = tmp_path / "corenlp"
    folder.mkdir()
    for name in (CODE, CUT_MODELS):
        with zipfile.ZipFile(folder / name, "w") as jar:
            for member in MODEL_FILES:
                jar.writestr(member, "")
    return folder


# Stands for Java: writes a score per image, and what it was called with.
ANSWER = """
import json, sys
images = json.load(open("captions.json", encoding="ascii"))
kinds = "All Object Attribute Relation Color Cardinality Size".split()
def score(image):
    known = {"f": 0.25 * len(image["test"].split()), "pr": 1.0, "re": 1.0, "tp": 1, "fp": 0}
    none = {"f": None, "pr": None, "re": None, "tp": 0, "fp": 0}
    return {k: none if k in ("Size",) else known for k in kinds}
answer = [{"image_id": i["image_id"], "scores": score(i)} for i in images]
json.dump(answer, open("scores.json", "w"))
"""


def fake_java(folder: Path, before: str = "", version: int = 25) -> Java:
    (folder / "answer.py").write_text(ANSWER)
    path = folder / "java"
    calls = folder / "calls"
    script = f'#!/bin/sh\necho "$@" >> {calls}\n{before}\npython3 {folder / "answer.py"}\n'
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Java(path, version, str(version), "test")


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_scores_in_the_order_of_the_references(tmp_path: Path, jars: Path) -> None:
    done: list[int] = []
    scores = Spice(corenlp=jars, java=fake_java(tmp_path)).score(
        REFERENCES, {"a": "one two three", "b": "one"}, done.append
    )
    assert scores.per_image == [0.25, 0.75] and scores.corpus == 0.5
    assert scores.sub == {**dict.fromkeys(KINDS, 0.5), "Size": None}
    assert done == [2]


def test_many_images_go_in_parts(
    tmp_path: Path, jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spice_module, "_IMAGES_PER_RUN", 2)
    done: list[int] = []
    captions = {i: "word " * (i + 1) for i in range(5)}
    scores = Spice(corenlp=jars, java=fake_java(tmp_path)).score(
        {i: ["a dog"] for i in captions}, captions, done.append
    )
    assert scores.per_image == [0.25, 0.5, 0.75, 1.0, 1.25]
    assert done == [2, 2, 1] and len(calls(tmp_path)) == 3


@pytest.mark.parametrize("version", [8, 17, 21, 25])
def test_flags_by_version(tmp_path: Path, jars: Path, version: int) -> None:
    spice = Spice(corenlp=jars, java=fake_java(tmp_path, version=version), heap=1234, threads=3)
    spice.score(REFERENCES, CANDIDATES)
    (call,) = calls(tmp_path)
    assert call.count("--add-opens=java.base/") == (6 if version > 8 else 0)
    assert ("--enable-native-access" in call) == (version == 25)
    assert ("--sun-misc-unsafe-memory-access=allow" in call) == (version == 25)
    assert "-Xmx1234m" in call and "-threads 3" in call and "-Duser.language=en" in call
    assert str(jars / CUT_MODELS) in call and "-jar" not in call.split()
    # Our engine comes first, and nothing is written beside the installed jars.
    classpath = call.split(" -cp ")[1].split(" ")[0].split(":")
    assert classpath[0].endswith("support.jar") and classpath[1].endswith("spice-1.0.jar")
    cache = call.split("-cache ")[1].split(" ")[0]
    assert cache.startswith(str(tmp_path / "cache"))


NATIVE = "echo 'java.lang.UnsatisfiedLinkError: no lmdbjni in java.library.path' >&2"


@pytest.mark.parametrize(
    "failure",
    [
        f"{NATIVE}; exit 1",
        "kill -BUS $$",
        "kill -KILL $$",
        "echo 'LMDBException: No space left' >&2; exit 1",
    ],
)
def test_a_failing_cache_is_done_without(
    tmp_path: Path, jars: Path, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    java = fake_java(tmp_path, f'case "$*" in *-cache*) {failure};; esac')
    scores = Spice(corenlp=jars, java=java).score(REFERENCES, CANDIDATES)
    assert scores.corpus == 0.5
    assert ["-cache" in c for c in calls(tmp_path)] == [True, False]
    assert "runs without it" in caplog.text


def test_a_cache_folder_that_cannot_be(tmp_path: Path, jars: Path) -> None:
    (tmp_path / "file").touch()
    spice = Spice(corenlp=jars, java=fake_java(tmp_path), cache=tmp_path / "file")
    assert spice.score(REFERENCES, CANDIDATES).corpus == 0.5
    assert ["-cache" in c for c in calls(tmp_path)] == [False]


def test_a_full_disk_for_temporary_files_is_named(
    tmp_path: Path, jars: Path, full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(full_disk))
    with pytest.raises(EvaluateError, match="No space left on device.*by TMPDIR"):
        Spice(corenlp=jars, java=fake_java(tmp_path)).score(REFERENCES, CANDIDATES)
    assert not list(full_disk.glob("spice-*"))


def test_no_library_for_this_processor(
    tmp_path: Path, jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spice_module.platform, "machine", lambda: "aarch64")
    Spice(corenlp=jars, java=fake_java(tmp_path)).score(REFERENCES, CANDIDATES)
    assert ["-cache" in c for c in calls(tmp_path)] == [False]


def test_javas_last_lines_are_in_the_error(tmp_path: Path, jars: Path) -> None:
    noise = "echo 'WARNING: sun.misc.Unsafe' >&2; echo 'Parsing reference captions' >&2"
    java = fake_java(tmp_path, f"{noise}; echo 'Exception: the real reason' >&2; exit 1")
    with pytest.raises(EvaluateError) as caught:
        Spice(corenlp=jars, java=java, use_cache=False).score(REFERENCES, CANDIDATES)
    message = str(caught.value)
    assert "it ended with 1" in message and "Exception: the real reason" in message
    assert "Unsafe" not in message and "pipeline doctor" in message


@pytest.mark.parametrize("ending", ["", "; exit 1"])
def test_captions_parsed_without_memory_are_no_result(
    tmp_path: Path, jars: Path, ending: str
) -> None:
    """CoreNLP itself goes on after running out of memory, and SPICE would cache the outcome."""
    said = "WARNING: Parsing of sentence ran out of memory (length=308).  Will ignore and continue."
    java = fake_java(tmp_path, f"echo '{said}' >&2{ending}")
    cache = tmp_path / "parses"
    spice = Spice(corenlp=jars, java=java, heap=700, cache=cache, threads=1)
    with pytest.raises(EvaluateError, match="heap of 700 MB; set PIPELINE_JAVA_HEAP"):
        spice.score(REFERENCES, CANDIDATES)
    assert list(cache.iterdir()) == []  # what was parsed badly is not kept


def test_out_of_memory_once_more_with_one_thread(tmp_path: Path, jars: Path) -> None:
    failing = 'case "$*" in *"-threads 2"*) echo OutOfMemoryError >&2; exit 1;; esac'
    spice = Spice(corenlp=jars, java=fake_java(tmp_path, failing), threads=2)
    assert spice.score(REFERENCES, CANDIDATES).corpus == 0.5
    assert ["-threads 1" in c for c in calls(tmp_path)] == [False, True]
    assert all("-cache" in c for c in calls(tmp_path))


def test_time_limit_ends_all_of_it(tmp_path: Path, jars: Path) -> None:
    spice = Spice(
        corenlp=jars, java=fake_java(tmp_path, "sleep 60"), time_limit=0.3, use_cache=False
    )
    started = time.monotonic()
    with pytest.raises(EvaluateError, match="no answer within 0.3 s"):
        spice.score(REFERENCES, CANDIDATES)
    assert time.monotonic() - started < 10


def test_stopped_is_not_started_again(tmp_path: Path, jars: Path) -> None:
    """As when a caller in another thread is interrupted."""
    spice = Spice(corenlp=jars, java=fake_java(tmp_path, "sleep 60"))
    timer = threading.Timer(0.5, stop_all)
    timer.start()
    with pytest.raises(EvaluateError, match="SPICE was stopped"):
        spice.score(REFERENCES, CANDIDATES)
    assert len(calls(tmp_path)) == 1


def test_an_answer_for_other_images_is_refused(tmp_path: Path, jars: Path) -> None:
    java = fake_java(tmp_path, "echo '[]' > scores.json; exit 0")
    with pytest.raises(EvaluateError, match="answered for 0 images, wanted 2"):
        Spice(corenlp=jars, java=java, use_cache=False).score(REFERENCES, CANDIDATES)


def test_captions_are_handed_over_whole(tmp_path: Path, jars: Path) -> None:
    java = fake_java(tmp_path, f"cp captions.json {tmp_path}/seen.json")
    texts = {1: 'quote " back \\ new\nline é 😀 \u2028 \ud800'}
    Spice(corenlp=jars, java=java).score({1: ["x", ""]}, texts)
    (seen,) = json.loads((tmp_path / "seen.json").read_text("ascii"))
    assert seen == {"image_id": 0, "test": texts[1].replace("\ud800", "?"), "refs": ["x", ""]}


def test_no_images_and_other_ids(tmp_path: Path, jars: Path) -> None:
    spice = Spice(corenlp=jars, java=fake_java(tmp_path))
    with pytest.raises(EvaluateError, match="one image or more"):
        spice.score({}, {})
    with pytest.raises(EvaluateError, match="'b'"):
        spice.score(REFERENCES, {"a": "a cat"})


def test_missing_corenlp_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(NotAvailable, match=f"no {CODE} and no .*models.jar in {tmp_path}") as e:
        Spice(corenlp=tmp_path)
    assert e.value.command == "pipeline setup spice"


def test_undefined_scores_count_nowhere() -> None:
    none = {"f": None, "pr": None, "re": None, "tp": 0, "fp": 0, "fn": 0}
    some = {"f": 0.5, "pr": 0.5, "re": 0.5, "tp": 1, "fp": 1, "fn": 1}
    first = {"All": some, **dict.fromkeys(KINDS, none)}
    second = {"All": {**some, "f": 0.0}, **dict.fromkeys(KINDS, none), "Color": some}
    scores = summary([first, second])
    assert scores.corpus == 0.25
    assert scores.sub == {**dict.fromkeys(KINDS, None), "Color": 0.5}


@pytest.fixture(scope="module")
def real() -> Path:
    """The folder of CoreNLP's real jars."""
    try:
        return find_corenlp().code.parent
    except NotAvailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def real_scores(real: Path) -> SpiceScores:
    """Of the real program, without a cache."""
    return Spice(corenlp=real, heap=REAL_HEAP, use_cache=False).score(REFERENCES, CANDIDATES)


@pytest.mark.slow
def test_real_runs_without_the_cache_library(
    real: Path, real_scores: SpiceScores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spice = Spice(corenlp=real, heap=REAL_HEAP)
    # Away from its folder: the jar itself names the libraries beside it.
    spice._jar = Path(shutil.copy(spice._jar, tmp_path))
    spice._libraries = [p for p in spice._libraries if not p.name.startswith("lmdbjni-")]
    assert spice.score(REFERENCES, CANDIDATES) == real_scores
    assert "runs without it" in caplog.text


@pytest.mark.slow
def test_real_runs_with_a_full_disk(
    real: Path, real_scores: SpiceScores, full_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scores = Spice(corenlp=real, heap=REAL_HEAP).score(REFERENCES, CANDIDATES)
    assert scores == real_scores
    assert f"failed with its cache {full_disk}" in caplog.text


@pytest.mark.slow
def test_real_killed_in_the_middle(
    real: Path, real_scores: SpiceScores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed while it fills its cache, it is right without it, and with it the next time."""
    spice = Spice(corenlp=real, heap=REAL_HEAP, cache=tmp_path)
    killer = threading.Thread(target=kill_spice_when_it_caches, args=(tmp_path,), daemon=True)
    killer.start()
    assert spice.score(REFERENCES, CANDIDATES) == real_scores
    assert not killer.is_alive() and "it ended with -9" in caplog.text
    caplog.clear()
    assert spice.score(REFERENCES, CANDIDATES) == real_scores
    assert not caplog.records


def kill_spice_when_it_caches(cache: Path) -> None:
    """End the running program as soon as there is more in its cache than two empty pages."""
    while not any(path.stat().st_size > 8192 for path in cache.rglob("data.mdb")):
        time.sleep(0.02)
    for popen in list(java_module._started):
        if "edu.anu.spice.SpiceScorer" in popen.args and popen.poll() is None:
            java_module.kill(popen)
