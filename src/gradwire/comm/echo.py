"""Echo: a mailbox whose peers send at once what they were sent."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradwire.comm.base import Pending, Rates


class EchoMailbox:
    """One rank of many whose others do not exist: everything but their time.

    What a rank encodes, decodes and copies takes as long as in training, and
    exchanges take none. Each peer seems to send what it was sent, as ranks
    with equal gradients would.

    Args:
        rank: This process's number in the group.
        world_size: Of the group that is imitated.

    Example:
        >>> mailbox, box = EchoMailbox(0, 2), torch.zeros(3)
        >>> mailbox.exchange(5, {1: torch.ones(3)}, {1: box}).result()
        >>> box.tolist()
        [1.0, 1.0, 1.0]
    """

    timeout_s = 60.0

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size

    def exchange(
        self, _tag: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]
    ) -> Pending:
        """Fill what would be received with what is sent (see `Mailbox.exchange`)."""
        own = next(iter(sends.values()), torch.empty(0))
        for peer, box in receives.items():
            target = box.view(-1).view(torch.uint8)
            source = sends.get(peer, own).reshape(-1).view(torch.uint8)[: target.numel()]
            target[: source.numel()] = source
            target[source.numel() :] = 0
        pending = Pending()
        pending.set_result(None)
        return pending

    def all_reduce(self, data: Tensor) -> Pending:
        """Add up as many equal tensors (see `SummingMailbox.all_reduce`)."""
        data.mul_(self.world_size)
        pending = Pending()
        pending.set_result(None)
        return pending

    def at(self, _priority: float) -> EchoMailbox:
        """Return itself: nothing waits, so nothing goes first."""
        return self

    def ping(self) -> None:
        """Measure nothing."""

    def measure_latency(self) -> None:
        """Measure nothing either."""

    def rates(self) -> Rates:
        """Say that nothing was seen of a link."""
        return Rates(None, None)

    def gather_objects(self, value: object) -> list[object]:
        """Return the value once for each rank."""
        return [value] * self.world_size

    def fail(self, reason: str) -> None:
        """Have nobody to tell."""

    def close(self) -> None:
        """Nothing to stop."""
