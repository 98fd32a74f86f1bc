"""What a command does when it is one of several processes, or is told to end."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger(__name__)

SOME_FAILED = 3  # exit code: done, but some images failed


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Let SIGTERM end the work within as Ctrl-C does; it is work that the same command continues.

    `torchrun` sends it to the others when a process dies, and schedulers before they kill.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(str(error) or "interrupted; the same command continues") from error
    finally:
        signal.signal(signal.SIGTERM, before)


class Interruption:
    """Within it, Ctrl-C and SIGTERM are noted, for the work to end where its state is whole.

    A second one ends the work at once, as does any inside `at_once`.
    """

    def __init__(self) -> None:
        self.noted = False
        self._at_once = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Work that may be broken off anywhere: KeyboardInterrupt is raised where it stands."""
        self._at_once = True
        try:
            if self.noted:
                raise KeyboardInterrupt
            yield
        finally:
            self._at_once = False

    def _on_signal(self, number: int, frame: object) -> None:
        if self.noted or self._at_once:
            raise KeyboardInterrupt
        self.noted = True
        log.warning("interrupted: the state is saved behind this update; once more ends at once")
