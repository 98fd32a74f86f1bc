"""How a run's captions are worded, beside the references: lengths, vocabulary, sameness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evaluate.tokenizer import ptb_tokenize

FREQUENT = 12  # words listed
TALLEST = 40  # lengths in the chart; longer captions are counted in the last bar


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Captions of one length, as shares of all captions in percent."""

    label: str
    captions: float
    references: float
    captions_height: float  # percent of the highest bar
    references_height: float


def tokenized(
    captions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> tuple[list[str], list[str]]:
    """Captions, and the references of the same images, as evaluation tokenises them."""
    own = ptb_tokenize(list(captions.values()))
    return own, ptb_tokenize([text for image in captions for text in references.get(image, ())])


def word_facts(
    captions: Sequence[str], references: Sequence[str], vocabulary: int
) -> list[tuple[str, str, str]]:
    """(what, of the captions, of the references); `vocabulary`: words that the captioner knows."""
    said, written = _counts(captions), _counts(references)
    known = f" ({_share(len(said), vocabulary)} of the {vocabulary:,} known)"
    return [
        ("captions", f"{len(captions):,}", f"{len(references):,}"),
        ("distinct captions", _distinct(captions), _distinct(references)),
        ("most frequent caption", _top(captions), _top(references)),
        ("mean length in words", _mean(said, captions), _mean(written, references)),
        ("words in use", f"{len(said):,}{known}", f"{len(written):,}"),
        ("most frequent words", _frequent(said), _frequent(written)),
    ]


def length_bars(captions: Sequence[str], references: Sequence[str]) -> list[Bar]:
    """A bar per length in words, of captions and references."""
    own, theirs = _lengths(captions), _lengths(references)
    top = max([*own.values(), *theirs.values()])
    span = range(min([*own, *theirs]), max([*own, *theirs]) + 1)
    return [
        Bar(
            label=f"{length}+" if length == TALLEST else str(length),
            captions=own.get(length, 0.0),
            references=theirs.get(length, 0.0),
            captions_height=100 * own.get(length, 0.0) / top,
            references_height=100 * theirs.get(length, 0.0) / top,
        )
        for length in span
    ]


def _lengths(texts: Sequence[str]) -> dict[int, float]:
    """Length -> share of the texts in percent."""
    counts = Counter(min(len(text.split()), TALLEST) for text in texts)
    return {length: 100 * count / len(texts) for length, count in counts.items()}


def _counts(texts: Iterable[str]) -> Counter[str]:
    return Counter(word for text in texts for word in text.split())


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def _distinct(texts: Sequence[str]) -> str:
    different = len(set(texts))
    return f"{different:,} ({_share(different, len(texts))})"


def _mean(words: Counter[str], texts: Sequence[str]) -> str:
    return f"{sum(words.values()) / len(texts):.1f}" if texts else "none"


def _top(texts: Sequence[str]) -> str:
    if not texts:
        return "none"
    common, times = Counter(texts).most_common(1)[0]
    return f"{_share(times, len(texts))}: “{common}”"


def _frequent(words: Counter[str]) -> str:
    return ", ".join(word for word, _ in words.most_common(FREQUENT)) or "none"
