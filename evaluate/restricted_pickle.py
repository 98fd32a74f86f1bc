"""Reading foreign pickles of plain values, refusing everything that could run code."""

from __future__ import annotations

import collections
import pickle
from pathlib import Path
from typing import Any

from evaluate.errors import EvaluateError

# What the public document-frequency tables are made of beside plain values; a defaultdict's
# default factory is one of the plain types.
_BUILTINS = {"int": int, "float": float, "dict": dict, "list": list, "tuple": tuple, "str": str}
_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "defaultdict"): collections.defaultdict,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "Counter"): collections.Counter,
    **{("builtins", name): kind for name, kind in _BUILTINS.items()},
    **{("__builtin__", name): kind for name, kind in _BUILTINS.items()},
}


class _Refused(pickle.UnpicklingError):
    """The file asks for a class outside the list."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def load_plain(path: Path | str) -> Any:
    """The plain Python values in a pickle written by Python 2 or 3.

    Raises EvaluateError when the file cannot be read, is no pickle, or asks for any class but a
    few plain containers; the message names the class, and nothing of it has run.
    """
    try:
        with open(path, "rb") as file:
            return _PlainUnpickler(file, encoding="utf-8").load()
    except _Refused as refused:
        allowed = ", ".join(sorted({f"{module}.{name}" for module, name in _ALLOWED}))
        raise EvaluateError(
            f"{path}: refused, the pickle asks for {refused}; allowed are plain values and"
            f" {allowed}; build the table from the captions instead"
        ) from refused
    except OSError as error:
        raise EvaluateError(f"{path}: cannot be read ({error})") from error
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
        MemoryError,
    ) as error:
        raise EvaluateError(f"{path}: not a readable pickle ({error})") from error
