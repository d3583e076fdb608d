"""Channel: the collectives of one reduction, made of tagged exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.comm.base import Collective, Mailbox, Steps
from gradwire.layout import shard

TAGS_PER_CHANNEL = 8
"""Exchanges one reduction may use; channel `n` owns tags `8 n` to `8 n + 7`."""

_CACHED = 1 << 16
"""Values of a row that are added up at a time."""


class Scratch:
    """Buffers kept for the next exchange: fresh memory costs page faults.

    Example:
        >>> scratch, shape = Scratch(), torch.empty(3)
        >>> buffer = scratch.take(shape)
        >>> scratch.give(buffer)
        >>> scratch.take(shape) is buffer
        True
    """

    def __init__(self) -> None:
        self._free: dict[tuple[int, torch.dtype], list[Tensor]] = {}

    def take(self, like: Tensor) -> Tensor:
        """Return a buffer of the size and dtype of a 1-D tensor, with any content."""
        free = self._free.get((like.numel(), like.dtype))
        return free.pop() if free else torch.empty_like(like)

    def give(self, buffer: Tensor) -> None:
        """Keep a buffer that nobody uses any more."""
        self._free.setdefault((buffer.numel(), buffer.dtype), []).append(buffer)


class Channel:
    """Direct exchanges under tags of their own, in place of ordered collectives.

    Everything goes straight to its destination: two trips for an all-reduce
    where a ring takes `2 (N - 1)`, with the same bytes.

    Args:
        mailbox: What moves the bytes.
        number: Names this channel; equal on all ranks, and not used by
            another reduction under way.
        scratch: Buffers to share with other channels of the same thread.

    Example:
        >>> from gradwire.comm.base import complete
        >>> from gradwire.comm.local import run_ranks
        >>> def average(mailbox):
        ...     x = torch.tensor([1.0, 2.0]) * (mailbox.rank + 1)
        ...     complete(Channel(mailbox, 0).all_reduce(x, divisor=2))
        ...     return x.tolist()
        >>> run_ranks(2, average)
        [[1.5, 3.0], [1.5, 3.0]]
    """

    def __init__(self, mailbox: Mailbox, number: int, scratch: Scratch | None = None) -> None:
        self._mailbox = mailbox
        self._scratch = scratch or Scratch()
        self._tag = number * TAGS_PER_CHANNEL
        self._end = self._tag + TAGS_PER_CHANNEL
        self.rank = mailbox.rank
        self.world_size = mailbox.world_size

    def _next_tag(self) -> int:
        assert self._tag < self._end, "a reduction used more exchanges than a channel has tags"
        self._tag += 1
        return self._tag - 1

    def _others(self) -> list[int]:
        return [r for r in range(self.world_size) if r != self.rank]

    def all_reduce(self, data: Tensor, divisor: float = 1.0) -> Steps[None]:
        """Replace `data` by the sum over ranks (see `Collective.all_reduce`)."""
        yield from all_reduce_by_shards(data, divisor, self, self._scratch)

    def all_gather(self, out: Tensor, data: Tensor) -> Steps[None]:
        """Fill row r of `out` with rank r's `data` (see `Collective.all_gather`)."""
        own = out[self.rank]
        if own.data_ptr() != data.data_ptr():
            own.copy_(data)
        if self.world_size > 1 and data.numel():
            sends = dict.fromkeys(self._others(), own)
            receives = {r: out[r] for r in self._others()}
            yield self._mailbox.exchange(self._next_tag(), sends, receives)

    def all_to_all(self, out: Sequence[Tensor], data: Sequence[Tensor]) -> Steps[None]:
        """Send `data[r]` to rank r, fill `out[r]` (see `Collective.all_to_all`)."""
        own = self.rank
        if out[own].data_ptr() != data[own].data_ptr():
            out[own].copy_(data[own])
        if self.world_size > 1:
            sends = {r: data[r] for r in self._others() if data[r].numel()}
            receives = {r: out[r] for r in self._others() if out[r].numel()}
            yield self._mailbox.exchange(self._next_tag(), sends, receives)


def all_reduce_by_shards(
    data: Tensor, divisor: float, group: Collective, scratch: Scratch
) -> Steps[None]:
    """Add up and divide one shard on each rank (see `Collective.all_reduce`)."""
    if data.numel() == 0:
        return
    ranks = range(group.world_size)
    cuts = [shard(data.numel(), 1, r, group.world_size) for r in ranks]
    views = [data.narrow(0, c.start, c.numel) for c in cuts]
    own = views[group.rank]
    rows = [own if r == group.rank else scratch.take(own) for r in ranks]
    if group.world_size > 1:
        yield from group.all_to_all(rows, views)
    _mean(rows, divisor, group.rank)
    for row in rows:
        if row is not own:
            scratch.give(row)
    if group.world_size > 1:
        yield from group.all_to_all(views, [own] * group.world_size)


def _mean(rows: Sequence[Tensor], divisor: float, own: int) -> None:
    """Replace row `own` by the sum of all rows, in order, over `divisor`."""
    if rows[own].dtype not in (torch.float32, torch.float64):
        total = rows[0].to(torch.float32)
        for row in rows[1:]:
            total += row
        torch.div(total, divisor, out=rows[own])
        return
    # The sum grows in place. Its first term may be either of two: a + b is b + a.
    first = own if own < 2 else 0  # noqa: PLR2004 - above
    for pieces in zip(*(torch.split(row, _CACHED) for row in rows), strict=True):
        total = pieces[first]
        for index in range(1, len(rows)):
            total += pieces[1 - first if index == 1 else index]
        torch.div(total, divisor, out=pieces[own])
