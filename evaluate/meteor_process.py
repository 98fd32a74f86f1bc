"""METEOR's Java process: asked over pipes, never waited for without end, replaced when it dies."""

from __future__ import annotations

import logging
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Sequence

from evaluate.errors import EvaluateError
from evaluate.java import kill, start, was_stopped

log = logging.getLogger(__name__)

Stats = tuple[float, ...]  # 23 numbers, see `evaluate.meteor.meteor_score`

NUMBERS = 23
_LINES_PER_EXCHANGE = 256
_LAST_LINES = 20


class Server:
    """A METEOR process, started when it is needed and replaced once per exchange when it dies.

    `time_limit` (seconds) bounds each exchange and the start.
    """

    def __init__(self, time_limit: float) -> None:
        self.process: Process | None = None
        self._time_limit = time_limit

    def close(self) -> None:
        """End the process; a later `stats` starts another."""
        if self.process is not None:
            self.process.end()
            self.process = None

    def stats(self, command: Sequence[str], lines: Sequence[str]) -> list[Stats]:
        """The numbers of images, a line each; `command` starts the process where none runs.

        Raises EvaluateError when the program fails twice on the same lines.
        """
        step = _LINES_PER_EXCHANGE
        parts = [lines[i : i + step] for i in range(0, len(lines), step)]
        return [stats for part in parts for stats in self._exchange(command, part)]

    def _exchange(self, command: Sequence[str], lines: Sequence[str]) -> list[Stats]:
        try:
            return self._ask(command, lines)
        except _Died as error:
            stopped = self.process is not None and self.process.was_stopped()
            self.close()
            if stopped:
                raise EvaluateError("METEOR was stopped") from error
            log.warning("METEOR is started again: %s", error)
        try:
            return self._ask(command, lines)
        except _Died as error:
            self.close()
            raise EvaluateError(
                f"METEOR failed twice on the same captions: {error}; the first of them: {lines[0]}"
            ) from error

    def _ask(self, command: Sequence[str], lines: Sequence[str]) -> list[Stats]:
        if self.process is None:
            self.process = Process(command)
            self.process.ask(["a ||| a"], self._time_limit)
        return self.process.ask(lines, self._time_limit)


class _Died(Exception):
    """The Java process is gone, silent or talks nonsense; the message says so."""


class Process:
    """METEOR listening on its standard input; no call can wait for ever."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._popen = start(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        # Undrained, a full pipe of messages would stop the program for ever.
        self._drain = threading.Thread(target=self._listen, daemon=True)
        self._drain.start()
        self.end = weakref.finalize(self, _end, self._popen, self._drain)

    def ask(self, lines: Sequence[str], time_limit: float) -> list[Stats]:
        """The numbers of each line; raises _Died when they do not come in time."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        late = threading.Event()
        watch = threading.Timer(time_limit, self._give_up, [late])
        watch.start()
        try:
            # It reads all lines up to the empty one before it answers.
            self._popen.stdin.write("".join(f"{line}\n" for line in [*lines, ""]).encode("utf-8"))
            self._popen.stdin.flush()
            return [self._numbers(self._popen.stdout.readline()) for _ in lines]
        except OSError as error:
            raise _Died(self._why(f"its input is closed ({error})")) from error
        except _Died as error:
            why = f"no answer within {time_limit:g} s" if late.is_set() else str(error)
            raise _Died(self._why(why)) from error
        finally:
            watch.cancel()

    def was_stopped(self) -> bool:
        """Whether it was ended on purpose."""
        return was_stopped(self._popen)

    def _give_up(self, late: threading.Event) -> None:
        late.set()
        kill(self._popen)

    def _numbers(self, line: bytes) -> Stats:
        text = line.decode("utf-8", "replace")
        if not text:
            raise _Died(f"it ended with {self._popen.wait()}")
        try:
            numbers = tuple(float(n) for n in text.split())
        except ValueError:
            numbers = ()
        if len(numbers) != NUMBERS:
            raise _Died(f"it answered {text.strip()!r}, wanted {NUMBERS} numbers")
        return numbers

    def _listen(self) -> None:
        assert self._popen.stderr is not None
        for line in self._popen.stderr:
            self._said.append(line.decode("utf-8", "replace").rstrip())

    def _why(self, what: str) -> str:
        kill(self._popen)
        self._drain.join(timeout=2.0)
        said = "\n".join(self._said)
        return f"{what}; Java's last lines:\n{said}" if said else what


def _end(popen: subprocess.Popen[bytes], drain: threading.Thread) -> None:
    kill(popen)
    popen.wait()
    drain.join(timeout=2.0)
    for pipe in (popen.stdin, popen.stdout, popen.stderr):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                log.debug("METEOR ended with unread input")
