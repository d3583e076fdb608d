"""Latency and bandwidth between the ranks, by level of the network."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import NamedTuple, cast

import torch
import torch.distributed as dist

from gradwire.comm.base import Mailbox, SummingMailbox
from gradwire.comm.torch_dist import TorchMailbox
from gradwire.errors import SpecError
from gradwire.hardware import Line, LinkSpeed
from gradwire.measure.fit import fit_line

BUDGET_S = 2.0
"""Time for all levels and collectives together, unless told otherwise."""

SIZES_BYTES = tuple(1 << power for power in range(12, 27, 2))
"""4 KiB to 64 MiB; the largest are left out where the link is too slow for them."""

_REPEATS = 5
_AFTER_BYTES = (1 << 12, 1 << 23)
_AFTER_ONE_S = 0.03
_AFTER_S = 0.02
_WIDTH = 256
_LARGE = 1 << 22
_LEAST_SIZES = 3
_LEAST_S = 1e-7
_FIRST_TAG = 1 << 29

Trial = Callable[[int], Callable[[], object]]
"""Prepares a transfer of so many bytes; calling the result runs it to its end."""


class Links(NamedTuple):
    """What was measured.

    Attributes:
        within: Between ranks of one node; where no two ranks share one, `between`.
        between: Between nodes; where there is but one, `within`.
    """

    within: LinkSpeed
    between: LinkSpeed


def measure_links(
    ranks: dist.ProcessGroup | Mailbox | None = None,
    *,
    ranks_per_node: int | None = None,
    budget_s: float = BUDGET_S,
    is_after: bool = False,
) -> Links:
    """Measure the links between all ranks; every rank gets the same numbers.

    Collective: all ranks call it alike. On each level two things are timed: an
    exchange of gradwire's own, in which every rank sends to all others of
    that level at once, and the back end's all-reduce. Sizes grow until the
    time is used up, so that a slow link takes hardly longer than a fast one.

    Args:
        ranks: A group of `torch.distributed` with any back end, or a mailbox;
            None for all ranks.
        ranks_per_node: How many consecutive ranks share a node; None asks
            `LOCAL_WORLD_SIZE`, and takes one node if that is not set.
        budget_s: Time for everything, about.
        is_after: Whether to measure all of it once more right after computation.

    Raises:
        SpecError: There is but one rank, or ranks do not fill nodes evenly.

    Example:
        >>> from gradwire.comm.local import run_ranks
        >>> links = run_ranks(2, lambda mailbox: measure_links(mailbox, budget_s=0.01))
        >>> links[0] == links[1], links[0].within.ranks
        (True, 2)
    """
    if ranks is None or isinstance(ranks, dist.ProcessGroup):
        group = ranks if ranks is not None else dist.group.WORLD
        mailbox: Mailbox = TorchMailbox(group)
        try:
            return _measure(mailbox, group, ranks_per_node, budget_s, is_after=is_after)
        finally:
            mailbox.close()
    return _measure(ranks, None, ranks_per_node, budget_s, is_after=is_after)


def _measure(
    mailbox: Mailbox,
    group: dist.ProcessGroup | None,
    given: int | None,
    budget_s: float,
    *,
    is_after: bool,
) -> Links:
    local = _ranks_per_node(given, mailbox.world_size)
    everyone = range(mailbox.world_size)
    node = mailbox.rank // local
    levels = {
        "within": [r for r in everyone if r // local == node],
        "between": [r for r in everyone if r // local != node],
    }
    shared_s = budget_s / (2 * (1 + (1 < local < mailbox.world_size)))
    tags = itertools.count(_FIRST_TAG)
    measured: dict[str, LinkSpeed] = {}
    for level, members in levels.items():
        peers = [r for r in members if r != mailbox.rank]
        if not peers:
            continue
        trials = {"exchange": _exchange(mailbox, peers, tags)}
        reducing = len(members) if level == "within" else mailbox.world_size
        with _all_reduce(mailbox, group, local, reducing) as trial:
            if trial is not None:
                trials["all_reduce"] = trial
            fits = {name: _fit(trial, mailbox, shared_s) for name, trial in trials.items()}
            speed = _speed(fits, reducing)
            if is_after:
                speed = _with_after(speed, trials, mailbox)
        measured[level] = speed
    only = next(iter(measured.values()))
    links = Links(measured.get("within", only), measured.get("between", only))
    # All compute the same; should two machines round differently, rank 0 is right.
    agreed: list[Links] = mailbox.gather_objects(links)  # type: ignore[assignment]
    return agreed[0]


def _ranks_per_node(given: int | None, world_size: int) -> int:
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) if given is None else given
    if world_size < 2:  # noqa: PLR2004 - as the message says
        raise SpecError("world_size", world_size, "at least 2: a link has two ends")
    if not 1 <= local <= world_size or world_size % local:
        raise SpecError("ranks_per_node", local, f"a divisor of the {world_size} ranks")
    return local


def _exchange(mailbox: Mailbox, peers: Sequence[int], tags: Iterator[int]) -> Trial:
    """Send the bytes in equal parts to all peers at once, and receive as many."""

    def prepare(num_bytes: int) -> Callable[[], object]:
        part = max(1, num_bytes // len(peers))
        sends = dict.fromkeys(peers, torch.zeros(part, dtype=torch.uint8))
        receives = {r: torch.zeros(part, dtype=torch.uint8) for r in peers}
        return lambda: mailbox.exchange(next(tags), sends, receives).result()

    return prepare


@contextmanager
def _all_reduce(
    mailbox: Mailbox, group: dist.ProcessGroup | None, local: int, reducing: int
) -> Iterator[Trial | None]:
    """Lend the back end's all-reduce over a level, None where it has none."""
    is_whole = reducing == mailbox.world_size
    if group is None:
        is_able = is_whole and isinstance(mailbox, SummingMailbox)
        yield _summing(mailbox) if is_able and isinstance(mailbox, SummingMailbox) else None
        return
    if is_whole:
        yield _reducing(group)
        return
    first = mailbox.rank // local * local
    members = [dist.get_global_rank(group, r) for r in range(first, first + local)]
    node = dist.new_group(members, use_local_synchronization=True)
    yield _reducing(node)
    dist.destroy_process_group(node)


def _summing(mailbox: SummingMailbox) -> Trial:
    def prepare(num_bytes: int) -> Callable[[], object]:
        data = torch.zeros(num_bytes // 4)
        return lambda: mailbox.all_reduce(data).result()

    return prepare


def _reducing(group: dist.ProcessGroup) -> Trial:
    is_gpu = "nccl" in dist.get_backend(group)
    device = torch.device("cuda" if is_gpu else "cpu")

    def prepare(num_bytes: int) -> Callable[[], object]:
        data = torch.zeros(num_bytes // 4, device=device)

        def run() -> None:
            dist.all_reduce(data, group=group)
            if is_gpu:
                torch.cuda.synchronize()

        return run

    return prepare


class _Fit(NamedTuple):
    """Time of a collective, and processor time of each rank."""

    time: Line
    processor: Line


def _fit(trial: Trial, mailbox: Mailbox, budget_s: float) -> _Fit:
    """Time a transfer over sizes, and fit lines.

    What disturbs a transfer only ever delays it, so the lower quartile of its
    repetitions counts. Each rank's times are known to all: all decide alike
    when to stop.
    """
    trial(SIZES_BYTES[0])()
    points: list[tuple[float, float]] = []
    used: list[tuple[float, float]] = []
    spent_s, repeats = 0.0, _REPEATS
    for number, num_bytes in enumerate(SIZES_BYTES):
        run = trial(num_bytes)
        times: list[float] = []
        begun_s = time.process_time()
        for _ in range(repeats):
            start_s = time.perf_counter()
            run()
            times.append(time.perf_counter() - start_s)
        used_s = (time.process_time() - begun_s) / repeats
        time_s = _agreed(sorted(times)[len(times) // 4], mailbox)
        points.append((num_bytes, time_s))
        used.append((num_bytes, max(_LEAST_S, _agreed(used_s, mailbox))))
        spent_s += repeats * time_s
        if number + 1 < len(SIZES_BYTES):
            expected_s = time_s * SIZES_BYTES[number + 1] / num_bytes
            repeats = min(_REPEATS, max(1, int((budget_s - spent_s) / expected_s)))
            if spent_s + expected_s > budget_s and len(points) >= _LEAST_SIZES:
                break
    return _Fit(fit_line(points), fit_line(used))


def _with_after(speed: LinkSpeed, trials: Mapping[str, Trial], mailbox: Mailbox) -> LinkSpeed:
    """Time collectives right after computation."""
    work = _Work()
    after: dict[str, Line] = {}
    for name, trial in trials.items():
        sizes = _two_sizes(speed.collectives[name])
        first, last = (_agreed(work.then_s(trial(size)), mailbox) for size in sizes)
        after[name] = Line(first, max(0.0, last - first) / (sizes[1] - sizes[0]))
    return replace(speed, after=after)


def _two_sizes(line: Line) -> tuple[int, int]:
    small, most = _AFTER_BYTES
    large = _AFTER_ONE_S / max(line.s_per_byte, _AFTER_ONE_S / most)
    return small, max(2 * small, int(large) // 4 * 4)


class _Work:
    """Computation of a rank: products of matrices, and data beyond the caches."""

    def __init__(self) -> None:
        self._left, self._right, self._out = (torch.ones(_WIDTH, _WIDTH) for _ in range(3))
        self._large = torch.zeros(_LARGE)

    def then_s(self, run: Callable[[], object]) -> float:
        """Return the time of something after computation."""
        times = []
        for _ in range(_REPEATS):
            end_s = time.perf_counter() + _AFTER_S
            while time.perf_counter() < end_s:
                torch.mm(self._left, self._right, out=self._out)
            self._large.add_(1.0)
            start_s = time.perf_counter()
            run()
            times.append(time.perf_counter() - start_s)
        return median(times)


def _agreed(value: float, mailbox: Mailbox) -> float:
    return median(cast("list[float]", mailbox.gather_objects(value)))


def _speed(fits: Mapping[str, _Fit], ranks: int) -> LinkSpeed:
    lines = {name: fit.time for name, fit in fits.items()}
    processor = {name: fit.processor for name, fit in fits.items()}
    line = lines["exchange"]
    # Between threads of one process the cost may not grow with size at all.
    s_per_byte = line.s_per_byte or line.fixed_s / SIZES_BYTES[-1]
    return LinkSpeed(line.fixed_s, 1 / s_per_byte, line.spread, lines, ranks, processor=processor)
