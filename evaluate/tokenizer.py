"""PTB tokenisation of captions, equal to the official program of the COCO evaluation.

That is CoreNLP 3.4.1's PTBTokenizer with `-preserveLines -lowerCase`, after which 17 tokens of
punctuation are taken out. Captions are tokenised as one batch because a caption's last full stop
can depend on how the next caption starts, and its last token on whether there is one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from evaluate.ptb_characters import code_units
from evaluate.ptb_lexer import Text
from evaluate.ptb_rules import SPACE_OR_LINE
from evaluate.ptb_words import NUMBER_ABBREVIATIONS, alternatives

# The official list has them in upper case, so the spelled-out brackets of captions stay.
REMOVED = frozenset("'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;".split())

_LINE_BREAKS = str.maketrans(dict.fromkeys("\n\r\v\f\u2028\u2029", " "))
# A piece between two blanks whose tokens depend on nothing around it.
_ALONE = re.compile(
    r"[^\s\d<.\U00010000-\U0010FFFF\ud800-\udfff]*"
    rf"|(?!(?i:{alternatives(NUMBER_ABBREVIATIONS)}|pt[ey])\.)[A-Za-z]{{2,}}(?:-[A-Za-z]+)*\."
)
_BLANK = re.compile(f"[{SPACE_OR_LINE}]*")
_MOST_PIECES = 200_000


class _Pieces(dict[str, str]):
    """Piece -> its tokens, each with a blank behind it; filled as pieces are met."""

    def __missing__(self, piece: str) -> str:
        if not _ALONE.fullmatch(piece):
            raise KeyError(piece)
        if len(self) >= _MOST_PIECES:
            self.clear()
        found, _ = Text(f"{piece} a").tokens(0, len(piece))
        self[piece] = joined = "".join(f"{token} " for token in found if token not in REMOVED)
        return joined


_pieces = _Pieces()


def ptb_tokenize(captions: Sequence[str]) -> list[str]:
    """The tokens of each caption, lower-cased and joined by one blank; may be empty.

    Line breaks of every kind count as blanks, and any Unicode text is accepted. One difference is
    meant: no token runs on into the next caption, as a tag with an open quotation mark does in the
    official program.
    """
    tokenized = []
    last = len(captions) - 1
    for index, caption in enumerate(captions):
        # A free full stop before another one may be an ellipsis that crosses pieces.
        if index < last and ". ." not in caption:
            try:
                joined = "".join([_pieces[piece] for piece in caption.split(" ")])
                tokenized.append(joined[:-1])
                continue
            except KeyError:
                pass
        tokenized.append(_tokenize_in_context(captions, index))
    return tokenized


def _tokenize_in_context(captions: Sequence[str], index: int) -> str:
    following = _following(captions, index)
    text = Text(captions[index].translate(_LINE_BREAKS) + following)
    end = len(text.raw) - len(code_units(following))
    by_piece = bool(following) and ". ." not in captions[index]
    found: list[str] = []
    place = 0
    while place < end:
        stop = end
        if by_piece:
            blank = text.raw.find(" ", place, end)
            stop = blank if blank >= 0 else end
            try:
                found.append(_pieces[text.raw[place:stop]][:-1])
                place = stop + 1
                continue
            except KeyError:
                pass
        more, place = text.tokens(place, stop)
        found += more
        # The white space of an odd token may be cut off below, if the token is the last one.
        by_piece = by_piece and not (more and more[-1][-1].isspace())
    line = " ".join(found).rstrip()  # as the official program does to its lines of output
    return " ".join([token for token in line.split(" ") if token and token not in REMOVED])


def _following(captions: Sequence[str], index: int) -> str:
    """What rules may see behind a caption: a line break and the next captions, up to a full one."""
    lines = [""] if index + 1 < len(captions) else []
    for following in range(index + 1, len(captions)):
        line = captions[following].translate(_LINE_BREAKS)
        lines.append(line)
        if not _BLANK.fullmatch(line):
            if following + 1 < len(captions):
                lines.append("")
            break
    return "\n".join(lines)
