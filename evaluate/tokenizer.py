"""PTB tokens of captions."""

from __future__ import annotations

import re
from collections.abc import Sequence

_REMOVED = frozenset("'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;".split())


def ptb_tokenize(captions: Sequence[str]) -> list[str]:
    """The tokens of each caption, joined by one blank."""
    return [
        " ".join(re.findall(r"[a-z0-9]+(?:[-'/.][a-z0-9]+)*|[$%#@&*=+]", c.lower()))
        for c in captions
    ]
