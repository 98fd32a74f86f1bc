"""How far a long job is: a bar on a terminal, else a log line every half minute."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType

from tqdm import tqdm

log = logging.getLogger(__name__)


class Progress:
    """Counts done units; use as a context manager and call `update(n)`.

    A `total` of None is not known. On a terminal it draws a bar on stderr; elsewhere it logs rate
    and expected time every `interval` seconds and once at the end.
    """

    def __init__(
        self, total: int | None, *, unit: str, label: str, initial: int = 0, interval: float = 30.0
    ) -> None:
        self.total, self.unit, self.label = total, unit, label
        self.done = self.initial = initial
        self.shown = initial  # how many the last line spoke of
        self.interval = interval
        self.started = self.last = time.monotonic()
        self.first: tuple[float, int] | None = None  # when the first units were done, how many
        self.bar: tqdm | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self.bar = tqdm(
                total=self.total, unit=f" {self.unit}", desc=self.label, initial=self.initial
            )
        return self

    def update(self, count: int = 1) -> None:
        """Say that `count` more units are done."""
        self.done += count
        if self.first is None:
            self.first = time.monotonic(), self.done
        if self.bar is not None:
            self.bar.update(count)
        elif time.monotonic() - self.last >= self.interval:
            self.last = time.monotonic()
            self._line()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.done > self.shown:
            self._line()

    def _line(self) -> None:
        self.shown = self.done
        if self.total is None:
            log.info("%s: %d %s", self.label, self.done, self.unit)
            return
        since, before = self.started, self.initial
        if self.first is not None and self.done > self.first[1]:
            since, before = self.first  # the start says nothing of the rate
        rate = (self.done - before) / max(time.monotonic() - since, 1e-9)
        left = (self.total - self.done) / rate if rate > 0 else float("inf")
        eta = "unknown" if left == float("inf") else f"{int(left) // 60}:{int(left) % 60:02d}"
        log.info(
            "%s: %d of %d %s, %.1f %s/s, %s left",
            *(self.label, self.done, self.total, self.unit, rate, self.unit, eta),
        )
