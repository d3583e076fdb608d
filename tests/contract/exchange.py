"""Reductions over ranks as threads, on record, and the laws that the record must keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from gradwire.comm.base import complete
from gradwire.comm.channel import Channel
from gradwire.comm.local import run_ranks
from gradwire.key import Key, name_hash
from gradwire.reduce.base import Slot, State, build
from gradwire.spec import (
    Broadcast,
    Entry,
    LowRank,
    Quantize,
    Transfer,
    TwoPhase,
    parse_reducer,
)
from strategies import normal

NAMES = (
    *("none", "bf16", "fp16", "fp8", "fp8_e5m2", "int8", "int4", "int3", "int2", "int1", "sign"),
    *("topk:0.1", "threshold:0.1", "random_k:0.1", "low_rank", "low_rank:4"),
    *("none@broadcast", "bf16@two_phase", "fp8@broadcast", "int4@broadcast", "sign@broadcast"),
    *("qsgd4", "qsgd6:256@two_phase", "planes8", "planes8:4", "planes6:4@two_phase"),
)
SPECS = {name: parse_reducer(name) for name in NAMES} | {
    "int4 nearest": TwoPhase(Quantize(4, rounding="nearest")),
    "int4 long blocks": TwoPhase(Quantize(4, block_size=1024)),
    "int4 without feedback": TwoPhase(Quantize(4), feedback=False),
    "int4@broadcast without feedback": Broadcast(Quantize(4), feedback=False),
    "low_rank without feedback": LowRank(2, feedback=False),
    "low_rank without warm start": LowRank(2, warm_start=False),
}
WITH_FEEDBACK = {name: spec for name, spec in SPECS.items() if spec.feedback}
# Scalar, vector, less than a block, matrices, a convolution.
SHAPES = [(300,), (), (40, 50), (24, 3, 3, 3), (1, 513)]

each_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
each_feedback = pytest.mark.parametrize("spec", WITH_FEEDBACK.values(), ids=WITH_FEEDBACK)
each_world = pytest.mark.parametrize("world_size", [2, 3])


class CountingMailbox:
    """Notes the bytes of each exchange that passes through."""

    def __init__(self, mailbox):
        self._mailbox = mailbox
        self.rank, self.world_size = mailbox.rank, mailbox.world_size
        self.transfers = []

    def exchange(self, tag, sends, receives):
        sent, received = (sum(t.nbytes for t in side.values()) for side in (sends, receives))
        self.transfers.append(Transfer(sent, received))
        return self._mailbox.exchange(tag, sends, receives)


@dataclass
class Layout:
    """Where parameters lie in a bucket; residuals always lie in the order of names."""

    slots: tuple[Slot, ...]
    bucket_numel: int
    residual_numel: int

    @classmethod
    def of(cls, shapes, order=None, gap=0):
        """Put `shapes[i]`, named `p<i>`, into a bucket in some order, with gaps between."""
        entries = [Entry(name_hash(f"p{i}"), tuple(shape)) for i, shape in enumerate(shapes)]
        starts = [sum(e.numel for e in entries[:i]) for i in range(len(entries) + 1)]
        slots, offset = [], gap
        for i in range(len(shapes)) if order is None else order:
            slots.append(Slot(f"p{i}", entries[i], offset, starts[i]))
            offset += entries[i].numel + gap
        return cls(tuple(slots), offset, starts[-1])

    @property
    def entries(self):
        return [slot.entry for slot in self.slots]

    def bucket(self, values):
        """Lay out values that come in the order of names; gaps hold NaN."""
        bucket = torch.full((self.bucket_numel,), torch.nan)
        for slot in self.slots:
            source = values.narrow(0, slot.residual_offset, slot.entry.numel)
            bucket.narrow(0, slot.offset, slot.entry.numel).copy_(source)
        return bucket

    def values(self, bucket):
        """Undo `bucket`."""
        values = torch.full((self.residual_numel,), torch.nan)
        for slot in self.slots:
            source = bucket.narrow(0, slot.offset, slot.entry.numel)
            values.narrow(0, slot.residual_offset, slot.entry.numel).copy_(source)
        return values


@dataclass
class Trace:
    """What one rank saw, step by step; values in the order of names."""

    inputs: list[Tensor] = field(default_factory=list)
    outs: list[Tensor] = field(default_factory=list)
    residuals: list[Tensor] = field(default_factory=list)  # one more than steps
    transfers: list[list[Transfer]] = field(default_factory=list)
    factors: list[dict[str, Tensor]] = field(default_factory=list)

    def sent(self, step):
        """Return this rank's share of a step's result, float64."""
        before, after = self.residuals[step].double(), self.residuals[step + 1].double()
        return self.inputs[step].double() + before - after


def reduce_steps(
    spec, layout, gradients, world_size, *, parts=None, seed=0, in_place=False
) -> list[Trace]:
    """Reduce some steps of gradients over ranks as threads.

    Args:
        spec: Parameters of the reducer.
        layout: Where parameters lie.
        gradients: `gradients(rank, step)`, values in the order of names, by step.
        world_size: Number of ranks.
        parts: Indices into the layout's slots, reduced one group after the other.
        seed: The plan's seed.
        in_place: Whether `out` is `x`.
    """
    groups = [range(len(layout.slots))] if parts is None else parts

    def body(mailbox):
        counting = CountingMailbox(mailbox)
        reducer = build(spec)
        prepared = [
            reducer.part(tuple(layout.slots[i] for i in group), world_size) for group in groups
        ]
        state = State(torch.zeros(layout.residual_numel), {})
        trace = Trace(residuals=[state.residual.clone()])
        for step, values in enumerate(gradients[mailbox.rank]):
            x = layout.bucket(values)
            before = x.clone()
            out = x if in_place else torch.full_like(x, torch.nan)
            counting.transfers = []
            key = Key(seed, step, mailbox.rank)
            for number, part in enumerate(prepared):
                channel = Channel(counting, step * len(prepared) + number)
                complete(reducer.reduce(x, part, state, key, channel, out))
            assert in_place or x.equal(before) or before.isnan().any(), "the input was changed"
            trace.inputs.append(values)
            trace.outs.append(layout.values(out))
            trace.residuals.append(state.residual.clone())
            trace.transfers.append(counting.transfers)
            trace.factors.append({k: v.clone() for k, v in state.factors.items()})
        return trace

    return run_ranks(world_size, body)


def mean(tensors: Sequence[Tensor]) -> Tensor:
    """Return the mean in float64."""
    return torch.stack([t.double() for t in tensors]).mean(0)


def noise(numel, world_size, steps, seed=0, scale=1.0):
    """Return gradients by rank and step, different everywhere."""
    return [
        [normal(numel, seed=seed + 97 * rank + step, scale=scale) for step in range(steps)]
        for rank in range(world_size)
    ]


def alike(values, world_size, steps=1):
    return [[values.clone() for _ in range(steps)] for _ in range(world_size)]


def same_bits(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def assert_agreement(traces):
    for trace in traces[1:]:
        for a, b in zip(traces[0].outs, trace.outs, strict=True):
            assert same_bits(a, b)
        for a, b in zip(traces[0].factors, trace.factors, strict=True):
            assert a.keys() == b.keys()
            assert all(same_bits(a[name], b[name]) for name in a)


def assert_conservation(traces, *, is_bfloat16=False):
    """The mean of what ranks sent is the result, at every step and in all."""
    steps = len(traces[0].outs)
    # Roundings of float32, or of bfloat16, of the largest numbers that took part.
    unit = 2.0**-8 if is_bfloat16 else 2.0**-21
    size = max(float(t.abs().max()) for r in traces for t in (*r.inputs, *r.residuals))
    for step in range(steps):
        sent = mean([trace.sent(step) for trace in traces])
        assert (sent - traces[0].outs[step].double()).abs().max() <= unit * size, step
    total = sum(mean([trace.inputs[step] for trace in traces]) for step in range(steps))
    results = sum(out.double() for out in traces[0].outs)
    owed = mean([trace.residuals[-1] for trace in traces])
    assert (results + owed - total).abs().max() <= unit * size * steps
