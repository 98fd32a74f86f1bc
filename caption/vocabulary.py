"""The words a captioner can say, as ids, kept as JSON.

Ids 0 to 3 are `<unk> <pad> <bos> <eos>`; words follow by falling frequency, ties in
alphabetical order (the order of the Meshed-Memory release).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from caption.errors import CaptionError

UNK, PAD, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<unk>", "<pad>", "<bos>", "<eos>")


Caption = str | tuple[str, ...]  # tokens joined by spaces, or the tokens themselves


def words_of(caption: Caption) -> list[str]:
    """The tokens of a caption; only in a tuple can a token hold spaces."""
    if isinstance(caption, str):
        return [word for word in caption.split(" ") if word]
    return list(caption)


class Vocabulary:
    """Words with ids; unknown words become `UNK`."""

    def __init__(self, words: Sequence[str]) -> None:
        """`words` are all entries in id order, the four specials first."""
        if tuple(words[: len(SPECIALS)]) != SPECIALS:
            raise CaptionError(
                f"a vocabulary begins with {' '.join(SPECIALS)}, found {' '.join(words[:4])}"
            )
        self.words = tuple(words)
        self.ids = {word: number for number, word in enumerate(self.words)}
        if len(self.ids) != len(self.words):
            doubled = [word for word, count in Counter(self.words).items() if count > 1]
            raise CaptionError(f"vocabulary entries stand there twice: {', '.join(doubled[:10])}")

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, captions: Iterable[Caption], *, min_count: int) -> Vocabulary:
        """Every word seen at least `min_count` times in the captions."""
        counts = Counter(word for caption in captions for word in words_of(caption))
        kept = [word for word, count in counts.items() if count >= min_count]
        kept = [word for word in kept if word not in SPECIALS]
        if not kept:
            raise CaptionError(
                f"no word is seen {min_count} times or more ({len(counts)} different words);"
                " type -o vocabulary.min_count=1"
            )
        return cls([*SPECIALS, *sorted(kept, key=lambda word: (-counts[word], word))])

    def encode(self, caption: Caption, max_words: int | None = None) -> list[int]:
        """`<bos> words <eos>` of a caption.

        A caption cut to `max_words` words ends without `<eos>`, since it does not end there.
        """
        words = words_of(caption)
        ids = [self.ids.get(word, UNK) for word in words[:max_words]]
        ended = [] if max_words is not None and len(words) > max_words else [EOS]
        return [BOS, *ids, *ended]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words up to the first `<eos>`; `<bos>` and `<pad>` are not words."""
        words = []
        for number in ids:
            if number == EOS:
                break
            if number not in (BOS, PAD):
                words.append(self.words[number])
        return words

    def to_json(self) -> str:
        """The words in id order as a JSON list."""
        return json.dumps(self.words, ensure_ascii=False, indent=0)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a file of `to_json`. Raises CaptionError naming the file."""
        try:
            words = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CaptionError(f"{path}: cannot be read as a vocabulary ({error})") from error
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise CaptionError(f"{path}: wanted a JSON list of words")
        return cls(words)

    def differences(self, other: Vocabulary) -> list[str]:
        """Lines that say how the other vocabulary differs; empty when they are equal."""
        if self.words == other.words:
            return []
        missing = [word for word in self.words if word not in other.ids]
        extra = [word for word in other.words if word not in self.ids]
        lines = [f"{len(self)} entries against {len(other)}"]
        if missing:
            lines.append(f"{len(missing)} missing, first {', '.join(missing[:10])}")
        if extra:
            lines.append(f"{len(extra)} extra, first {', '.join(extra[:10])}")
        if not missing and not extra:
            place = next(i for i, word in enumerate(self.words) if other.words[i] != word)
            lines.append(f"first other order at {place}: {self.words[place]} {other.words[place]}")
        return lines
