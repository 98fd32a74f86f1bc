"""How varied captions are, apart from how right they are; and a warning when they are all alike.

Input is tokenised captions. mBLEU over several captions of an image: every caption of rank k is
scored against the other captions of its image, as a corpus; mBLEU is the mean over ranks
(Shetty et al., ICCV 2017). Lower is more varied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evaluate.bleu import bleu
from evaluate.errors import EvaluateError
from evaluate.pairs import Id

# One caption for more than this share of so many or more images is a warning. Few images may be
# alike; fewer than the last number are never called collapsed.
COLLAPSE = ((20, 0.1), (5, 0.8))


@dataclass(frozen=True, kw_only=True)
class Diversity:
    """What `diversity` counts; shares are 0 to 1."""

    captions: int
    distinct: int  # different captions
    commonest: str  # the caption given to most images
    commonest_share: float
    mean_length: float  # words
    empty: int  # captions without a word
    vocabulary: int  # different words
    novel: float | None = None  # share of captions with words that are no training caption
    training_vocabulary: int | None = None  # different words of the training captions
    mbleu: tuple[float, ...] | None = None  # mBLEU-1..4 over the n-best lists
    nbest: int | None = None  # captions per image behind mBLEU

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def warnings(self) -> list[str]:
        """What looks like a broken model rather than a weak one."""
        most = next((share for images, share in COLLAPSE if self.captions >= images), 1.0)
        if self.commonest_share <= most:
            return []
        share = 100 * self.commonest_share
        return [
            f'collapsed captions: {share:.1f} % of {self.captions} images get "{self.commonest}"'
            f" (warned above {100 * most:.0f} %); check that features and images belong"
            " together, and that training did not diverge"
        ]


def diversity(
    captions: Mapping[Id, str],
    *,
    training: Collection[str] | None = None,
    nbest: Mapping[Id, Sequence[str]] | None = None,
) -> Diversity:
    """Count tokenised captions, one per image.

    `training` are the tokenised training captions (for novelty and vocabulary), `nbest` several
    tokenised captions per image (for mBLEU; images with fewer than two are left out). Raises
    EvaluateError without captions.
    """
    if not captions:
        raise EvaluateError("no captions to count; give results with at least one image")
    counts = Counter(captions.values())
    commonest, most = counts.most_common(1)[0]
    words = Counter(word for caption in captions.values() for word in caption.split())
    known = set(training) if training is not None else None
    width, scores = _mbleu(nbest) if nbest is not None else (None, None)
    return Diversity(
        captions=len(captions),
        distinct=len(counts),
        commonest=commonest,
        commonest_share=most / len(captions),
        mean_length=words.total() / len(captions),
        empty=sum(count for caption, count in counts.items() if not caption.split()),
        vocabulary=len(words),
        novel=_novel(captions, known) if known is not None else None,
        training_vocabulary=(
            len({word for caption in known for word in caption.split()})
            if known is not None
            else None
        ),
        mbleu=scores,
        nbest=width,
    )


def _novel(captions: Mapping[Id, str], known: Collection[str]) -> float:
    new = sum(bool(caption.split()) and caption not in known for caption in captions.values())
    return new / len(captions)


def _mbleu(nbest: Mapping[Id, Sequence[str]]) -> tuple[int | None, tuple[float, ...] | None]:
    """The number of captions per image (the largest) and mBLEU-1..4."""
    width = max((len(captions) for captions in nbest.values()), default=0)
    if width < 2:
        return None, None
    per_rank = []
    for rank in range(width):
        own = {i: c[rank] for i, c in nbest.items() if rank < len(c) and len(c) > 1}
        others = {i: [*nbest[i][:rank], *nbest[i][rank + 1 :]] for i in own}
        corpus, _ = bleu(others, own)
        per_rank.append(corpus)
    means = (sum(values) / width for values in zip(*per_rank, strict=True))
    return width, tuple(means)
