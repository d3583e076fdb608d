"""FP8 summed by the back end: here by one that rounds at every hop, as NCCL does."""

import math

import pytest
import torch

from contract.exchange import Layout, alike, mean, noise, same_bits
from gradwire.comm.base import complete
from gradwire.comm.channel import Channel
from gradwire.comm.local import run_ranks
from gradwire.errors import SpecError
from gradwire.key import Key
from gradwire.reduce.base import State, build
from gradwire.reduce.shared_scale import largest_float8
from gradwire.spec import parse_reducer
from strategies import normal

SPEC = parse_reducer("fp8@shared_scale")
SHAPES = [(40, 50), (300,), (7,)]


class Hops(Channel):
    """Adds up 8-bit floats rank by rank, rounding each time."""

    def sum_float8(self, data):
        rows = torch.empty(self.world_size, data.numel(), dtype=torch.uint8)
        yield from self.all_gather(rows, data.view(torch.uint8))
        total = rows[0].view(data.dtype)
        for row in rows[1:]:
            total = (total.float() + row.view(data.dtype).float()).to(data.dtype)
        data.copy_(total)


def reduced(gradients, layout, world_size, channel=Hops):
    def body(mailbox):
        reducer, x = build(SPEC), layout.bucket(gradients[mailbox.rank][0])
        part = reducer.part(layout.slots, world_size)
        out = torch.full_like(x, torch.nan)
        group = channel(mailbox, 0)
        complete(reducer.reduce(x, part, State(None, {}), Key(0, 0, mailbox.rank), group, out))
        return layout.values(out)

    return run_ranks(world_size, body)


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_ranks_agree_on_a_mean_within_the_roundings_of_the_format(world_size):
    layout = Layout.of(SHAPES, gap=2)
    gradients = noise(layout.residual_numel, world_size, 1)
    outs = reduced(gradients, layout, world_size)
    assert all(same_bits(out, outs[0]) for out in outs)
    exact = mean([g[0] for g in gradients])
    peak = max(float(g[0].abs().max()) for g in gradients)
    # Every hop rounds to 4 bits what is at most the sum of all peaks.
    assert (outs[0] - exact).abs().max() <= 2.0**-4 * peak * world_size
    assert (outs[0] - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("world_size", [2, 3, 5, 7, 64])
def test_sums_of_peaks_do_not_overflow(world_size):
    assert world_size * largest_float8(world_size) <= 448
    if world_size <= 7:
        x = torch.full((300,), -3e38)
        outs = reduced(alike(x, world_size), Layout.of([(300,)]), world_size)
        assert torch.allclose(outs[0], x, rtol=0.1)


def test_zeros_stay_zeros_and_a_wild_value_spoils_its_block_only():
    x = torch.zeros(2000)
    x[256:] = normal(1744)
    x[300] = math.inf
    (out, _) = reduced(alike(x, 2), Layout.of([(2000,)]), 2)
    assert torch.equal(out[:256], torch.zeros(256))
    assert not out[256:512].isfinite().any()
    assert out[512:].isfinite().all()


def test_collectives_that_sum_no_float8_are_refused():
    with pytest.raises(SpecError, match="float8_e4m3' is not summed by these collectives: use fp8"):
        reduced(alike(normal(300), 2), Layout.of([(300,)]), 2, channel=Channel)
