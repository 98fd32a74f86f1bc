"""The errors that a user of `extract` can meet; each message is complete as it stands."""


class ExtractError(Exception):
    """Root of every error that `extract` raises on purpose."""


class CacheError(ExtractError):
    """A feature cache is broken, foreign, locked, full, or made with other settings."""


class WeightsError(ExtractError):
    """A file is no checkpoint, or does not fit the network that it is for."""


class ImageError(ExtractError):
    """An image file cannot be used; `reason` is a short code, `detail` the sentence behind it."""

    def __init__(self, path: object, reason: str, detail: str) -> None:
        super().__init__(f"{path}: {reason}: {detail}")
        self.reason = reason
        self.detail = detail
