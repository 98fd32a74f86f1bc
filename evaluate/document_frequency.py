"""In how many documents each n-gram occurs: the fixed table of CIDEr-D rewards.

Two public styles: a document is one caption (Meshed-Memory Transformer's training code) or one
image with all its captions (ruotianluo's self-critical training, and CIDEr as published).
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from evaluate.errors import EvaluateError
from evaluate.ngrams import ORDERS, TokenStyle, ngram_counts
from evaluate.paths import replacing
from evaluate.restricted_pickle import load_plain

Document = Literal["image", "caption"]
_SCHEMA = 1
_BUILD_AGAIN = "build the table again from the training captions"
_WANTED = (
    "wanted an .npz that DocumentFrequency.save wrote; docs/evaluation.md, From Python, shows how"
    " one is built of captions or of a public *-idxs.p file"
)


class DocumentFrequency:
    """A table n-gram -> number of documents that contain it, and the number of documents.

    `counts` has n-grams as tokens joined by one blank; `documents` is the N in log N, a float
    because public tables may store it so; `style` says what the tokens are.
    """

    def __init__(
        self,
        counts: Mapping[str, int],
        documents: float,
        *,
        document: Document,
        style: TokenStyle | None = None,
    ) -> None:
        if document not in get_args(Document):
            raise EvaluateError(f"document is {document!r}, wanted one of {get_args(Document)}")
        if not (math.isfinite(documents) and documents > 0):
            raise EvaluateError(f"number of documents is {documents!r}, wanted one or more")
        self.counts = counts
        self.documents = documents
        self.document = document
        self.style = style if style is not None else TokenStyle()
        self.log_documents = math.log(documents)

    @classmethod
    def build(
        cls,
        references: Mapping[Any, Sequence[str]],
        document: Document = "image",
        *,
        eos: str | None = None,
        ids: Mapping[str, str] | None = None,
        unknown: str | None = None,
    ) -> DocumentFrequency:
        """Count the references (image id -> tokenised captions), whole and with `eos` if given.

        With `ids` (word -> id) and `unknown` the table is over ids, else over words.
        """
        style = TokenStyle(eos=eos, ids=ids, unknown=unknown)
        counts: Counter[str] = Counter()
        documents = 0
        for captions in references.values():
            found: set[str] = set()
            for caption in captions:
                for ngrams in ngram_counts(style.tokens(caption.split())):
                    found.update(ngrams)
                if document == "caption":
                    counts.update(found)
                    found = set()
            if document == "image":
                counts.update(found)
            documents += 1 if document == "image" else len(captions)
        if not documents:
            raise EvaluateError("no references to count: the document-frequency table is empty")
        return cls(dict(counts), documents, document=document, style=style)

    @classmethod
    def from_pickle(
        cls,
        path: Path | str,
        *,
        document: Document = "image",
        eos: str | None = None,
        ids: Mapping[str, str] | None = None,
        unknown: str | None = None,
    ) -> DocumentFrequency:
        """Read a public `*-idxs.p` or `*-words.p` table: keys `document_frequency`, `ref_len`.

        The file does not say what its tokens are, so the caller does (`eos` "0" and a vocabulary
        for the usual id tables). Only plain values are unpickled; raises EvaluateError naming
        any class the file asks for, or what else is wrong with it.
        """
        stored = load_plain(path)
        if not isinstance(stored, dict) or not {"document_frequency", "ref_len"} <= set(stored):
            holds = sorted(map(str, stored)) if isinstance(stored, dict) else type(stored).__name__
            raise EvaluateError(
                f"{path}: holds {holds}, wanted a dict with document_frequency and ref_len"
            )
        documents = stored["ref_len"]
        if isinstance(documents, bool) or not isinstance(documents, int | float):
            raise EvaluateError(f"{path}: ref_len is {documents!r}, wanted a number of documents")
        found = stored["document_frequency"]
        if not isinstance(found, dict):
            raise EvaluateError(
                f"{path}: document_frequency is {type(found).__name__}, wanted a dict"
            )
        counts: dict[str, int] = {}
        for ngram, count in found.items():
            counts[_joined(path, ngram)] = _count(path, ngram, count)
        style = TokenStyle(eos=eos, ids=ids, unknown=unknown)
        return cls(counts, documents, document=document, style=style)

    def __len__(self) -> int:
        return len(self.counts)

    def weight(self, ngram: str) -> float:
        """log N - log max(1, df): what one occurrence of the n-gram weighs."""
        return self.log_documents - math.log(max(1, self.counts.get(ngram, 0)))

    @property
    def sha256(self) -> str:
        """Hash of everything that decides a score: counts, documents and token style."""
        digest = hashlib.sha256(json.dumps(self._meta(), sort_keys=True).encode())
        for ngram in sorted(self.counts):
            digest.update(f"{ngram}\t{self.counts[ngram]}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def save(self, path: Path | str) -> None:
        """Write the table as an `.npz` of plain arrays, through a temporary file beside it."""
        path = Path(path)
        ngrams = sorted(self.counts)
        text = "\n".join(ngrams).encode("utf-8", "surrogatepass")
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            meta=np.frombuffer(json.dumps(self._meta()).encode(), dtype=np.uint8),  # (bytes,)
            ngrams=np.frombuffer(text, dtype=np.uint8),  # (bytes,)
            counts=np.array([self.counts[n] for n in ngrams], dtype=np.int64),  # (n-grams,)
        )
        with replacing(path) as temporary:
            temporary.write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> DocumentFrequency:
        """Read a table that `save` wrote. Raises EvaluateError when the file is not one."""
        try:
            with open(path, "rb") as file:
                if not zipfile.is_zipfile(file):  # NumPy would advise to unpickle it
                    raise EvaluateError(
                        f"{path}: not a document-frequency table (no whole .npz file); {_WANTED}"
                    )
                file.seek(0)
                with np.load(file, allow_pickle=False) as arrays:
                    meta = json.loads(arrays["meta"].tobytes())
                    text = arrays["ngrams"].tobytes().decode("utf-8", "surrogatepass")
                    counts = arrays["counts"].tolist()
            if meta["schema"] != _SCHEMA:
                raise EvaluateError(
                    f"{path}: schema is {meta['schema']!r}, wanted {_SCHEMA}; {_BUILD_AGAIN}"
                )
            return cls(
                dict(zip(text.split("\n") if counts else [], counts, strict=True)),
                meta["documents"],
                document=meta["document"],
                style=TokenStyle(eos=meta["eos"], ids=meta["ids"], unknown=meta["unknown"]),
            )
        except OSError as error:
            raise EvaluateError(f"{path}: cannot be read ({error}); {_BUILD_AGAIN}") from error
        except (
            *(ValueError, TypeError, KeyError, AttributeError, EOFError),
            *(zipfile.BadZipFile, zlib.error),
        ) as error:
            raise EvaluateError(
                f"{path}: not a document-frequency table (its meta, ngrams or counts are missing"
                f" or damaged); {_WANTED}"
            ) from error

    def _meta(self) -> dict[str, Any]:
        return {
            "schema": _SCHEMA,
            "documents": self.documents,
            "document": self.document,
            "eos": self.style.eos,
            "unknown": self.style.unknown,
            "ids": dict(self.style.ids) if self.style.ids is not None else None,
        }


def _joined(path: Path | str, ngram: object) -> str:
    if (
        isinstance(ngram, tuple)
        and 1 <= len(ngram) <= ORDERS
        and all(isinstance(t, str) and t.split() == [t] for t in ngram)
    ):
        return " ".join(ngram)
    raise EvaluateError(
        f"{path}: document_frequency has the key {ngram!r}, wanted a tuple of 1 to {ORDERS} tokens"
    )


def _count(path: Path | str, ngram: object, count: object) -> int:
    if isinstance(count, int | float) and not isinstance(count, bool):
        if count >= 0 and float(count).is_integer():
            return int(count)
    raise EvaluateError(f"{path}: document_frequency[{ngram!r}] is {count!r}, wanted a count")
