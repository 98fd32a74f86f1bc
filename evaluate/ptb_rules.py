"""The rules of PTB tokenisation: what a token may look like, and what must follow it.

The longest match wins, what must follow included; of equal ones the first rule. The rules were
found by trying strings on the official program (CoreNLP 3.4.1 PTBTokenizer) and are written for
`re`, so each is arranged to find its own longest match. They see texts through
`ptb_characters.shape`, where one character stands for all that are treated alike. Everything is
case-sensitive unless it stands in `(?i:...)`. A character that no rule matches makes no token.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from evaluate import ptb_words as words
from evaluate.ptb_characters import DIGIT, LETTER, MARK, SYMBOL
from evaluate.ptb_words import alternatives, capitalised


class Kind(Enum):
    """What becomes of the text that a rule matched."""

    NOTHING = "no token"
    REMOVED = "a token of punctuation that captions never keep"
    WORD = "the text without soft hyphens"
    SHARED_STOP = "the same, but its full stop is read once more"
    TEXT = "the text as it is"
    GLUED = "the text, blanks made unbreakable, round brackets spelled out"
    SMILEY = "the text, round brackets spelled out"
    TAG = "the text, blanks made unbreakable"
    SUFFIX = "the text with plain apostrophes"
    QUOTE = "quotation marks made plain"
    ENTITY = "an entity or a text with &amp;, decoded"
    BRACKET = "a bracket spelled out"
    FRACTION = "a fraction sign spelled out"
    MONEY = "a currency sign made plain"


class Rule(NamedTuple):
    """`starts`: class of first characters; `pattern`: group 1 is the token, the rest follows it."""

    kind: Kind
    starts: re.Pattern[str]
    pattern: re.Pattern[str]


WORD_CHARACTER = LETTER + MARK + r"\u00AD"
SPACE = r" \t\u00A0\u2000-\u200A\u3000"
SPACE_OR_LINE = SPACE + r"\n\u0085"

_ACCENTED = r"&[aeiouAEIOU](?i:acute|grave|uml);"  # letters written as entities
_L = rf"(?:[{WORD_CHARACTER}]|{_ACCENTED})"
_LD = rf"(?:[{WORD_CHARACTER}{DIGIT}]|{_ACCENTED})"
_PLAIN = rf"[{LETTER}{DIGIT}]"  # no marks, no soft hyphens
_D = rf"[{DIGIT}]"
_APOSTROPHE = r"(?:['\u0092\u2019]|(?i:&apos;))"
_ANY_APOSTROPHE = r"(?:['`\u0091\u0092\u2018\u2019\u201B]|(?i:&apos;))"

_WORD = rf"{_L}{_LD}*(?:[.!?]{_L}{_LD}*)*"  # dog, dog.the, hello!world
_PREFIX = rf"(?:[dDoOlL]{_ANY_APOSTROPHE}{_PLAIN})?"  # the d' of d'artagnan
_COMPOUND = rf"{_PREFIX}{_PLAIN}+(?:[-_\u058A\u2010\u2011]{_PREFIX}{_PLAIN}+)*"
_DOTTED = r"[A-Za-z](?:\.[A-Za-z])+"  # u.s
_ACRONYM = (
    r"(?:(?i:canada|sino|korean|eu|japan|non)-(?i:u\.s)|"
    rf"(?i:u\.s\.)-(?i:u\.s\.s\.r|u\.k)|{_DOTTED})"
)
_MIXED = rf"[A-Za-z0-9][A-Za-z0-9.,\u00AD]*(?:-(?:{_ACRONYM}\.|[A-Za-z0-9\u00AD]+))+"  # 1,000-seat
_CAPITALS = r"[A-Z]+(?:(?:(?i:&amp;)|[+&])[A-Z]+)+"  # AT&T
_SLASHED = r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}(?:\\?/[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}){1,2}"
_CLITIC = rf"{_APOSTROPHE}(?:[msdMSD]|(?i:re|ve|ll))"
_NOT = rf"(?i:n){_ANY_APOSTROPHE}(?i:t)"

_NUMBER = rf"(?:{_D}*(?:[.:,\u00AD\u066B\u066C]{_D}+)+|{_D}+)"
_DATE = rf"{_D}{{1,2}}[-/]{_D}{{1,2}}[-/]{_D}{{2,4}}"
_FRACTION = rf"(?:{_D}{{1,4}}[- \u00A0])?{_D}{{1,4}}(?:\\?/|\u2044){_D}{{1,4}}"
_PHONE = (
    r"(?:\([0-9]{2,3}\)[ \u00A0]?|(?:\+\+?)?(?:[0-9]{2,4}[- \u00A0])?[0-9]{2,4}[- \u00A0])"
    r"[0-9]{3,4}[- \u00A0]?[0-9]{3,5}|"
    r"(?:(?:\+\+?)?[0-9]{2,4}\.)?[0-9]{2,4}\.[0-9]{3,4}\.[0-9]{3,5}"
)

_LAST = r'[^ \t\n\f\r"<>|.!?(){},-]'  # how an address may end
_URL = rf'(?i:https?)://[^ \t\n\f\r"<>|(){{}}]+{_LAST}'
_PATH = rf'/[^ \t\n\f\r"<>|()]+{_LAST}'
# Hosts twice: alone as long as may be; before a path as short as may be, so that the path starts
# at the first slash.
_WWW = r'(?i:www)\.(?:[^ \t\n\f\r"<>|.!?(){},]+\.)'
_WWW_END = "[a-zA-Z]{2,4}"
_HOST = r"""(?:[^ \t\n\f\r"`'<>|.!?(){},-_$]+\.)"""
_HOST_START = r"""^ \t\n\f\r"`'<>|.!?(){},-_$"""
_HOST_END = "(?i:com|net|org|edu)"
_MAIL = (
    r'(?:(?i:&lt;)|<)?[a-zA-Z0-9][^ \t\n\f\r"<>|(){}\u00A0]*'
    r'@(?:[^ \t\n\f\r"<>|(){}.\u00A0]+\.)*[^ \t\n\f\r"<>|(){}.\u00A0]+(?:(?i:&gt;)|>)?'
)
_FILE = rf"{_LD}+(?:\.{_LD}+)*\.(?i:{alternatives(words.FILE_EXTENSIONS)})"
_ATTRIBUTE = (
    r" +[A-Za-z][A-Za-z0-9_:.-]*"
    r"""(?: *= *(?:'[^\r\n']*'|"[^\r\n"]*"))?"""
)
_TAG = (
    r"<(?:[!?][A-Za-z-][^>\r\n]*|/[A-Za-z][A-Za-z0-9_:.-]* *|"
    rf"[A-Za-z][A-Za-z0-9_:.-]*(?:{_ATTRIBUTE})* */? *)>"
)

_SMILEY = r"[<>]?[:;=]['*o-]?[()\[\]{|@\\DPOdp]"
_FACE = (
    r"[\^x=~<>]\.\[\^(?i:x)=(?:(?!<>\])[^\n])*<>\]|[-\^x=~<>']_[-\^x=~<>']|"
    r"\([-\^x=~<>'][_.]?[-\^x=~<>']\)|\([\^x=~<>']-[\^x=~<>'`]\)"
)

_CLOSED = (
    rf"(?:(?i:{alternatives(words.CLOSED_ABBREVIATIONS)}|(?:ed|ph)\.d)|"
    rf"{capitalised(words.CLOSED_CAPITALISED)}|(?i:pp?t)[ye](?i:s?))\."
)
_OPEN = rf"(?:(?i:{alternatives(words.OPEN_ABBREVIATIONS)})|(?i:m)[ft](?i:g))\."
_BEFORE_NUMBER = rf"(?i:{alternatives(words.NUMBER_ABBREVIATIONS)})\."
_STARTER = rf"(?:{capitalised(words.SENTENCE_STARTERS)}|{_TAG})"
_CLAUSE_END = r"[,;:\u3001]"


def _apostrophe_words() -> list[tuple[Kind, str, str, str]]:
    kept = [
        alternatives(words.ANY_APOSTROPHE_WORDS).replace("@", _ANY_APOSTROPHE),
        alternatives(words.CLOSING_APOSTROPHE_WORDS).replace("@", _APOSTROPHE),
        alternatives(words.STRAIGHT_APOSTROPHE_WORDS).replace("@", "'"),
    ]
    patterns = [
        (r"'\u0092\u2019&", rf"{_APOSTROPHE}(?:(?i:n){_APOSTROPHE}?|(?i:em|till?|cause))"),
        (r"'\u0092\u2019&", rf"{_APOSTROPHE}[2-9]0(?i:s)"),
        ("lLdDjJ", rf"[lLdDjJ]{_APOSTROPHE}"),
        ("A-HJ-XZn", rf"[A-HJ-XZn]{_ANY_APOSTROPHE}[{LETTER}]{{2,}}"),
        (LETTER, rf"[{LETTER}]+[aeiouyAEIOUY]{_ANY_APOSTROPHE}[aeiouA-Z][{LETTER}]*"),
        (LETTER, f"(?i:{'|'.join(kept)})"),
    ]
    rules = [(Kind.WORD, starts, pattern, "") for starts, pattern in patterns]
    rules.append((Kind.WORD, "yY", rf"[yY]{_APOSTROPHE}", rf"[{LETTER}]"))
    rules.append((Kind.WORD, r"'\u0092\u2019&", rf"{_APOSTROPHE}[0-9]{{2}}", f"[{SPACE_OR_LINE}]"))
    return rules


def _split_words() -> list[tuple[Kind, str, str, str]]:
    pairs = [pair.split("|") for pair in words.SPLIT_WORDS.split()]
    rules = [(Kind.WORD, LETTER, f"(?i:{head})", f"(?i:{tail})") for head, tail in pairs]
    return [*rules, (Kind.WORD, "'", "'(?i:t)", "(?i:is|was)")]


_ALPHA = LETTER + MARK + r"\u00AD&"  # what a word may start with
_ALNUM = _ALPHA + DIGIT
_ASCII = "A-Za-z"

# kind, first characters, token, what must follow; order decides between matches of one length
_TABLE: list[tuple[Kind, str, str, str]] = [
    (Kind.TAG, "<", _TAG, ""),
    (Kind.REMOVED, r"&\u0096\u0097\u2013-\u2015", r"(?i:&(?:md|mdash|ndash);)|[^&]", ""),
    *_split_words(),
    (Kind.WORD, _ALPHA, _WORD, _CLITIC),
    (Kind.WORD, r"A-Za-z\u00AD", r"[A-Za-z\u00AD]*[A-MO-Za-mo-z]\u00AD*", _NOT),
    (Kind.WORD, _ALPHA, _WORD, ""),
    *_apostrophe_words(),
    (Kind.TEXT, "hH", _URL, ""),
    (Kind.TEXT, "wW", rf"{_WWW}+{_WWW_END}", ""),
    (Kind.TEXT, "wW", rf"{_WWW}+?{_WWW_END}{_PATH}", ""),
    (Kind.TEXT, _HOST_START, rf"{_HOST}+{_HOST_END}", ""),
    (Kind.TEXT, _HOST_START, rf"{_HOST}+?{_HOST_END}{_PATH}", ""),
    (Kind.TEXT, "&<A-Za-z0-9", _MAIL, ""),
    (Kind.TEXT, "@", "@[A-Za-z_][A-Za-z_0-9]*", ""),
    (Kind.TEXT, "#", rf"#{_L}+", ""),
    (Kind.SUFFIX, r"'\u0092\u2019&", _CLITIC, "[^A-Za-z]"),
    (Kind.SUFFIX, "nN", _NOT, "[^A-Za-z]"),
    (Kind.REMOVED, "'", "'", r"[A-Za-z][^ \t\n\r\u00A0]"),
    (Kind.SUFFIX, r"'\u0092\u2019&", _CLITIC, ""),
    (Kind.SUFFIX, "nN", _NOT, ""),
    (Kind.WORD, DIGIT, _DATE, ""),
    (Kind.WORD, DIGIT + r"+.:,\u00AD\u066B\u066C-", rf"[-+]?{_NUMBER}", ""),
    (
        Kind.TEXT,
        r"\u00B9\u00B2\u00B3\u2070\u2074-\u207B\u2080-\u208B",
        r"[\u207A\u207B\u208A\u208B]?(?:[\u2070\u00B9\u00B2\u00B3\u2074-\u2079]+|[\u2080-\u2089]+)",
        "",
    ),
    (Kind.GLUED, DIGIT, _FRACTION, ""),
    (Kind.FRACTION, r"\u00BC-\u00BE\u2153-\u215E", ".", ""),
    (Kind.TEXT, r"A-Z$#", r"[A-Z]*\$|#", ""),
    (
        Kind.MONEY,
        r"\u00A2-\u00A5\u0080\u20A0\u20AC\u060B\u0E3F\u20A4\uFFE0\uFFE1\uFFE5\uFFE6",
        ".",
        "",
    ),
    (Kind.ENTITY, "A-Z", _CAPITALS, ""),
    (Kind.ENTITY, r"sS\u017F", "(?i:s(?:&amp;|&)(?:ls|p-500))", ""),
    (Kind.WORD, "aApP", "(?i:anti|pro)-", ""),
    (Kind.GLUED, r"(+0-9", _PHONE, ""),
    (Kind.WORD, _ALNUM, rf"{_WORD}\.", _CLAUSE_END),
    (Kind.WORD, _ALNUM, rf"{_COMPOUND}\.", _CLAUSE_END),
    (Kind.WORD, _ALNUM, rf"{_MIXED}\.", _CLAUSE_END),
    (Kind.ENTITY, "A-Z", rf"{_CAPITALS}\.", _CLAUSE_END),
    (Kind.WORD, _ASCII, "[A-Za-z]", rf"\.[{SPACE_OR_LINE}]+{_STARTER}[{SPACE_OR_LINE}]"),
    (Kind.WORD, _ASCII, r"[A-Za-z]\.", ""),
    (Kind.WORD, LETTER, rf"{_ACRONYM}\.", ""),
    (Kind.WORD, LETTER, _ACRONYM, f"[{SPACE_OR_LINE}]"),
    (Kind.WORD, LETTER, _CLOSED, r"[\s\S]{2}"),
    (Kind.SHARED_STOP, LETTER, _CLOSED, ""),  # wins at the very end of the text only
    (Kind.WORD, LETTER, _OPEN, ""),
    (Kind.WORD, "pP", r"(?i:pt[ey])\.", rf"[{SPACE}](?i:ltd|lim)"),
    (Kind.WORD, LETTER, _BEFORE_NUMBER, rf"[{SPACE_OR_LINE}]?{_D}"),
    (Kind.TEXT, _ALNUM, _FILE, rf"[{SPACE_OR_LINE}.?!,]"),
    (Kind.WORD, _ALNUM, _COMPOUND, ""),
    (Kind.WORD, "A-Za-z0-9", _MIXED, ""),
    (Kind.WORD, "A-Za-z0-9", _SLASHED, ""),
    (Kind.SMILEY, "<>:;=", _SMILEY, "[^A-Za-z0-9]"),
    (Kind.SMILEY, r"\^x=~<>'(-", _FACE, ""),
    (Kind.TEXT, "cCfF", r"[cC]\+\+|[cCfF]#", ""),
    (Kind.NOTHING, SPACE_OR_LINE + "&", rf"[{SPACE_OR_LINE}]+|(?i:&nbsp;)", ""),
    (Kind.REMOVED, r"\u0085\u2026", ".", ""),
    (Kind.REMOVED, r"\.", r"(?:\.[ \u00A0]){2,4}\.|\.{3,5}", ""),
    (
        Kind.QUOTE,
        r"""'"`\u0091-\u0094\u00AB\u00BB\u2018-\u201F\u2039\u203A&""",
        r"""''|['"]|[`\u0091-\u0094\u00AB\u00BB\u2018-\u201F\u2039\u203A]{1,2}|(?i:&(?:apos|quot);)""",
        "",
    ),
    (Kind.REMOVED, "-", "-{2,4}", ""),
    (Kind.TEXT, "-", r"(?i:-[lr][rcs]b-)", ""),
    (Kind.TEXT, r"_*#@?!<>\\-", r"-{5,}|_+|\*+|#+|@+|[?!]+|<<|>>|(?:\\\*){1,3}", ""),
    (Kind.ENTITY, "&", r"(?i:&(?:amp|lt|gt);)", ""),
    (Kind.TEXT, "&", r"(?i:&(?:ht|tl|ur|lr|qc|ql|qr|odq|cdq|\#[0-9]+);)", ""),
    (Kind.BRACKET, r"()\[\]{}", ".", ""),
    (Kind.TEXT, rf"!-/:-@\[-`{{-~{SYMBOL}{MARK}", ".", ""),
]

RULES = [
    Rule(kind, re.compile(f"[{starts}]"), re.compile(f"({token}){follows}"))
    for kind, starts, token, follows in _TABLE
]
