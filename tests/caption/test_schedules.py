"""Learning rates of each schedule at the steps and epochs that papers print."""

from __future__ import annotations

import pytest

from caption.schedules import halving, noam, warmup


def test_ng_san_rises_three_epochs_holds_to_the_sixth_then_halves_every_three() -> None:
    """min(t 1e-4, 3e-4); 7-9: 1.5e-4, 10-12: 7.5e-5, 13-15: 3.75e-5."""
    rates = [halving(t, peak=3e-4, rise=3, hold=6, every=3) for t in range(1, 16)]
    wanted = [1e-4, 2e-4, *[3e-4] * 4, *[1.5e-4] * 3, *[7.5e-5] * 3, *[3.75e-5] * 3]
    assert rates == pytest.approx(wanted)


def test_noam_has_its_peak_at_the_end_of_the_warm_up() -> None:
    """The position-aware Transformer: 5e-4 at step 20,000."""
    assert noam(20000, peak=5e-4, steps=20000) == pytest.approx(5e-4)
    assert noam(5000, peak=5e-4, steps=20000) == pytest.approx(1.25e-4)
    assert noam(80000, peak=5e-4, steps=20000) == pytest.approx(2.5e-4)


def test_linear_goes_down_to_its_share_of_the_peak() -> None:
    assert warmup(10, peak=1.0, steps=10, decay_to=0.2, total=110) == pytest.approx(1.0)
    assert warmup(60, peak=1.0, steps=10, decay_to=0.2, total=110) == pytest.approx(0.6)
    assert warmup(110, peak=1.0, steps=10, decay_to=0.2, total=110) == pytest.approx(0.2)
