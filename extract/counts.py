"""Numbers of things in messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 image`, `2 images`, `1,000 images`; for nouns whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
