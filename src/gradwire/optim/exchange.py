"""Exchange: what the optimisers send, over the engine that `attach` uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.base import Mailbox
from gradwire.comm.torch_collective import DistGroup
from gradwire.comm.torch_dist import TorchMailbox
from gradwire.engine.checks import digest
from gradwire.engine.scheme import Variant
from gradwire.engine.stats import StepStats
from gradwire.engine.synchronizer import Synchronizer
from gradwire.errors import RankMismatchError, SpecError
from gradwire.integrations.agreement import Options, agree_on, fixed
from gradwire.key import name_hash
from gradwire.plan import DENSE, Assignment, Parameter, Plan, load_plan
from gradwire.spec import Entry, ReducerSpec

_Arrival = torch.futures.Future[tuple[Tensor | None, BaseException | None]]

_BUCKET_BYTES = 25 << 20
_STATUS = "status of the ranks"
_NON_FINITE, _SETTLED, _FLAGS = range(3)
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """What the optimisers take besides their own settings.

    Attributes:
        plan: Whatever `gradwire.attach` takes.
        group: The ranks: a process group, None for the default one, or a
            mailbox, which is then closed with the exchange.
        check_every: Compare parameters of all ranks every so many steps.
        on_step: Called with each step's statistics when the next one begins.
    """

    plan: Plan | ReducerSpec | str | Path | None = None
    group: dist.ProcessGroup | Mailbox | None = None
    check_every: int = 0
    on_step: Callable[[StepStats], None] | None = None


class Status(NamedTuple):
    """What ranks tell each other before a step.

    Attributes:
        is_finite: Whether all gradients of all ranks are.
        is_settled: Whether any rank thinks that warm-up should end.
        used: By parameter, whether any rank has a gradient.
    """

    is_finite: bool
    is_settled: bool
    used: Sequence[bool]


class Outgoing(NamedTuple):
    """A bucket: its names, its buffer, and a view for each name."""

    names: tuple[str, ...]
    buffer: Tensor
    views: tuple[Tensor, ...]


class Exchange:
    """Averages gradients in float32 and momenta by the plan, and agrees on each step.

    A parameter has two names: momenta go by its own, gradients by another,
    which no rule of the plan applies to.

    Args:
        parameters: All parameters by name, in the same order on every rank.
        options: The plan and the ranks.
        settings: Describes all that must be equal everywhere besides.

    Raises:
        SpecError: The plan or an option asks for what cannot exist.
        RankMismatchError: Ranks differ.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], options: ExchangeOptions, settings: str
    ) -> None:
        self._parameters = dict(parameters)
        self._device = next((p.device for p in parameters.values()), torch.device("cpu"))
        self._flat: dict[torch.dtype, Tensor] = {}
        self._is_compared = False
        group = options.group
        is_mailbox = group is not None and not isinstance(group, dist.ProcessGroup)
        self._mailbox: Mailbox = group if is_mailbox else TorchMailbox(group)  # type: ignore[arg-type,assignment]
        dist_group = None
        try:
            checked = Options(None, options.check_every, options.on_step)
            plan, momenta = agree_on(lambda: self._read(options), checked, self._mailbox)
            self._compare("settings of the optimisers", settings)
            if self._device.type != "cpu" and not is_mailbox:
                dist_group = DistGroup(group, self._device)  # type: ignore[arg-type]
            self._assignments = plan.assign(momenta, self._mailbox.world_size)
            self._sync = self._synchronizer(plan, momenta, checked, dist_group)
        except BaseException:
            self._mailbox.close()
            if dist_group is not None:
                dist_group.close()
            raise
        self.plan = plan

    def _read(self, options: ExchangeOptions) -> tuple[Plan, list[Parameter]]:
        plan = fixed(load_plan(options.plan))
        Options(None, options.check_every, options.on_step).check(self._device)
        for name, p in self._parameters.items():
            if p.dtype not in _DTYPES:
                raise SpecError(f"dtype of {name}", p.dtype, "a real floating-point one")
            if p.device != self._device or p.device.type not in ("cpu", "cuda"):
                allowed = "the one of all other parameters, the CPU or a CUDA device"
                raise SpecError(f"device of {name}", str(p.device), allowed)
        return plan, [
            Parameter(name, Entry(name_hash(name), tuple(p.shape)), _short(p.dtype))
            for name, p in self._parameters.items()
        ]

    def _synchronizer(
        self, plan: Plan, momenta: list[Parameter], options: Options, group: DistGroup | None
    ) -> Synchronizer:
        gradients = [m._replace(name=gradient_of(m.name)) for m in momenta]
        status = Parameter(_STATUS, Entry(name_hash(_STATUS), (_FLAGS + len(momenta),)))
        exact = {p.name: Assignment(DENSE) for p in (*gradients, status)}
        parameters = self._parameters
        return Synchronizer(
            replace(plan, warmup_steps=0),  # the optimiser's own warm-up takes its place
            [*momenta, *gradients, status],
            self._mailbox,
            device=self._device,
            group=group,
            check_every=options.check_every,
            on_step=options.on_step,
            replicas=lambda: {name: p.detach() for name, p in parameters.items()},
            variant=Variant({**self._assignments, **exact}),
        )

    @property
    def sync(self) -> Synchronizer:
        """What carries it, with residuals and statistics."""
        return self._sync

    def is_compressed(self, name: str) -> bool:
        """Return whether the plan compresses a parameter's momentum."""
        return self._assignments[name].reducer != DENSE

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over residuals and step count; parameters are compared again."""
        self._sync.load_state_dict(state)
        self._is_compared = False

    def compare_replicas(self) -> None:
        """Make sure, before the first step, that all ranks hold the same parameters.

        Raises:
            RankMismatchError: They differ; names the first one that does.
        """
        if self._is_compared:
            return
        hashes = {name: digest(p).hex() for name, p in self._parameters.items()}
        everyone = self._mailbox.gather_objects(hashes)
        for name, own in hashes.items():
            found = {r: str(v.get(name)) for r, v in enumerate(everyone) if isinstance(v, dict)}
            if set(found.values()) != {own}:
                remedy = "seed all ranks alike, or load the same weights, before the first step"
                detail = f"parameter {name!r} differs between ranks: {remedy}"
                raise RankMismatchError("first step", self._mailbox.rank, detail, found)
        self._is_compared = True

    def _compare(self, what: str, value: str) -> None:
        found = {r: str(v) for r, v in enumerate(self._mailbox.gather_objects(value))}
        for rank, other in found.items():
            if other != found[0]:
                detail = f"{what} differ: {found[0]} on rank 0, {other} on rank {rank}"
                raise RankMismatchError("set-up", self._mailbox.rank, detail, found)

    def agree(self, status: Status) -> Status:
        """Return what holds for all ranks together: the first exchange of a step.

        Args:
            status: What holds for this one.
        """
        flags = torch.zeros(_FLAGS + len(status.used))
        flags[_NON_FINITE], flags[_SETTLED] = not status.is_finite, status.is_settled
        flags[_FLAGS:] = torch.tensor(status.used)
        buffer = flags.to(self._device)
        self._wait(self._start((_STATUS,), buffer))
        found = (buffer > 0).tolist()
        return Status(not found[_NON_FINITE], found[_SETTLED], found[_FLAGS:])

    def lay_out(self, travelling: Sequence[tuple[str, Tensor]]) -> list[Outgoing]:
        """Return buckets to be filled, and averaged by `average`.

        Args:
            travelling: Names, with a tensor of the shape and dtype of each.
        """
        buckets = []
        for dtype in dict.fromkeys(p.dtype for _, p in travelling):
            members = [(name, p) for name, p in travelling if p.dtype == dtype]
            flat, start = self._buffer(dtype), 0
            for group in _cut(members):
                ends = list(accumulate((p.numel() for _, p in group), initial=start))
                views = tuple(
                    flat[a:b].view(p.shape)
                    for a, b, (_, p) in zip(ends, ends[1:], group, strict=False)
                )
                names = tuple(name for name, _ in group)
                buckets.append(Outgoing(names, flat[start : ends[-1]], views))
                start = ends[-1]
        return buckets

    def average(self, buckets: Sequence[Outgoing]) -> bool:
        """Replace buckets by their means; return whether those are finite.

        Raises:
            CollectiveError: Something went wrong on this rank or another.
        """
        arrivals = [self._start(bucket.names, bucket.buffer) for bucket in buckets]
        for arrival in arrivals:
            self._wait(arrival)
        self._sync.end_backward()
        return all(bool(bucket.buffer.isfinite().all()) for bucket in buckets)

    def _start(self, names: tuple[str, ...], buffer: Tensor) -> _Arrival:
        on_gpu = self._device.type == "cuda"
        arrival: _Arrival = torch.futures.Future(devices=[self._device] if on_gpu else [])
        self._sync.reduce_next(buffer, names, lambda mean, error: arrival.set_result((mean, error)))
        return arrival

    @staticmethod
    def _wait(arrival: _Arrival) -> None:
        _, error = arrival.wait()
        if error is not None:
            raise error

    def _buffer(self, dtype: torch.dtype) -> Tensor:
        if dtype not in self._flat:
            total = sum(p.numel() for p in self._parameters.values() if p.dtype == dtype)
            self._flat[dtype] = torch.zeros(total, dtype=dtype, device=self._device)
        return self._flat[dtype]


def gradient_of(name: str) -> str:
    """Return the name under which a parameter's gradient travels.

    Example:
        >>> gradient_of("layer.weight")
        'gradient of layer.weight'
    """
    return f"gradient of {name}"


def _cut(members: Sequence[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Cut parameters into buckets: while one travels, the next is encoded."""
    bucket: list[tuple[str, Tensor]] = []
    num_bytes = 0
    for name, p in members:
        if bucket and num_bytes + p.nbytes > _BUCKET_BYTES:
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append((name, p))
        num_bytes += p.nbytes
    if bucket:
        yield bucket


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
