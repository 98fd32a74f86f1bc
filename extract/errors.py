"""The errors that a user of `extract` can meet; each message is complete as it stands."""


class ExtractError(Exception):
    """Root of every error that `extract` raises on purpose."""
