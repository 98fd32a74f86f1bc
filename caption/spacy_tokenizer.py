"""Captions to words as the Meshed-Memory release does it, with spaCy's English tokenizer.

Lower case, line ends stripped, tokens of spaCy, those of `PUNCTUATION` dropped. Runs of spaces are
words, as in the release. It used spaCy 2.0, which left a hyphen behind a digit alone ("4-way");
later ones split there, so that rule is put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from caption.errors import CaptionError

PUNCTUATION = frozenset(
    ("'", "''", "`", "``", "-LRB-", "-RRB-", "-LCB-", "-RCB-")
    + (".", "?", "!", ",", ":", "-", "--", "...", ";")
)


def spacy_tokenize(captions: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The words of each caption. Raises CaptionError where spaCy is not installed."""
    try:
        import spacy
        from spacy.lang.char_classes import HYPHENS
    except ImportError as error:
        raise CaptionError(
            "data.tokenizer is 'm2', which needs spaCy: pip install 'spacy>=3.8', or"
            " take our tokenizer: -o data.tokenizer=ptb"
        ) from error
    language: Any = spacy.blank("en")
    split = language.tokenizer
    now, before = f"0-9])(?:{HYPHENS})", f"])(?:{HYPHENS})"
    rules = [rule.replace(now, before) for rule in language.Defaults.infixes]
    split.infix_finditer = spacy.util.compile_infix_regex(rules).finditer
    for caption in captions:
        tokens = (token.text for token in split(caption.lower().rstrip("\n")))
        yield tuple(token for token in tokens if token not in PUNCTUATION)
