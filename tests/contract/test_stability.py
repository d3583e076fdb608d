"""Feedback must not diverge: what is owed stays bounded over many steps."""

from __future__ import annotations

import pytest
import torch

from gradwire.comm.base import complete
from gradwire.comm.channel import Channel
from gradwire.comm.local import LocalMailbox, run_ranks
from gradwire.errors import SpecError
from gradwire.key import Key
from gradwire.reduce.base import Slot, State, build
from gradwire.spec import Broadcast, Entry, Quantize, Sign, TwoPhase, parse_reducer

STEPS = 90
NAMES = [
    "planes8:2",
    "planes8:4",
    "planes6@two_phase",
    "int8",
    "int6",
    "int4",
    "int3",
    "int2",
    "sign",
    "fp8",
    "fp8_e5m2",
    "fp16",
    "low_rank:2",
]


def owed_norms(name: str, world_size: int) -> list[float]:
    """Return the largest residual of any rank over the gradient, step by step."""

    def body(mailbox: LocalMailbox) -> list[float]:
        reducer = build(parse_reducer(name))
        part = reducer.part((Slot("w", Entry(5, (32, 64)), 0, 0),), world_size)
        state = State(torch.zeros(2048), {})
        noise = torch.Generator().manual_seed(mailbox.rank)
        shared = torch.randn(2048, generator=torch.Generator().manual_seed(99))
        norms = []
        for step in range(STEPS):
            x = 0.3 * shared + torch.randn(2048, generator=noise)
            key = Key(0, step, mailbox.rank)
            out = torch.empty_like(x)
            complete(reducer.reduce(x, part, state, key, Channel(mailbox, step), out))
            norms.append(float(state.residual.norm() / x.norm()))
        return norms

    return [max(step) for step in zip(*run_ranks(world_size, body), strict=True)]


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_residual_stays_bounded(name: str, world_size: int) -> None:
    norms = owed_norms(name, world_size)
    early, late = max(norms[20:50]), max(norms[60:])
    assert late < 1.5 * early
    assert late < 8


@pytest.mark.parametrize(
    "spec", [(TwoPhase, Quantize(2)), (Broadcast, Quantize(2)), (TwoPhase, Quantize(1))]
)
def test_divergent_feedback_is_refused(spec: tuple[type, Quantize]) -> None:
    reducer, codec = spec
    with pytest.raises(SpecError, match="loses too much"):
        reducer(codec)
    assert reducer(codec, feedback=False).codec == codec


def test_coarse_means_travel_in_four_bits() -> None:
    assert TwoPhase(Sign()).mean_codec == Quantize(4)
    assert TwoPhase(Quantize(3)).mean_codec == Quantize(3)
