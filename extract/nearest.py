"""Hints for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name most like `name`, or None where none has that much (0 to 1) in common."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=cutoff)
    return near[0] if near else None


def hint(name: object, known: Iterable[str], listing: str | None = None) -> str:
    """`; did you mean 'near'? There are all, known`, without the question where none is near.

    With `listing`, the command that shows the names, they are counted, not told.
    """
    names = list(dict.fromkeys(known))
    near = nearest(name, names)
    told = ", ".join(names) if listing is None else f"{len(names)}, see {listing}"
    return f"; there are {told}" if near is None else f"; did you mean {near!r}? There are {told}"
