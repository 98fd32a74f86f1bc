"""Checkpoints of the papers' own releases, one file each, into this project's captioners."""
