"""Hints for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def hint(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'near'? There are all, known`, without the question where none is near."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    listed = ", ".join(names)
    return f"; did you mean {near[0]!r}? There are {listed}" if near else f"; there are {listed}"
