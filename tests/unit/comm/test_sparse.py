import pytest
import torch

from gradwire.comm.base import complete
from gradwire.comm.channel import Channel
from gradwire.comm.local import run_ranks
from gradwire.comm.sparse import sparse_all_reduce
from gradwire.errors import SpecError


def _gradient(rank: int, numel: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    rows = torch.randint(10, (numel,), generator=generator)
    values = torch.randn(numel, 3, generator=generator)
    return torch.sparse_coo_tensor(rows[None], values, (10, 3), check_invariants=True)


@pytest.mark.parametrize("sizes", [(4, 4), (0, 5), (0, 0), (2, 7, 30)])
def test_sparse_all_reduce_adds_different_numbers_of_rows(sizes):
    def body(mailbox):
        own = _gradient(mailbox.rank, sizes[mailbox.rank])
        return complete(sparse_all_reduce(own, Channel(mailbox, 0))).to_dense()

    results = run_ranks(len(sizes), body)
    expected = sum(_gradient(r, n).to_dense() for r, n in enumerate(sizes))
    torch.testing.assert_close(results[0], expected)
    assert all(torch.equal(results[0], x) for x in results)


def test_sparse_all_reduce_refuses_dense_tensors():
    with pytest.raises(SpecError, match="sparse_coo"):
        run_ranks(1, lambda m: complete(sparse_all_reduce(torch.ones(3), Channel(m, 0))))
