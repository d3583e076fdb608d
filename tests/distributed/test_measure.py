"""Links and layers, measured between real processes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from launch import run_processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.comm.local import run_ranks
from gradwire.comm.shaped import Link, ShapedMailbox
from gradwire.comm.torch_dist import TorchMailbox
from gradwire.errors import SpecError
from gradwire.measure.links import measure_links
from gradwire.measure.model import measure_workload


def test_all_ranks_get_the_same_numbers_for_both_levels():
    def body(_):
        links = measure_links(ranks_per_node=2, budget_s=0.1)
        return links, dist.get_world_size()

    results = run_processes(4, body)
    assert len({repr(links) for links, _ in results}) == 1
    links, world_size = results[0]
    assert (links.within.ranks, links.between.ranks, world_size) == (2, 4, 4)
    for link in links:
        assert set(link.collectives) == {"exchange", "all_reduce"}
        assert link.latency_s == link.collectives["exchange"].fixed_s
        assert link.bandwidth_bytes_per_s > 0


def test_a_limited_link_is_found_as_it_is():
    def body(_):
        mailbox = ShapedMailbox(TorchMailbox(None), Link(1e6, 0.02))
        links = measure_links(mailbox, budget_s=0.5)
        mailbox.close()
        return links

    links = run_processes(2, body)
    assert links[0] == links[1]
    # Loose, as a busy machine delays single transfers: without the link it is above 1e8.
    assert 1e5 < links[0].within.bandwidth_bytes_per_s < 1e7
    assert links[0].within == links[0].between
    assert set(links[0].within.collectives) == {"exchange"}


def test_one_rank_and_uneven_nodes_are_refused():
    def refused(mailbox):
        try:
            measure_links(mailbox, ranks_per_node=2)
        except SpecError as error:
            return str(error)
        return None

    assert run_ranks(1, refused) == ["world_size=1 is not at least 2: a link has two ends"]
    assert run_ranks(3, refused) == ["ranks_per_node=2 is not a divisor of the 3 ranks"] * 3


def test_measuring_a_ddp_model_changes_nothing():
    def body(rank):
        results = []
        for is_measured in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))
            ddp = DistributedDataParallel(net)
            sync = gradwire.attach(ddp, "int4")
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
            x = torch.randn(8, 64) + rank
            for step in range(3):
                if is_measured and step != 1:
                    work = measure_workload(
                        ddp, lambda m, x=x: m(x).square().mean(), optimizer=optimizer
                    )
                    assert [layer.name for layer in work.layers] == ["0", "1", "2"]
                optimizer.zero_grad()
                ddp(x).square().mean().backward()
                optimizer.step()
            results.append([p.detach().clone() for p in ddp.parameters()])
            assert sync.stats().steps_done == 3
            sync.close()
        return results

    first, second = run_processes(2, body)
    for plain, measured in zip(first[0], first[1], strict=True):
        assert torch.equal(plain, measured)
    for mine, theirs in zip(first[1], second[1], strict=True):
        assert torch.equal(mine, theirs)
