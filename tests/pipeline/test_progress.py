"""Progress: lines where there is no terminal."""

from __future__ import annotations

import pytest

from pipeline.progress import Progress


@pytest.fixture()
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a test sets."""
    now = [0.0]
    monkeypatch.setattr("pipeline.progress.time.monotonic", lambda: now[0])
    return now


def test_the_start_says_nothing_of_the_rate(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with Progress(100, unit="images", label="extract") as progress:
        clock[0] = 40.0  # of loading
        progress.update(10)
        assert "10 of 100 images, 0.2 images/s, 6:00 left" in caplog.text
        clock[0] = 80.0
        progress.update(40)
        assert "50 of 100 images, 1.0 images/s, 0:50 left" in caplog.text


def test_what_was_done_before_is_no_rate(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with Progress(100, unit="images", label="extract", initial=50) as progress:
        clock[0] = 10.0
        progress.update(10)
    assert "60 of 100 images, 1.0 images/s, 0:40 left" in caplog.text
