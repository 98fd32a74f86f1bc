"""Captions and references in, scores out."""
