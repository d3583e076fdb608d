"""The ops of the sparse codec in plain PyTorch.

**Payload.** Three sections, each padded to 16 bytes: an int32 count for each
stretch; int32 places, counted from the stretch's beginning and ascending; and
float32 values. Both lists have room for the stretch's capacity, and zeros
after the count.

Values that are not finite are always selected, before any other; they are sent
as they are and leave their residual as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from gradwire.errors import GradwireError
from gradwire.kernels import checks
from gradwire.kernels.reference import blocks, divide, keep, magnitude_bits, owed, sum_blocks, write
from gradwire.layout import GROUP, align

_INFINITY = 0x7F800000
_LARGEST_FINITE = 0x7F7FFFFF
_SAMPLED_HITS = 8192
_MAX_STRIDE = 16
_ROUNDS = 8
_TOLERANCE = 1 / 32


def sparse_threshold(
    x: Tensor, segments: Tensor, residual: Tensor | None, density: float
) -> Tensor:
    """Estimate for each stretch the magnitude that `density` of its values exceed.

    The tail above a threshold is taken for an exponential one, whose mean
    excess says how far the threshold must move for the wanted count. The first
    threshold comes from the mean of all magnitudes; up to eight corrections
    follow, kept between the largest threshold known to be too low and the
    smallest known to be too high, until the count is within 1/32. Where that
    does not happen, as with many equal values, the low end is returned: too
    many values, cut at the capacity, rather than none at all.

    Only every 2nd, 4th, 8th or 16th group of 256 values is looked at, where
    enough values to be kept (8192) remain in the sample.

    Returns:
        float32 `[count]`.

    Source:
        Abdelmoniem et al., SIDCo (MLSys 2021): multi-stage fit of an
        exponential; bracket and sample are ours.
    """
    rows = checks.check_rows(segments, x, residual)
    thresholds = [_threshold(owed(x, row, residual, 0), density) for row in rows]
    return torch.tensor(thresholds, dtype=torch.float32, device=x.device)


def _threshold(value: Tensor, density: float) -> float:
    stride, sampled, target = sampling(value.numel(), density)
    groups = blocks(torch.where(magnitude_bits(value) < _INFINITY, value.abs(), 0), GROUP)
    sample = groups[::stride]
    search = refine(sampled, target)
    threshold = next(search)
    while True:
        try:
            threshold = search.send(_tail(sample, threshold))
        except StopIteration as found:
            return float(found.value)


def sampling(numel: int, density: float) -> tuple[int, int, float]:
    """Return which groups of a stretch to look at, and what to look for.

    Returns:
        The stride in groups; how many values that makes; how many of them
        should exceed the threshold.

    Example:
        >>> sampling(1000, 0.1)
        (1, 1000, 100.0)
    """
    kept = min(numel, max(1, math.ceil(density * numel)))
    stride = 1
    while stride < _MAX_STRIDE and kept > 2 * stride * _SAMPLED_HITS:
        stride *= 2
    groups = -(-numel // GROUP)
    sampled = -(-groups // stride) * GROUP
    if (groups - 1) % stride == 0:
        sampled -= groups * GROUP - numel
    return stride, sampled, kept * (sampled / numel)


def refine(sampled: int, target: float) -> Generator[float, tuple[int, float], float]:
    """Search the threshold that `target` of the sample's magnitudes exceed.

    Args:
        sampled: Values in the sample.
        target: How many of them to find.

    Yields:
        A threshold; what comes back is how many magnitudes exceed it, and by
        how much in all.

    Returns:
        The threshold.
    """
    _, total = yield 0.0
    threshold = _float32(total / sampled * math.log(1 / max(target / sampled, 0.1)))
    low, high = 0.0, math.inf
    for _ in range(_ROUNDS):
        count, excess = yield threshold
        if abs(count - target) <= target * _TOLERANCE:
            return threshold
        if count > target:
            low = threshold
        else:
            high = threshold
        step = excess / count * math.log(count / target) if count else 0.0
        threshold = _float32(threshold + step)
        if not low < threshold < high:
            threshold = _float32((low + high) / 2 if high < math.inf else 2 * low)
    return low


def _tail(sample: Tensor, threshold: float) -> tuple[int, float]:
    """Return how many magnitudes exceed the threshold, and by how much in all."""
    above = sample > threshold
    excess = sum_blocks(torch.where(above, sample - threshold, 0))
    return int(above.sum()), float(excess.to(torch.float64).cumsum(0)[-1])


def _float32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).item()


def sparse_encode(
    x: Tensor,
    segments: Tensor,
    thresholds: Tensor,
    capacities: Tensor,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """Send values above the threshold in magnitude, in order, up to capacity."""
    cuts = thresholds.view(torch.int32).clamp(max=_LARGEST_FINITE).tolist()

    def select(magnitudes: Tensor, capacity: int, index: int) -> Tensor:
        wild = (magnitudes >= _INFINITY).nonzero().view(-1)[:capacity]
        above = (magnitudes > cuts[index]) & (magnitudes < _INFINITY)
        return torch.cat((wild, above.nonzero().view(-1)[: capacity - wild.numel()]))

    _encode(x, segments, capacities, residual, gain, payload, select)


def sparse_topk_encode(
    x: Tensor,
    segments: Tensor,
    capacities: Tensor,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """Send precisely the largest magnitudes, of equal ones those that come first.

    Exact and slow: `torch.topk` takes nearly all of the time.
    """

    def select(magnitudes: Tensor, capacity: int, _index: int) -> Tensor:
        if capacity == 0:
            return magnitudes.new_empty(0, dtype=torch.int64)
        ranked = magnitudes.clamp(max=_INFINITY)
        cut = torch.topk(ranked, capacity).values[-1]
        above = (ranked > cut).nonzero().view(-1)
        equal = (ranked == cut).nonzero().view(-1)
        return torch.cat((above, equal[: capacity - above.numel()]))

    _encode(x, segments, capacities, residual, gain, payload, select)


def _encode(
    x: Tensor,
    segments: Tensor,
    capacities: Tensor,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
    select: Callable[[Tensor, int, int], Tensor],
) -> None:
    rows = checks.check_rows(segments, x, residual)
    limits = checks.check_capacities(rows, capacities.tolist())
    checks.check_size("sparse_encode", payload, num_bytes(limits))
    counts: list[int] = []
    places: list[Tensor] = []
    values: list[Tensor] = []
    for index, (row, capacity) in enumerate(zip(rows, limits, strict=True)):
        value = owed(x, row, residual, gain)
        magnitudes = magnitude_bits(value)
        chosen = select(magnitudes, capacity, index).sort().values
        finite = magnitudes < _INFINITY
        unsent = finite.clone()
        unsent[chosen] = False
        if gain == 0:
            keep(residual, row, gain, torch.where(unsent, value, 0), finite)
        else:
            keep(residual, row, gain, value, unsent)
        room = (0, capacity - chosen.numel())
        counts.append(chosen.numel())
        places.append(torch.nn.functional.pad(chosen.to(torch.int32), room))
        values.append(torch.nn.functional.pad(value[chosen], room))
    head = torch.tensor(counts, dtype=torch.int32, device=x.device)
    write(payload, ([head], places, values))


def num_bytes(capacities: Sequence[int]) -> int:
    """Return the size of a sparse payload.

    Example:
        >>> num_bytes([1000])
        8016
    """
    return align(4 * len(capacities)) + 2 * align(4 * sum(capacities))


def sparse_decode(
    payloads: Tensor,
    segments: Tensor,
    capacities: Tensor,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """Put values at their places, and zeros elsewhere.

    Raises:
        GradwireError: A count or a place is out of range.
    """
    rows = checks.check_rows(segments, out)
    limits = checks.check_capacities(rows, capacities.tolist())
    checks.check_size("sparse_decode", payloads, num_bytes(limits))
    first = align(4 * len(limits))
    room = align(4 * sum(limits))
    for index, (offset, _, numel, _, _) in enumerate(rows):
        total = out.new_zeros(numel)
        skip = first + 4 * sum(limits[:index])
        for payload in payloads:
            head = payload[: 4 * len(limits)].clone().view(torch.int32)
            count = int(head[index])
            if not 0 <= count <= limits[index]:
                raise GradwireError(malformed(index))
            data = payload[skip : skip + 4 * count].clone().view(torch.int32)
            place = data.to(torch.int64)
            if count and (place[0] < 0 or place[-1] >= numel or (place.diff() <= 0).any()):
                raise GradwireError(malformed(index))
            value = payload[skip + room : skip + room + 4 * count].clone().view(torch.float32)
            total[place] += value
        mean = divide(total, divisor)
        target = out[offset : offset + numel]
        target.copy_(target + mean if accumulate else mean)


def malformed(index: int) -> str:
    """Say that a stretch of a sparse payload cannot have been encoded.

    Example:
        >>> malformed(2)
        'sparse_decode: counts or places of stretch 2 are out of range or not ascending'
    """
    return f"sparse_decode: counts or places of stretch {index} are out of range or not ascending"
