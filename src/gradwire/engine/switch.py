"""Switch: rank 0 says which plan comes next, and all take it at once."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.comm.base import Mailbox, Steps
from gradwire.errors import RankMismatchError
from gradwire.plan import Plan

_TAG = (1 << 30) + (1 << 20)
"""Beyond those of gradients (`engine.channels`)."""
_TAGS = 256


class Order(NamedTuple):
    """What rank 0 says.

    Attributes:
        plan: To use from the next step on; None for the one in use.
        next_in: Steps until it speaks again.
    """

    plan: Plan | None
    next_in: int


class Switch:
    """Carries plans from rank 0 to the others, beside the gradients.

    What is said in a step is known to all ranks at its end, for its first
    bucket waits for it; so all can act on it in the next one. How long rank
    0 took to decide does not matter: it says "no change" meanwhile.

    Args:
        mailbox: Connects the ranks.
        lead: On rank 0, called when a step begins in which it speaks, with the
            number of the step; None on the others.
        first: The first step in which rank 0 speaks.
    """

    def __init__(
        self, mailbox: Mailbox, lead: Callable[[int], Order] | None, first: int = 0
    ) -> None:
        self._mailbox = mailbox
        self._lead = lead
        self._next = first
        self.plan: Plan | None = None

    def restart(self, step: int) -> None:
        """Speak next in this step, as after a checkpoint was loaded."""
        self._next, self.plan = step, None

    def speaks(self, step: int) -> bool:
        """Whether rank 0 says something in this step."""
        return step == self._next

    def take(self) -> Plan | None:
        """Return the plan to use from this step on, once."""
        plan, self.plan = self.plan, None
        return plan

    def tasks(self, step: int) -> list[Steps[None]]:
        """Return what a step has to exchange besides gradients."""
        if not self.speaks(step):
            return []
        if self._lead is None:
            return [self._listen(step)]
        return [self._tell(step, self._lead(step))]

    def _tell(self, step: int, order: Order) -> Steps[None]:
        body = _packed(order.plan) if order.plan is not None else torch.empty(0, dtype=torch.uint8)
        head = torch.tensor([order.next_in, body.numel()])
        others = [r for r in range(self._mailbox.world_size) if r != self._mailbox.rank]
        yield self._mailbox.exchange(self._tag(step, 0), dict.fromkeys(others, head), {})
        if body.numel():
            yield self._mailbox.exchange(self._tag(step, 1), dict.fromkeys(others, body), {})
        self._next = step + order.next_in
        self.plan = order.plan

    def _listen(self, step: int) -> Steps[None]:
        head = torch.empty(2, dtype=torch.int64)
        yield self._mailbox.exchange(self._tag(step, 0), {}, {0: head})
        next_in, num_bytes = head.tolist()
        if num_bytes:
            body = torch.empty(num_bytes, dtype=torch.uint8)
            yield self._mailbox.exchange(self._tag(step, 1), {}, {0: body})
            self.plan = self._unpacked(body)
        self._next = step + next_in

    def _unpacked(self, body: Tensor) -> Plan:
        digest, text = bytes(body[:32].tolist()).decode(), bytes(body[32:].tolist())
        plan = Plan.from_json(zlib.decompress(text).decode())
        if plan.digest() != digest:  # another version writes plans otherwise
            digests = {0: digest, self._mailbox.rank: plan.digest()}
            raise RankMismatchError("replan", self._mailbox.rank, "plans (digest) differ", digests)
        return plan

    @staticmethod
    def _tag(step: int, number: int) -> int:
        return _TAG + 2 * (step % _TAGS) + number


def _packed(plan: Plan) -> Tensor:
    data = plan.digest().encode() + zlib.compress(plan.to_json().encode())
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
