"""Reading pickles of NumPy arrays, refusing everything that could run code."""

from __future__ import annotations

import collections
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from extract.errors import ExtractError


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 pickles bytes in Python 2's protocol."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
_frombuffer = np.zeros(1).__reduce_ex__(5)[0]
_reconstruct, _scalar = (
    np.zeros(0).__reduce__()[0],
    np.float32(0).__reduce__()[0],
)
_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("_codecs", "encode"): _latin1,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{(module, "_frombuffer"): _frombuffer for module in _NUMERIC},
    **{(module, "_reconstruct"): _reconstruct for module in _MULTIARRAY},
    **{(module, "scalar"): _scalar for module in _MULTIARRAY},
}


class NotAPickle(ExtractError):
    """The file is no pickle, or a broken one."""


class _Refused(pickle.UnpicklingError):
    """The file asks for a class outside the list."""


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def load_arrays(path: Path) -> Any:
    """The arrays and plain values in a pickle written by Python 2 or 3.

    Raises ExtractError when the file cannot be read, is no pickle, or asks for anything but NumPy
    arrays and plain values; the message names it, and nothing of it has run.
    """
    try:
        with path.open("rb") as file:
            return unpickle_arrays(file, path)
    except OSError as error:
        raise ExtractError(f"{path}: cannot be read ({error})") from error


def unpickle_arrays(file: BinaryIO, source: object) -> Any:
    """`load_arrays` from where a file that is open stands; `source` is named in errors."""
    try:
        return _ArrayUnpickler(file, encoding="latin1").load()
    except _Refused as refused:
        raise ExtractError(
            f"{source}: refused, the pickle asks for {refused}; a file of features or weights needs"
            " only NumPy arrays and plain values, so get it from its publisher again"
        ) from refused
    except OSError:
        raise
    except Exception as error:  # broken pickles raise many kinds
        raise NotAPickle(
            f"{source}: not a readable pickle ({type(error).__name__}: {error})"
        ) from error
