"""The cut paraphrase table: all pairs that can match, found again, kept out of the way."""

from __future__ import annotations

import errno
import gzip
import os
import random
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from evaluate import paraphrases
from evaluate.errors import EvaluateError
from evaluate.meteor import Meteor

WORDS = ["a", "b", "c", "'s", "é", "-"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "caption-pipeline" / "meteor"


def table(path: Path, pairs: Sequence[tuple[str, str]]) -> Path:
    path.write_bytes(gzip.compress("".join(f"0.5\n{a}\n{b}\n" for a, b in pairs).encode()))
    return path


def pairs_of(path: Path) -> list[tuple[str, str]]:
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert lines[::3] == ["0.5"] * (len(lines) // 3)
    return list(zip(lines[1::3], lines[2::3], strict=True))


def random_pairs(count: int) -> list[tuple[str, str]]:
    rng = random.Random(1)
    phrases = [" ".join(rng.choices(WORDS, k=rng.randint(1, 3))) for _ in range(2 * count)]
    return sorted(zip(phrases[::2], phrases[1::2], strict=True))


def cut_table(source: Path, references: Sequence[str], candidates: Sequence[str] = ()) -> Path:
    return paraphrases.cut_table(Meteor()._program(), source, references, candidates, 60)


def can_stand(phrase: str, words: set[str], pairs: set[tuple[str, str]]) -> bool:
    """Whether a phrase may be found in captions of these words and pairs of neighbours."""
    split = phrase.split()
    return set(split) <= words and pairs.issuperset(zip(split, split[1:], strict=False))


def test_keeps_exactly_the_pairs_between_references_and_candidates(tmp_path: Path) -> None:
    pairs = random_pairs(20_000)  # more than the program reads at once
    source = table(tmp_path / "all.gz", pairs)
    in_references = {"a", "'s", "é", "-"}, {("a", "a"), ("a", "é"), ("a", "'s"), ("'s", "-")}
    in_candidates = {"b", "c", "a"}, {("b", "c"), ("c", "a")}

    def wanted(one: str, other: str) -> bool:
        return can_stand(one, *in_references) and can_stand(other, *in_candidates)

    expected = [p for p in pairs if wanted(*p) or wanted(*reversed(p))]
    assert 500 < len(expected) < 10_000
    assert len(gzip.decompress(source.read_bytes())) > 1 << 17
    assert pairs_of(cut_table(source, ["a a é", "A's -"], ["b c a"])) == expected


def test_a_phrase_on_either_side_is_looked_for_on_both(tmp_path: Path) -> None:
    source = table(tmp_path / "all.gz", [("a", "b"), ("b", "c"), ("a b", "c"), ("c a", "a a")])
    assert pairs_of(cut_table(source, ["a x b"], ["b"])) == [("a", "b")]
    assert pairs_of(cut_table(source, ["b"], ["a x b"])) == [("a", "b")]
    assert pairs_of(cut_table(source, ["a b"], ["c"])) == [("b", "c"), ("a b", "c")]
    assert pairs_of(cut_table(source, ["a", "b"], ["c"])) == [("b", "c")]  # never side by side
    assert pairs_of(cut_table(source, ["a a"])) == []


def test_the_same_captions_find_their_table_again(tmp_path: Path, cache: Path) -> None:
    source = table(tmp_path / "all.gz", random_pairs(50))
    first = cut_table(source, ["a b", "c"], ["c"])
    stamp = first.stat().st_mtime_ns - 10**9
    os.utime(first, ns=(stamp, stamp))
    assert cut_table(source, ["c", "a b", "c"], ["c"]) == first
    assert first.stat().st_mtime_ns > stamp  # it is marked as used
    assert cut_table(source, ["a b"], ["c", "c"]) != first
    assert cut_table(source, ["a b", "c", "c"], []) != first
    assert len(list(cache.glob("*"))) == 3


def test_another_source_is_another_table(tmp_path: Path) -> None:
    one = cut_table(table(tmp_path / "one.gz", [("a", "b")]), ["a b"], ["a b"])
    two = cut_table(table(tmp_path / "two.gz", [("a", "b"), ("b", "a")]), ["a b"], ["a b"])
    assert pairs_of(one) == [("a", "b")] and pairs_of(two) == [("a", "b"), ("b", "a")]


def test_only_the_newest_tables_are_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paraphrases, "_KEPT", 2)
    source = table(tmp_path / "all.gz", [("a", "b")])
    made = []
    for age, word in ((300, "p"), (200, "q"), (100, "r")):
        made.append(cut_table(source, [word]))
        stamp = made[-1].stat().st_mtime - age
        os.utime(made[-1], (stamp, stamp))
    assert [path.exists() for path in made] == [False, True, True]


def test_nothing_half_written_stays(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = table(tmp_path / "all.gz", random_pairs(50))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(paraphrases.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        cut_table(source, ["a"])
    assert list(cache.iterdir()) == []


def test_a_full_disk_is_left_as_it_was(tmp_path: Path, full_disk: Path) -> None:
    source = table(tmp_path / "all.gz", random_pairs(50))
    with pytest.raises(OSError) as caught:
        cut_table(source, ["a"])
    assert caught.value.errno == errno.ENOSPC
    assert list((full_disk / "caption-pipeline" / "meteor").iterdir()) == []


@pytest.mark.parametrize(
    "content, message",
    [
        (b"no gzip", "Not in GZIP format"),
        (gzip.compress(b"0.5\na\nb\n0.5\na\n"), "in the middle of a pair"),
        (gzip.compress(b"0.5\na\nb\n" * 9)[:-12], "Unexpected end"),
        (gzip.compress(b"x" * 200_000), "no such table"),
    ],
)
def test_a_broken_table_is_an_error(
    tmp_path: Path, cache: Path, content: bytes, message: str
) -> None:
    source = tmp_path / "all.gz"
    source.write_bytes(content)
    with pytest.raises(EvaluateError, match=message):
        cut_table(source, ["a"], ["b"])
    assert list(cache.iterdir()) == []


def test_a_silent_program_is_an_error_in_time(tmp_path: Path, cache: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nsleep 60\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    source = table(tmp_path / "all.gz", [("a", "b")])
    with pytest.raises(EvaluateError, match=r"no answer within 0.2 s"):
        paraphrases.cut_table([str(java)], source, ["a"], ["b"], 0.2)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    "caption, phrase",
    [
        ("a tri-colored dog", "tri colored dog"),
        ("the U.S.A. won", "the usa won"),
        ("don\u2019t", "don 't"),
        ("mr. T (5:30)", "mr . t ("),
        ("sailing on-board", "on board"),
        ("x\u00b2 caf\u00e9", "caf\u00e9"),
    ],
)
def test_phrases_of_captions_as_meteor_cuts_them(tmp_path: Path, caption: str, phrase: str) -> None:
    source = table(tmp_path / "all.gz", [("b", phrase), ("b", f"{phrase} no")])
    assert pairs_of(cut_table(source, [caption], ["b"])) == [("b", phrase)]


def test_a_cut_table_gives_the_numbers_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captions with marks in every place, and pairs of the phrases that METEOR makes of them."""
    rng = random.Random(3)
    pieces = "a b C d's e-f u.s. 5:30 ( ... , '' -- \u2019s x\u00b2 \u6771\u4eac".split()
    joins = ["", " ", " "]

    def text() -> str:
        return "".join(rng.choice(pieces) + rng.choice(joins) for _ in range(8)).strip()

    references = {i: [text(), text()] for i in range(60)}
    candidates = {i: text() for i in range(60)}
    words = "a b c d 's e - f u.s us u . s 5 : 30 5:30 ( ) ... , '' -- x \u00b2 \u6771".split()
    phrases = [" ".join(rng.choices(words, k=rng.randint(1, 3))) for _ in range(6000)]
    source = table(tmp_path / "all.gz", list(zip(phrases[::2], phrases[1::2], strict=True)))
    with Meteor(paraphrases=source, heap_mb=256) as cut:
        found = cut.stats(references, candidates)
    monkeypatch.setattr("evaluate.meteor.cut_table", lambda command, source, *others: source)
    with Meteor(paraphrases=source) as whole:
        assert found == whole.stats(references, candidates)
    assert sum(stats[16] + stats[18] for stats in found) > 10  # paraphrases do match
