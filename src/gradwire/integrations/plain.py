"""A bucket that is averaged as DDP does it: failures say which bucket it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.errors import CollectiveError


def average(buffer: Tensor, group: dist.ProcessGroup, place: str) -> Future[Tensor]:
    """Start averaging a bucket over a group, in place; the bits are DDP's own.

    Args:
        buffer: Its gradients, 1-D.
        group: The ranks.
        place: Step, bucket and parameters, for the message.

    Raises:
        CollectiveError: The back end refuses; so does the result where it fails later.
    """
    rank = group.rank()
    with _named(place, rank):
        buffer.div_(group.size())
        sums = dist.all_reduce(buffer, group=group, async_op=True).get_future()

    def mean(arrived: Future[list[Tensor]]) -> Tensor:
        with _named(place, rank):
            return arrived.value()[0]

    result: Future[Tensor] = sums.then(mean)
    return result


@contextlib.contextmanager
def _named(place: str, rank: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise CollectiveError("all_reduce", rank, f"{place}: {error}") from error
