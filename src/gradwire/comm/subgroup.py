"""Subgroup: some of the ranks, by collectives that all of them take part in."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.comm.base import Collective, Steps
from gradwire.comm.channel import Scratch, all_reduce_by_shards


class Subgroup:
    """The ranks of a node, or those of the same place in all nodes.

    Every exchange is one of the whole group in which nothing goes to
    strangers. So all ranks of the group make the same calls in the same order,
    whatever subgroup they are in, and back ends without tags serve as well.

    Args:
        group: All ranks.
        ranks: Those of the subgroup, in order; the calling rank is among them.

    Example:
        >>> import torch
        >>> from gradwire.comm.base import complete
        >>> from gradwire.comm.channel import Channel
        >>> from gradwire.comm.local import run_ranks
        >>> def pairs(mailbox):
        ...     first = mailbox.rank // 2 * 2
        ...     group = Subgroup(Channel(mailbox, 0), range(first, first + 2))
        ...     x = torch.tensor([float(mailbox.rank)])
        ...     complete(group.all_reduce(x))
        ...     return x.item()
        >>> run_ranks(4, pairs)
        [1.0, 1.0, 5.0, 5.0]
    """

    def __init__(self, group: Collective, ranks: Sequence[int]) -> None:
        self._group = group
        self._ranks = ranks
        self.rank = ranks.index(group.rank)
        self.world_size = len(ranks)

    def all_reduce(self, data: Tensor, divisor: float = 1.0) -> Steps[None]:
        """Replace `data` by the sum over ranks (see `Collective.all_reduce`)."""
        yield from all_reduce_by_shards(data, divisor, self, Scratch())

    def all_gather(self, out: Tensor, data: Tensor) -> Steps[None]:
        """Fill row r of `out` with rank r's `data` (see `Collective.all_gather`)."""
        yield from self.all_to_all(out.unbind(), [data] * self.world_size)

    def all_to_all(self, out: Sequence[Tensor], data: Sequence[Tensor]) -> Steps[None]:
        """Send `data[r]` to rank r, fill `out[r]` (see `Collective.all_to_all`)."""
        nothing = data[self.rank].view(-1)[:0]
        sends, receives = ([nothing] * self._group.world_size for _ in range(2))
        for place, rank in enumerate(self._ranks):
            sends[rank], receives[rank] = data[place], out[place]
        yield from self._group.all_to_all(receives, sends)
