"""PTB tokenisation: rules by example, the batch rule, any Unicode, and the official program."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluate.java_tokenizer import java_tokenize
from evaluate.ptb_lexer import Text
from evaluate.tokenizer import REMOVED, ptb_tokenize

NEXT = "sentinel dog here"

EXAMPLES = {
    "A man rides a wave.": "a man rides a wave",
    "It's a dog's life, isn't it?": "it 's a dog 's life is n't it",
    "they cannot, gonna-be 'tis": "they can not gonna-be 't is",
    "a (red) [car] {x}": "a -lrb- red -rrb- -lsb- car -rsb- -lcb- x -rcb-",
    "rock 'n' roll at 5 o'clock in Xi'an": "rock 'n' roll at 5 o'clock in xi'an",
    "dogs' \u201cquoted\u201d ``words''": "dogs quoted words",
    "a tri-colored -word well- 20-year-old": "a tri-colored word well 20-year-old",
    "dog.the end... of a...b": "dog.the end of a. b",
    "Mr. Smith lives on Main St. in Wash. or wash. etc.": (
        "mr. smith lives on main st. in wash. or wash etc."
    ),
    "5 lbs. at 6 p.m. in the U.S.": "5 lbs at 6 p.m. in the u.s.",
    "no. 5 is no. good": "no. 5 is no good",
    "really?! yes! no?": "really ?! yes no",
    "1,000 at 12:30 and 16:9": "1,000 at 12:30 and 16:9",
    "\u00a35 5\u20ac 50\u00a2 US$5 5%": "# 5 5 $ 50 cents us$ 5 5 %",
    "1 1/2 cups, \u00bd cup, 3.5mm": "1\u00a01/2 cups 1/2 cup 3.5 mm",
    "AT&T a&b and/or w/ c++": "at&t a & b and/or w / c++",
    "(555) 123-4567": "-lrb-555-rrb-\u00a0123-4567",
    'an <img src="a.jpg"> tag': 'an <img\u00a0src="a.jpg"> tag',
    "ok :) see www.x.com/ab. or a@b.c": "ok :-rrb- see www.x.com/ab or a@b.c",
    "caf\u00e9 \U0001f600 \u6771\u4eac a\u00adb": "caf\u00e9 \u6771\u4eac ab",
    "A dog... . . end": "a dog end",
    "": "",
    " .,; ": "",
}


@pytest.mark.parametrize("caption", EXAMPLES)
def test_examples(caption: str) -> None:
    assert ptb_tokenize([caption, NEXT]) == [EXAMPLES[caption], NEXT]


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n", "\v", "\f", "\u2028", "\u2029"])
def test_line_breaks_are_blanks_and_shift_nothing(line_break: str) -> None:
    captions = [f"a man{line_break}rides.", "a dog", "a cat"]
    assert ptb_tokenize(captions) == ["a man rides", "a dog", "a cat"]


def test_the_next_caption_decides_about_a_last_letter_and_a_number() -> None:
    for following, kept in (("The dog", ""), ("the dog", "."), ("Dogs run", "."), ("<b> x", "")):
        assert ptb_tokenize(["plan B.", following])[0] == f"plan b{kept}"
    assert ptb_tokenize(["plan B.", "", " ", "The dog"])[0] == "plan b"
    assert ptb_tokenize(["see No.", "5 dogs"])[0] == "see no."
    assert ptb_tokenize(["see No.", "dogs"])[0] == "see no"


def test_the_end_of_the_batch_decides_about_the_last_caption() -> None:
    assert ptb_tokenize(["I think he'll", "a"])[0] == "i think he 'll"
    assert ptb_tokenize(["I think he'll"]) == ["i think he ll"]
    assert ptb_tokenize(["lol :)"]) == ["lol -rrb-"]


def test_nothing_to_do() -> None:
    assert ptb_tokenize([]) == []


PIECES = (
    'the A. B. no. 5 1/2 555 555-1234 dog. . .. ... it\'s U.S. The <b> <a b="c"> (555) co. ltd '
    "' \" '' '80 :) &amp; x\u00a0y \u00bd \U0001f600 http://a.b/c? a@b\u2003 \u0085 - -- ; x.y "
    "dog's. Mr. a...b st.x etc. photo.jpg 5.jpg"
).split(" ")
CAPTIONS = st.lists(
    st.one_of(st.text(max_size=30), st.lists(st.sampled_from(PIECES), max_size=8).map(" ".join)),
    max_size=6,
)


@given(CAPTIONS)
@settings(max_examples=150, deadline=None)
def test_any_text_gives_as_many_lines_and_no_punctuation(captions: list[str]) -> None:
    tokenized = ptb_tokenize(captions)
    assert len(tokenized) == len(captions)
    for line in tokenized:
        assert not REMOVED & set(line.split(" "))
        assert not any(character in "\n\r\v\f\u2028\u2029" for character in line)
        line.encode("utf-8")  # no lone surrogates


@given(CAPTIONS.filter(bool))
@settings(max_examples=150, deadline=None)
def test_short_cuts_change_nothing(captions: list[str]) -> None:
    lines = ["".join(" " if c in "\n\r\v\f\u2028\u2029" else c for c in s) for s in captions]
    text = Text("\n".join(lines))
    place, expected = 0, []
    for line in lines:
        end = place + len(Text(line).raw)
        tokens, _ = text.tokens(place, end)
        kept = [t for t in " ".join(tokens).rstrip().split(" ") if t and t not in REMOVED]
        expected.append(" ".join(kept))
        place = end + 1
    assert ptb_tokenize(captions) == expected


@pytest.mark.parametrize(
    "unit", ["a", "a.", "a-", "a'", "1", "1,", "&", "<a b", "a@", "x.c", " ", "(5", 'a="', "a/"]
)
def test_long_nonsense_ends_soon(unit: str) -> None:
    start = time.process_time()
    ptb_tokenize([unit * (2000 // len(unit)), NEXT])
    assert time.process_time() - start < 5


def test_equal_to_the_official_program() -> None:
    captions = [text for caption in EXAMPLES for text in (caption, NEXT)]
    captions += ["plan B.", "The dog", "x.y.", "", "A.", "", "", "Many dogs", "no.", "7", "he'll"]
    assert ptb_tokenize(captions) == java_tokenize(captions)


def test_tokens_stay_as_they_are_where_the_official_program_leaves_them() -> None:
    chance = random.Random(0)
    captions = [*EXAMPLES, *(" ".join(chance.choices(PIECES, k=3)) for _ in range(300))]
    captions = [text for caption in captions for text in (caption, NEXT)]
    official = java_tokenize(captions)
    ours = ptb_tokenize(captions)
    stays = [a == b for a, b in zip(official, java_tokenize(official), strict=True)]
    again = zip(ours, ptb_tokenize(ours), stays, strict=True)
    assert [tokens for tokens, twice, stay in again if stay and twice != tokens] == []
    assert len(captions) // 2 < sum(stays) < len(captions)
