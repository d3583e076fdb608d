"""Upper bounds of times, on machines that do other things too."""

from collections.abc import Callable

_TRIES = 20


def assert_fast(measure: Callable[[], float], limit_s: float) -> None:
    """Measure until a time is below a limit: others' work can only make it longer."""
    times_s: list[float] = []
    while not times_s or times_s[-1] >= limit_s:
        assert len(times_s) < _TRIES, f"never below {limit_s} s: {times_s}"
        times_s.append(measure())
