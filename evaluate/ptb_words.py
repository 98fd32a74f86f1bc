"""Words that the official tokenizer (CoreNLP 3.4.1 PTBTokenizer) treats by name.

Facts about that program, found by trying strings on it. Each list is of blank-separated regular
expressions that match in any case, but for the first letter where a comment says so.
"""

from __future__ import annotations

# Keep their full stop when two more characters follow, or nothing.
CLOSED_ABBREVIATIONS = """
    jan feb mar apr jun jul aug sept? oct nov dec mon tues? wed thu thurs fri
    ala ariz calif colo conn ct dak fla ga ind kans? ky md mich minn mo mont neb nev okla penn
    tenn va vt wisc? wyo
    inc cos? corp ltd plc bancorp bhd assn univ intl sys
    jr sr bros blvd rd esq etc al seq ext est bldg rt sq tel
"""
# The same, with a capital first letter only.
CLOSED_CAPITALISED = "Az Ark Del Ill La Mass Miss Ore Pa Tex Wash"

# Keep their full stop whatever follows, unless a longer word goes on behind it.
OPEN_ABBREVIATIONS = """
    mr mrs ms drs? profs? sens? reps? attys? lt col gen messrs govs? adm rev maj sgt cpl pvt mt
    capt ste? ave pres lieut hon brig co?mdr pfc spc supts? det ft adj adv asst assoc ens insp
    mlle mme msgr sfc vs alex wm jos cie a\\.k\\.a cf treas ph dept
    invt elec natl
"""

# Keep their full stop only before a number.
NUMBER_ABBREVIATIONS = "ca figs? prop nos? art bldg pp op"

# A single letter loses its full stop before these (capital first letter, then any case).
SENTENCE_STARTERS = """
    a about according additionally after an as at but earlier he her here however if in it last
    many more mr\\. ms\\. now once one other our she since so some such that the their then there
    these they this we what when while yet you
"""

FILE_EXTENSIONS = """
    bat bmp c class cgi cpp dll docx? exe gif gz h html? jar java jpe?g mov mp3 pdf php pl png
    ppt ps py sql tar txt wav x xml zip
"""

# Words cut in two, written with a blank.
SPLIT_WORDS = "can|not gon|na got|ta lem|me gim|me wan|na"

# Words with an apostrophe (here @) that stay whole: with an apostrophe of any kind, with a closing
# one, and only with a straight one.
ANY_APOSTROPHE_WORDS = "o@o"
CLOSING_APOSTROPHE_WORDS = "c@est cap@n dunkin@ somethin@ ol@"
STRAIGHT_APOSTROPHE_WORDS = "cont@d\\.? nor@easter c@mon e@er s@mores ev@ry li@l nat@l"


def alternatives(words: str) -> str:
    """A pattern that matches any of the blank-separated words, the longest spelling first."""
    return "|".join(sorted(words.split(), key=lambda word: (-len(word), word)))


def capitalised(words: str) -> str:
    """As `alternatives`, but the first letter must be a capital; the rest is in any case."""
    spelled = sorted(words.split(), key=lambda word: (-len(word), word))
    return "|".join(f"{word[0].upper()}(?i:{word[1:]})" for word in spelled)
