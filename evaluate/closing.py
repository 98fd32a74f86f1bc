"""What ends its outside programs when its context ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Base of what is used as a context manager and has a `close`."""

    @abstractmethod
    def close(self) -> None:
        """End what runs; what is used later starts again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
