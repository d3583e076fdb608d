import pytest
import torch
import torch.distributed as dist
from launch import run_processes

from gradwire.comm.base import complete
from gradwire.comm.channel import Channel
from gradwire.comm.sparse import sparse_all_reduce
from gradwire.comm.torch_collective import DistGroup
from gradwire.comm.torch_dist import TorchMailbox
from gradwire.errors import SpecError

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dist_collective_sums_as_a_channel_does(dtype):
    def body(rank: int) -> bool:
        x = torch.randn(101, generator=torch.Generator().manual_seed(rank)).to(dtype)
        y = x.clone()
        complete(DistGroup(None, CPU).collective().all_reduce(x))
        mailbox = TorchMailbox(None)
        complete(Channel(mailbox, 0).all_reduce(y))
        rows = mailbox.gather_objects(x.double().tolist())
        mailbox.close()
        return torch.equal(x, y) and all(row == rows[0] for row in rows)

    assert run_processes(3, body) == [True] * 3


def test_dist_collective_gathers_and_exchanges_bytes_of_any_dtype():
    def body(rank: int) -> tuple[list[list[float]], list[list[float]]]:
        group = DistGroup(None, CPU).collective()
        data = torch.tensor([rank, rank + 0.5]).to(torch.float8_e4m3fn)
        out = torch.zeros(3, 2).to(torch.float8_e4m3fn)
        complete(group.all_gather(out, data))
        sends = [torch.full((to,), rank, dtype=torch.int16) for to in range(3)]
        boxes = [torch.zeros(rank, dtype=torch.int16) for _ in range(3)]
        complete(group.all_to_all(boxes, sends))
        return out.float().tolist(), [b.tolist() for b in boxes]

    gathered = [[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]]
    assert run_processes(3, body) == [(gathered, [[s] * r for s in range(3)]) for r in range(3)]


def test_dist_collective_of_a_subgroup_counts_ranks_within_it():
    def body(rank: int) -> float | None:
        group = dist.new_group([0, 2])
        if rank == 1:
            return None
        x = torch.full((5,), float(rank + 1))
        complete(DistGroup(group, CPU).collective().all_reduce(x))
        return x[4].item()

    assert run_processes(3, body) == [4.0, None, 4.0]


def test_dist_collective_refuses_tensors_that_are_not_contiguous():
    def body(_: int) -> None:
        with pytest.raises(SpecError, match="contiguous"):
            complete(
                DistGroup(None, CPU)
                .collective()
                .all_gather(torch.zeros(2, 2), torch.zeros(2, 2)[:, 0])
            )
        dist.barrier()  # a rank that ends breaks the connection of one that is still connecting

    run_processes(2, body)


def test_sparse_all_reduce_agrees_with_gloo():
    def body(rank: int) -> bool:
        rows = torch.tensor([[rank, 4]])
        x = torch.sparse_coo_tensor(rows, torch.ones(2, 3), (6, 3), check_invariants=True)
        mailbox = TorchMailbox(None)
        total = complete(sparse_all_reduce(x, Channel(mailbox, 0)))
        mailbox.close()
        x = x.coalesce()
        dist.all_reduce(x)
        return torch.equal(total.to_dense(), x.to_dense())

    assert run_processes(3, body) == [True] * 3
