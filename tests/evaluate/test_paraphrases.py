"""The cut paraphrase table: all pairs that can match, found again, kept out of the way."""

from __future__ import annotations

import errno
import gzip
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from evaluate import paraphrases
from evaluate.paraphrases import cut_table, is_plain, meteor_words, neighbours

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


@pytest.mark.parametrize("chunk", [1, 7, 1 << 22])
def test_keeps_exactly_the_pairs_of_known_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(paraphrases, "_CHUNK", chunk)
    pairs = random_pairs(300)
    source = table(tmp_path / "all.gz", pairs)
    known = {"a", "'s", "é", "-"}
    references = ["a a é", "a's"]
    pairs_held = {("a", "a"), ("a", "é"), ("a", "'s")}

    def held(phrase: str) -> bool:
        words = phrase.split()
        together = zip(words, words[1:], strict=False)
        return set(words) <= known and all(p in pairs_held or "-" in p for p in together)

    expected = [
        p for p in pairs if set(" ".join(p).split()) <= known and (held(p[0]) or held(p[1]))
    ]
    assert 20 < len(expected) < 120
    assert pairs_of(cut_table(source, references)) == expected


def test_candidates_words_make_the_table_larger(tmp_path: Path) -> None:
    source = table(tmp_path / "all.gz", [("a", "b"), ("b", "c"), ("a b", "c"), ("c a", "a a")])
    assert pairs_of(cut_table(source, ["a x b"])) == [("a", "b")]
    assert pairs_of(cut_table(source, ["a x b"], {"c"})) == [("a", "b"), ("b", "c")]
    assert pairs_of(cut_table(source, ["a b"], {"c"}))[2:] == [("a b", "c")]


def test_a_table_that_covers_the_words_is_used_again(tmp_path: Path, cache: Path) -> None:
    source = table(tmp_path / "all.gz", random_pairs(50))
    first = cut_table(source, ["a b"], {"c"})
    assert cut_table(source, ["a b"], {"c"}) == first
    assert cut_table(source, ["a b"]) == first  # fewer candidates' words
    larger = cut_table(source, ["a b"], {"é"})
    assert larger != first
    assert cut_table(source, ["a b"], {"c"}) == larger  # it grew by the new word
    assert sorted(cache.glob("*")) == [larger, larger.with_suffix(".words")]


def test_another_source_is_another_table(tmp_path: Path) -> None:
    one = cut_table(table(tmp_path / "one.gz", [("a", "b")]), ["a b"])
    two = cut_table(table(tmp_path / "two.gz", [("a", "b"), ("b", "a")]), ["a b"])
    assert pairs_of(one) == [("a", "b")] and pairs_of(two) == [("a", "b"), ("b", "a")]


def test_a_table_without_its_words_is_made_anew(tmp_path: Path) -> None:
    source = table(tmp_path / "all.gz", [("a", "b")])
    path = cut_table(source, ["a b"])
    path.with_suffix(".words").unlink()
    assert pairs_of(cut_table(source, ["a b"])) == [("a", "b")]
    assert path.with_suffix(".words").exists()


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
    assert not made[0].exists() and made[2].exists()
    assert len(list(cache.glob("*.words"))) == 2


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
    "text, words",
    [
        ("Tri-colored U.S.A. mr. o'clock", {"tri", "colored", "usa", "mr.", "o", "'clock"}),
        ("don’t 5:30 café", {"don", "'t", "5", ":", "30", "café"}),
        ("東京 x² 10⁵", {"東", "京", "x", "²", "10"}),
        ("1\u00a01/2", {"1", "1/2", "/", "2"}),
    ],
)
def test_words_as_meteor_cuts_them(text: str, words: set[str]) -> None:
    assert words <= meteor_words([text])


@pytest.mark.parametrize("text", ["a man", "3d 1980s", ""])
def test_plain_texts(text: str) -> None:
    assert is_plain(text) == bool(text)
    assert not is_plain(f"{text} don't") and not is_plain(f"{text} A") and not is_plain("caf\u00e9")


def test_words_that_can_stand_together() -> None:
    assert neighbours(["a red mid-air dog", "dog"]) == {
        *("a red", "red mid", "red mid-", "red mid-air", "mid -", "mid -air", "mid- air", "- air"),
        *("air dog", "-air dog", "mid-air dog"),
    }
    assert {"the usa", "usa won", "mr. t", ". t", "mr ."} <= neighbours(["the U.S.A. won", "mr. T"])
