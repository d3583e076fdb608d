"""The Reducer protocol, and the part of a bucket it works on."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from gradwire.codecs.base import Segment, Segments
from gradwire.comm.base import Collective, Steps
from gradwire.key import Key
from gradwire.layout import Stretch
from gradwire.registry import Registry
from gradwire.spec import Entry, ReducerSpec, stretches


class Slot(NamedTuple):
    """Where one parameter lies.

    Attributes:
        name: The parameter's name.
        entry: Hash of the name and sizes in storage order.
        offset: First value in the bucket.
        residual_offset: First value in the residual.
    """

    name: str
    entry: Entry
    offset: int
    residual_offset: int

    def segment(self, stretch: Stretch) -> Segment:
        """Return a stretch of this parameter as a codec sees it."""
        return Segment(
            self.offset + stretch.start,
            self.residual_offset + stretch.start,
            stretch.numel,
            stretch.start,
            self.entry.stream,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """The parameters of a bucket that share one reducer; made once per bucket layout.

    Attributes:
        slots: The parameters, in bucket order.
        segments: All of their values, cut into stretches.
        shards: By rank (of a node, under `Hierarchical`), the stretches that
            rank owns; filled by the reducer that needs it.
        run: First and last (exclusive) value in the bucket where the
            parameters lie one after the other without gaps, or None.
        inner: By place in a node, what that rank reduces between nodes under
            `Hierarchical`.
    """

    slots: tuple[Slot, ...]
    segments: Segments
    shards: tuple[Segments, ...] = ()
    run: tuple[int, int] | None = None
    inner: tuple[Part, ...] = ()

    @classmethod
    def of(cls, slots: tuple[Slot, ...], shards: tuple[Segments, ...] = ()) -> Part:
        """Cut the parameters into stretches."""
        items = [slot.segment(s) for slot in slots for s in stretches(slot.entry.numel)]
        ends = [slot.offset + slot.entry.numel for slot in slots]
        gapless = all(end == slot.offset for end, slot in zip(ends, slots[1:], strict=False))
        run = (slots[0].offset, ends[-1]) if slots and gapless else None
        return cls(slots, Segments.of(items), shards, run)

    def values(self, bucket: Tensor) -> list[Tensor]:
        """View this part's values: one run where there are no gaps, else by parameter."""
        if self.run is not None:
            return [bucket[self.run[0] : self.run[1]]]
        return [bucket.narrow(0, slot.offset, slot.entry.numel) for slot in self.slots]

    def copy(self, x: Tensor, out: Tensor) -> None:
        """Copy this part's values: the mean over one rank, of which nothing is lost."""
        if x.data_ptr() != out.data_ptr():
            for source, target in zip(self.values(x), self.values(out), strict=True):
                target.copy_(source)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The parameters as a spec sees them."""
        return tuple(slot.entry for slot in self.slots)


@dataclass(slots=True)
class State:
    """Everything that lives from step to step.

    Attributes:
        residual: What each parameter still owes, float32 `[numel]`, or None
            where no reducer of the plan uses feedback.
        factors: Low-rank warm starts by parameter name.
    """

    residual: Tensor | None
    factors: MutableMapping[str, Tensor]


class Reducer(Protocol):
    """Averages a part of a bucket over all ranks."""

    @property
    def spec(self) -> ReducerSpec:
        """The parameters; `spec.transfers(...)` is what goes over the wire."""

    def part(self, slots: tuple[Slot, ...], world_size: int) -> Part:
        """Prepare the layout of these parameters, once."""

    def reduce(
        self, x: Tensor, part: Part, state: State, key: Key, group: Collective, out: Tensor
    ) -> Steps[None]:
        """Write the mean over ranks into `out`, and what is still owed into the residual.

        This rank's share is `sent = x + residual before - residual after`; the
        mean of `sent` over ranks is `out`, which is bit-identical everywhere.
        A non-finite value of any rank makes `out` non-finite there and leaves
        that residual as it was. With one rank nothing travels and nothing is
        lost: `out` is `x`, and the residual stays as it is.

        Args:
            x: The bucket, float32, 1-D, contiguous; not changed unless it is `out`.
            part: From `part`.
            state: Residual and warm starts, changed in place.
            key: Seed, step and this rank.
            group: The ranks.
            out: Like `x`; only the part's values are written.
        """


REDUCERS: Registry[type[Reducer]] = Registry("reducers")


def build(spec: ReducerSpec) -> Reducer:
    """Build the reducer of a spec.

    Raises:
        UnknownIdError: No reducer has this id.
    """
    return REDUCERS[spec.id](spec)  # type: ignore[call-arg]
