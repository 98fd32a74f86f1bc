"""Hints for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def hint(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'near'?`, or all that are known where none is near."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
