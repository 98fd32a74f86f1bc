"""The errors that a user of `pipeline` can meet; each message is complete as it stands."""

from __future__ import annotations

from caption.errors import CaptionError
from evaluate.errors import EvaluateError
from extract.errors import ExtractError


class PipelineError(Exception):
    """Root of every error that `pipeline` raises on purpose."""


class WrongUsage(PipelineError):
    """What was typed names something that there is not: exit code 2."""


USER_ERRORS = (PipelineError, ExtractError, CaptionError, EvaluateError)
