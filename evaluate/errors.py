"""The errors that a user of `evaluate` can meet; each message is complete as it stands."""


class EvaluateError(Exception):
    """Root of every error that `evaluate` raises on purpose."""


class NotAvailable(EvaluateError):
    """A metric's outside part (Java, a jar, a model) is missing.

    `reason` says what is missing; `command` is what the user types to get it.
    """

    def __init__(self, reason: str, command: str) -> None:
        super().__init__(f"{reason}; to get it: {command}")
        self.reason = reason
        self.command = command
