"""The n-grams of orders 1 to 4 that CIDEr counts, and how a caption becomes tokens for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluate.errors import EvaluateError

ORDERS = 4


@dataclass(frozen=True, kw_only=True)
class TokenStyle:
    """What the tokens of a document-frequency table are: words, or the ids of a vocabulary."""

    eos: str | None = None  # token put after the last one of references and candidates
    ids: Mapping[str, str] | None = None  # word -> id; None: words stand for themselves
    unknown: str | None = None  # id of every word outside `ids`

    def __post_init__(self) -> None:
        if (self.ids is None) != (self.unknown is None):
            raise EvaluateError(
                f"token style: ids are {'missing' if self.ids is None else 'given'} and the"
                f" unknown token is {self.unknown!r}; give both, or neither for plain words"
            )
        special = [t for t in (self.eos, self.unknown) if t is not None]
        for token in special + list((self.ids or {}).values()):
            if not token or token.split() != [token]:
                raise EvaluateError(f"token style: {token!r} is not a token (no blank, not empty)")

    def tokens(self, words: Sequence[str], max_length: int | None = None) -> list[str]:
        """The tokens of a caption; one cut at `max_length` loses its end-of-sentence token."""
        if self.ids is not None:
            ids, unknown = self.ids, self.unknown or ""
            words = [ids.get(word, unknown) for word in words]
        if max_length is not None and len(words) >= max_length:
            return list(words[:max_length])
        return [*words, self.eos] if self.eos is not None else list(words)


def ngram_counts(tokens: Sequence[str]) -> list[Counter[str]]:
    """Counters of the n-grams of order 1 to 4; an n-gram is its tokens joined by one blank."""
    rows = list(tokens)
    counters = [Counter(rows)]
    for order in range(1, ORDERS):
        rows = [f"{row} {token}" for row, token in zip(rows, tokens[order:], strict=False)]
        counters.append(Counter(rows))
    return counters
