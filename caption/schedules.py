"""Learning rates as functions of the step or of the epoch."""

from __future__ import annotations

import math

from caption.config import CrossEntropyConfig


def scheduled(xe: CrossEntropyConfig, updates: int, epoch: int, total: int) -> float:
    """The rate of cross-entropy's next update, after `updates` of `total` and `epoch` epochs."""
    step, peak = updates + 1, xe.learning_rate
    if xe.schedule == "noam":
        return noam(step, peak=peak, steps=xe.warmup)
    if xe.schedule == "m2":  # its release steps the schedule once more as an epoch begins
        return noam(step + epoch + 1, peak=peak, steps=xe.warmup)
    if xe.schedule == "epochs":
        rise, hold, every = xe.rise_epochs, xe.hold_epochs, xe.halve_epochs
        return halving(epoch + 1, peak=peak, rise=rise, hold=hold, every=every)
    return warmup(step, peak=peak, steps=xe.warmup, decay_to=xe.decay_to, total=total)


def warmup(step: int, *, peak: float, steps: int, decay_to: float, total: int) -> float:
    """Linear rise to `peak` over `steps`, then linear fall to `decay_to * peak` at `total`.

    `step` counts from 1.
    """
    if step <= steps:
        return peak * step / max(steps, 1)
    left = max(total - step, 0) / max(total - steps, 1)
    return peak * (decay_to + (1 - decay_to) * left)


def noam(step: int, *, peak: float, steps: int) -> float:
    """Rise to `peak` over `steps`, then fall with the inverse square root of the step.

    Vaswani et al. (2017) scaled to its peak: their rate for width D and `steps` of warm-up has
    the peak (D * steps) ** -0.5. `step` counts from 1.
    """
    return peak * min(step / max(steps, 1), (max(steps, 1) / step) ** 0.5)


def halving(epoch: int, *, peak: float, rise: int, hold: int, every: int) -> float:
    """In equal steps to `peak` in epoch `rise`, kept until epoch `hold`, then halved every `every`.

    The schedule of NG-SAN (Guo et al., CVPR 2020): rise 3, hold 6, every 3. `epoch` counts from 1.
    """
    halvings = math.ceil(max(epoch - hold, 0) / every)
    return peak * min(epoch / rise, 1.0) * 0.5**halvings
