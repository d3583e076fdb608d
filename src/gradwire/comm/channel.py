"""Channel: the collectives of one reduction, made of tagged exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.comm.base import Collective, Mailbox, Steps
from gradwire.layout import shard

TAGS_PER_CHANNEL = 8
"""Exchanges one reduction may use; channel `n` owns tags `8 n` to `8 n + 7`."""


class Channel:
    """Direct exchanges under tags of their own, in place of ordered collectives.

    Everything goes straight to its destination: two trips for an all-reduce
    where a ring takes `2 (N - 1)`, with the same bytes.

    Args:
        mailbox: What moves the bytes.
        number: Names this channel; equal on all ranks, and not used by
            another reduction under way.

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

    def __init__(self, mailbox: Mailbox, number: int) -> None:
        self._mailbox = mailbox
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
        yield from all_reduce_by_shards(data, divisor, self)

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


def all_reduce_by_shards(data: Tensor, divisor: float, group: Collective) -> Steps[None]:
    """Add up and divide one shard on each rank (see `Collective.all_reduce`)."""
    if data.numel() == 0:
        return
    ranks = range(group.world_size)
    cuts = [shard(data.numel(), 1, r, group.world_size) for r in ranks]
    views = [data.narrow(0, c.start, c.numel) for c in cuts]
    own = views[group.rank]
    rows = [own if r == group.rank else torch.empty_like(own) for r in ranks]
    if group.world_size > 1:
        yield from group.all_to_all(rows, views)
    # The first row is scratch or about to be replaced, so that the sum may grow in it.
    total = rows[0].to(torch.float64 if data.dtype == torch.float64 else torch.float32)
    for row in rows[1:]:
        total += row
    torch.div(total, divisor, out=own)
    if group.world_size > 1:
        yield from group.all_to_all(views, [own] * group.world_size)
