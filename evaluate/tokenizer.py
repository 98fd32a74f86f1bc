"""PTB tokenisation of captions, equal to the official program of the COCO evaluation.

That is CoreNLP 3.4.1's PTBTokenizer with `-preserveLines -lowerCase`, after which 17 tokens of
punctuation are taken out. Captions are tokenised as one batch because a caption's last full stop
can depend on how the next caption starts, and its last token on whether there is one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from evaluate.ptb_lexer import code_units, tokens
from evaluate.ptb_rules import DIGIT, SPACE_OR_LINE
from evaluate.ptb_words import NUMBER_ABBREVIATIONS, alternatives

# The official list has them in upper case, so the spelled-out brackets of captions stay.
REMOVED = frozenset("'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;".split())

_LINE_BREAKS = str.maketrans(dict.fromkeys("\n\r\v\f\u2028\u2029", " "))
# A piece between two blanks whose tokens depend on nothing around it.
_ALONE = re.compile(
    rf"[^\s{DIGIT}<.\U00010000-\U0010FFFF\ud800-\udfff]*"
    rf"|(?!(?i:{alternatives(NUMBER_ABBREVIATIONS)}|pt[ey])\.)[A-Za-z]{{2,}}(?:-[A-Za-z]+)*\."
)
_MOST_PIECES = 200_000


class _Pieces(dict[str, str]):
    """Piece -> its tokens, each with a blank behind it; filled as pieces are met."""

    def __missing__(self, piece: str) -> str:
        if not _ALONE.fullmatch(piece):
            raise KeyError(piece)
        if len(self) >= _MOST_PIECES:
            self.clear()
        text = code_units(piece)
        found, _ = tokens(f"{text} a", 0, len(text))
        self[piece] = joined = "".join(f"{token} " for token in found if token not in REMOVED)
        return joined


_pieces = _Pieces()


def ptb_tokenize(captions: Sequence[str]) -> list[str]:
    """The tokens of each caption, lower-cased and joined by one blank; may be empty.

    Line breaks of every kind count as blanks. Any Unicode text is accepted.
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
    text = code_units(captions[index].translate(_LINE_BREAKS))
    end = len(text)
    text += _following(captions, index)
    by_piece = end < len(text) and ". ." not in text[:end]
    found: list[str] = []
    place = 0
    while place < end:
        if by_piece:
            stop = text.find(" ", place, end)
            stop = end if stop < 0 else stop
            try:
                joined = _pieces[text[place:stop]]
            except KeyError:
                pass
            else:
                found.append(joined[:-1])
                place = stop + 1
                continue
        else:
            stop = end
        more, place = tokens(text, place, stop)
        found += more
        if found and found[-1][-1:].isspace():
            by_piece = False
    line = " ".join(found).rstrip()  # as the official program does to its lines of output
    return " ".join([token for token in line.split(" ") if token and token not in REMOVED])


def _following(captions: Sequence[str], index: int) -> str:
    """What rules may see behind a caption: a line break and the next captions, up to a full one."""
    lines = [""]
    for following in range(index + 1, len(captions)):
        line = code_units(captions[following].translate(_LINE_BREAKS))
        lines.append(line)
        if not _BLANK.fullmatch(line):
            if following + 1 < len(captions):
                lines.append("")
            break
    return "\n".join(lines)


_BLANK = re.compile(f"[{SPACE_OR_LINE}]*")
