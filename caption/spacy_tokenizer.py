"""Captions to words as the Meshed-Memory release does it, with spaCy's English tokenizer.

Lower case, line ends stripped, tokens of spaCy, those of `PUNCTUATION` dropped. Runs of spaces are
words, as in the release. The release used spaCy 2.0; the rules of spaCy 3.8 split 4 of its 10,197
words otherwise ('m, 've, 4-way, 3-way).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from caption.errors import CaptionError

PUNCTUATION = frozenset(
    ("'", "''", "`", "``", "-LRB-", "-RRB-", "-LCB-", "-RCB-")
    + (".", "?", "!", ",", ":", "-", "--", "...", ";")
)


def spacy_tokenize(captions: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The words of each caption. Raises CaptionError where spaCy is not installed."""
    try:
        import spacy
    except ImportError as error:
        raise CaptionError(
            "data.tokenizer is 'm2', which needs spaCy: pip install 'caption-pipeline[m2]', or"
            " take our tokenizer: -o data.tokenizer=ptb"
        ) from error
    split = spacy.blank("en").tokenizer
    for caption in captions:
        tokens = (token.text for token in split(caption.lower().rstrip("\n")))
        yield tuple(token for token in tokens if token not in PUNCTUATION)
