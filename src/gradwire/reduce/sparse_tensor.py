"""Mean of sparse tensors (the gradient of a sparse embedding), uncompressed."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.comm.base import Collective, Steps


def average_sparse(tensor: Tensor, group: Collective) -> Steps[Tensor]:
    """Return the mean over ranks of a sparse COO tensor, coalesced.

    Ranks touch different rows, so the counts are exchanged first and then
    exactly the rows there are. Values are added in rank order.

    Args:
        tensor: Sparse COO, the same shape on every rank.
        group: The ranks.
    """
    mine = tensor.coalesce()
    counts = torch.empty(group.world_size, 1, dtype=torch.int64)
    yield from group.all_gather(counts, torch.tensor([mine.values().shape[0]]))
    rows = [int(c) for c in counts]
    places = [torch.empty(mine.sparse_dim(), n, dtype=torch.int64) for n in rows]
    values = [mine.values().new_empty(n, *mine.values().shape[1:]) for n in rows]
    ranks = range(group.world_size)
    yield from group.all_to_all(places, [mine.indices().contiguous()] * len(ranks))
    yield from group.all_to_all(values, [mine.values().contiguous()] * len(ranks))
    total = torch.sparse_coo_tensor(torch.cat(places, dim=1), torch.cat(values), tensor.shape)
    return total.coalesce() / group.world_size
