"""The sum of sparse tensors over ranks, for gradients of sparse embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.comm.base import Collective, Steps
from gradwire.errors import SpecError


def sparse_all_reduce(data: Tensor, group: Collective) -> Steps[Tensor]:
    """Return the sum of a sparse tensor over ranks that touch different rows.

    Every rank's indices and values go to every other, and are added in rank
    order: bit-identical everywhere.

    Args:
        data: Sparse COO, of equal shape on all ranks; coalesced or not.
        group: The ranks.

    Returns:
        The sum, coalesced, of the same shape and dtype.

    Raises:
        SpecError: `data` is not a sparse COO tensor.

    Example:
        >>> from gradwire.comm.base import complete
        >>> from gradwire.comm.channel import Channel
        >>> from gradwire.comm.local import run_ranks
        >>> def total(mailbox):
        ...     one_row = torch.eye(3)[mailbox.rank :][:1].to_sparse()
        ...     steps = sparse_all_reduce(one_row, Channel(mailbox, 0))
        ...     return complete(steps).to_dense().tolist()
        >>> run_ranks(2, total)[0]
        [[1.0, 1.0, 0.0]]
    """
    if data.layout != torch.sparse_coo:
        raise SpecError("data.layout", data.layout, "torch.sparse_coo")
    own = data.coalesce()
    counts = torch.empty(group.world_size, 1, dtype=torch.int64)
    yield from group.all_gather(counts, torch.tensor([own.values().shape[0]]))
    numbers = [int(n) for n in counts]
    indices = [torch.empty(own.sparse_dim(), n, dtype=torch.int64) for n in numbers]
    values = [own.values().new_empty(n, *own.values().shape[1:]) for n in numbers]
    indices[group.rank] = own.indices().contiguous()
    values[group.rank] = own.values().contiguous()
    yield from group.all_to_all(indices, [indices[group.rank]] * group.world_size)
    yield from group.all_to_all(values, [values[group.rank]] * group.world_size)
    rows = [
        torch.sparse_coo_tensor(i, v, own.shape, is_coalesced=True, check_invariants=False)
        for i, v in zip(indices, values, strict=True)
    ]
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total.coalesce()
