"""The errors that a user of `caption` can meet; each message is complete as it stands."""


class CaptionError(Exception):
    """Root of every error that `caption` raises on purpose."""
