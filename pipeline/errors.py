"""The errors that a user of `pipeline` can meet; each message is complete as it stands."""


class PipelineError(Exception):
    """Root of every error that `pipeline` raises on purpose."""
