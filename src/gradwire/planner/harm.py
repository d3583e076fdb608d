"""Harm: how much longer training takes for what an exchange loses or defers."""

from __future__ import annotations

_PER_SHARE, _PER_SQUARE, _PER_NOISE = 0.65, 0.04, 0.3
"""Longer training for what is deferred, for each squared number of steps that values are
late on average, and for noise; from steps to a loss, see docs/explanation/aqgb.md."""
_MOST_DEFERRED = 0.99


def lateness(deferred: float) -> float:
    """Return how many steps late values are on average with feedback.

    Where a share of what is owed waits for the next step, a value waits
    `deferred + deferred**2 + ...` steps.

    Args:
        deferred: Squared norm of what a step leaves in the residual, over that
            of gradient and residual before it; from 0 to 1.

    Example:
        >>> lateness(0.0), lateness(0.5), round(lateness(0.75), 6)
        (0.0, 1.0, 3.0)
    """
    deferred = min(deferred, _MOST_DEFERRED)
    return deferred / (1 - deferred)


def harm(lost: float, *, feedback: bool) -> float:
    """Return how much longer training takes to a loss, as a share of its steps.

    Without feedback the error is noise, which adds to that of the batches.
    With feedback nothing is lost, only late, and theory has the square of that.
    What is late is noise in the step all the same: Adam divides by its size.

    Args:
        lost: Squared error over squared norm, in one step.
        feedback: Whether it is owed in the next step, as a share of what is owed.

    Source:
        Square of the delay: Karimireddy et al., "Error Feedback Fixes SignSGD"
        (ICML 2019), theorem II. The constants: docs/explanation/aqgb.md.

    Example:
        >>> harm(0.02, feedback=True) < 0.02 < 0.2 < harm(0.6, feedback=True)
        True
        >>> round(harm(0.2, feedback=False), 6)
        0.06
    """
    if not feedback:
        return _PER_NOISE * lost
    return _PER_SHARE * min(lost, 1.0) + _PER_SQUARE * lateness(lost) ** 2
