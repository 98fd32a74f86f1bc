"""The errors that a user of `caption` can meet; each message is complete as it stands."""


class CaptionError(Exception):
    """Root of every error that `caption` raises on purpose."""


class CannotWrite(CaptionError):
    """A folder or file cannot be written: no room, or no leave; what was there before stands."""
