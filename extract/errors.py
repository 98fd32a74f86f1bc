"""The errors that a user of `extract` can meet; each message is complete as it stands."""


class ExtractError(Exception):
    """Root of every error that `extract` raises on purpose."""


class CacheError(ExtractError):
    """A feature cache is broken, foreign, locked, full, or made with other settings."""
