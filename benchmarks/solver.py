"""Time the bit solver on layers of many sizes: `python benchmarks/solver.py`.

In seconds of the processor, so that other programs do not count.
"""

from __future__ import annotations

import random
import statistics
import time
from itertools import accumulate

from gradwire.control.levels import demand
from gradwire.planner.bits import solve

REPEATS = 15
TIGHTNESS = {"loose": 0.9, "middling": 0.6, "tight": 0.35}


def main() -> None:
    """Print the median and the spread for each number of layers."""
    print("layers  budgets    CPU ms (median)  half the interquartile range")
    for layers in (100, 1000, 4000):
        for name, share in TIGHTNESS.items():
            rng = random.Random(0)  # noqa: S311 - the same layers every time
            numels = [rng.choice([512, 4096, 60_000, 1_000_000]) for _ in range(layers)]
            weights = [n * 10 ** rng.uniform(-2, 2) for n in numels]
            demands = [
                demand(n, 4, "broadcast", (3, 8), feedback=True, force=False) for n in numels
            ]
            room = [d.options[-1].cost * share * rng.uniform(0.7, 1.3) for d in demands]
            budgets = [int(b) for b in accumulate(room)]
            times_ms = []
            for _ in range(REPEATS):
                begin = time.thread_time()
                solve(demands, budgets, 1e-9, weights=weights)
                times_ms.append((time.thread_time() - begin) * 1e3)
            low, middle, high = statistics.quantiles(times_ms, n=4)
            print(f"{layers:6}  {name:9} {middle:15.2f}  {(high - low) / 2:.2f}")


if __name__ == "__main__":
    main()
