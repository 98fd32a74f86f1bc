"""Words as vectors that are given and stay as they are, at both ends of a captioner.

Cornia et al., "Meshed-Memory Transformer for Image Captioning" (CVPR 2020), section 4.6: for novel
objects GloVe vectors E stand in place of learned words, x = W E[word] before the first decoder
layer, logits = (V h) E^T behind the last. A word that no caption of training had then has a place
among the words that they had. Words without a given vector have a learned row in E.

Legend: R captions or beams, T words, V vocabulary, E width of the vectors, D width of the model,
n learned rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class VectorWords(nn.Module):
    """The embedding of words: rows of E (V, E) to model width.

    All rows are learned until `give` says which are not.
    """

    def __init__(self, vocabulary: int, vectors: int, width: int) -> None:
        super().__init__()
        self.vectors: Tensor
        self.rows: Tensor
        self.register_buffer("vectors", torch.zeros(vocabulary, vectors))  # (V, E)
        self.register_buffer("rows", torch.arange(vocabulary))  # (n,) ids of the learned rows
        self.learned = nn.Parameter(torch.empty(vocabulary, vectors))  # (n, E)
        nn.init.xavier_uniform_(self.learned)
        self.project = nn.Linear(vectors, width)
        nn.init.zeros_(self.project.bias)

    def give(self, vectors: Tensor, learned: list[int]) -> None:
        """Take vectors (V, E), all frozen but the rows of the ids `learned`.

        Before training, since it makes the learned rows anew.
        """
        self.rows = torch.tensor(sorted(learned), dtype=torch.long, device=self.rows.device)  # (n,)
        self.vectors = vectors.to(self.vectors).index_fill(0, self.rows, 0.0)  # (V, E)
        self.learned = nn.Parameter(
            self.learned.new_empty(len(learned), vectors.shape[1])
        )  # (n, E)
        nn.init.xavier_uniform_(self.learned)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (R, T) to (R, T, D)."""
        place = torch.searchsorted(self.rows, tokens.contiguous()).clamp(
            max=len(self.rows) - 1
        )  # (R, T)
        is_learned = (self.rows[place] == tokens)[..., None]  # (R, T, 1)
        learned = F.embedding(place, self.learned)  # (R, T, E)
        given = F.embedding(tokens, self.vectors)  # (R, T, E)
        embedded: Tensor = self.project(torch.where(is_learned, learned, given))  # (R, T, D)
        return embedded

    def logits(self, projected: Tensor) -> Tensor:
        """Hidden states (.., E) times E^T: (.., V)."""
        logits = F.linear(projected, self.vectors)  # (.., V), 0 where a row is learned
        return logits.index_copy_(-1, self.rows, F.linear(projected, self.learned))


class VectorOutput(nn.Module):
    """The last linear map: model width to the width of the vectors, then the product with E."""

    def __init__(self, words: VectorWords, width: int, bias: bool) -> None:
        """`words` holds E; with `bias` every word has one."""
        super().__init__()
        self.shared = (words,)  # in a tuple, since E is saved as part of the words
        vocabulary, vectors = words.vectors.shape
        self.project = nn.Linear(width, vectors)
        nn.init.zeros_(self.project.bias)
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states (.., D) to logits (.., V)."""
        logits = self.shared[0].logits(self.project(hidden))  # (.., V)
        return logits if self.bias is None else logits + self.bias
