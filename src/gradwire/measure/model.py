"""The layers of a model: sizes, and forward and backward time of each."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it
from torch.utils.hooks import RemovableHandle

from gradwire.errors import SpecError
from gradwire.measure.timing import wait_for
from gradwire.plan import Parameter
from gradwire.workload import Layer, Workload, parameter

Loss = Callable[[nn.Module], Tensor]
"""Runs one forward pass of the given model on a batch, and returns the loss."""


def measure_workload(
    model: nn.Module,
    loss: Loss,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 3,
    name: str | None = None,
    batch_size: int = 1,
) -> Workload:
    """Measure the layers of a model in a few real steps, and leave it as it was.

    Nothing is exchanged, also for a DDP model: its module runs by itself.
    Parameters, buffers, gradients, the optimizer's state and random states are
    as before afterwards.

    A layer is a module with parameters of its own, in order of first use; what
    runs between two of them counts as part of the first. A parameter that
    several modules share belongs to the first of them; one whose module is
    never called itself, to the nearest module around it that is. Times
    of layers come from hooks; they are scaled so that their sums are those of
    steps without hooks.

    Args:
        model: A plain or DDP model.
        loss: Called with the plain model; see `Loss`.
        optimizer: Whose step to time; without one, `optimiser_s` is 0.
        steps: How many steps to take the median of; a first one is not counted.
        name: Of the workload; the model's class if None.
        batch_size: Samples of one step.

    Raises:
        SpecError: The model has no parameter that needs a gradient, or the
            loss does not depend on one.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> work = measure_workload(model, lambda m: m(torch.ones(3, 4)).sum())
        >>> [layer.name for layer in work.layers], work.numel
        (['0', '2'], 58)
    """
    plain = model.module if isinstance(model, DDP) else model
    trained = {n: p for n, p in plain.named_parameters() if p.requires_grad}
    if not trained:
        raise SpecError("model", type(plain).__name__, "one with a parameter to train")
    device = next(iter(trained.values())).device
    run = _Run(plain, loss, device, optimizer)
    with _restored(plain, optimizer, device):
        clean = [run.step() for _ in range(steps + 1)][1:]
        hooked = [run.traced() for _ in range(steps + 1)][1:]
    forward_s, backward_s, optimiser_s = (median(column) for column in zip(*clean, strict=True))
    layers = _layers(plain, trained, hooked, (forward_s, backward_s))
    return Workload(name or type(plain).__name__, layers, optimiser_s, batch_size)


def gradients_of(model: nn.Module, loss: Loss) -> dict[str, Tensor]:
    """Return the gradients of one step by name, and leave the model as it was.

    Args:
        model: A plain or DDP model.
        loss: As `measure_workload` takes it.

    Example:
        >>> sorted(gradients_of(nn.Linear(2, 1), lambda m: m(torch.ones(1, 2)).sum()))
        ['bias', 'weight']
    """
    plain = model.module if isinstance(model, DDP) else model
    device = next(plain.parameters()).device
    with _restored(plain, None, device):
        _Run(plain, loss, device, None).step()
        named = plain.named_parameters()
        return {n: p.grad.detach().clone() for n, p in named if p.grad is not None}


@dataclass(slots=True)
class _Trace:
    """Marks of one step: when each module was called and each gradient was there."""

    calls: list[tuple[nn.Module, float]] = field(default_factory=list)
    forward_end_s: float = 0.0
    ready: dict[Tensor, float] = field(default_factory=dict)
    backward_end_s: float = 0.0


@dataclass(slots=True)
class _Run:
    """Steps of a model, timed."""

    model: nn.Module
    loss: Loss
    device: torch.device
    optimizer: torch.optim.Optimizer | None

    def now_s(self) -> float:
        wait_for(self.device)
        return time.perf_counter()

    def step(self) -> tuple[float, float, float]:
        """Return the times of forward, backward and optimizer."""
        self.model.zero_grad(set_to_none=True)
        times = [self.now_s()]
        loss = self.loss(self.model)
        times.append(self.now_s())
        self._check(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        times.append(self.now_s())
        if self.optimizer is not None:
            self.optimizer.step()
        times.append(self.now_s())
        return times[1] - times[0], times[2] - times[1], times[3] - times[2]

    def traced(self) -> _Trace:
        """Run forward and backward with hooks on every module and parameter."""
        trace = _Trace()
        with _hooks(self.model, trace, self.now_s):
            self.model.zero_grad(set_to_none=True)
            start_s = self.now_s()
            loss = self.loss(self.model)
            trace.forward_end_s = self.now_s()
            loss.backward()  # type: ignore[no-untyped-call]
            trace.backward_end_s = self.now_s() - trace.forward_end_s
        trace.ready = {p: t - trace.forward_end_s for p, t in trace.ready.items()}
        trace.calls = [(module, t - start_s) for module, t in trace.calls]
        trace.forward_end_s -= start_s
        return trace

    def _check(self, loss: object) -> None:
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise SpecError("loss", type(loss).__name__, "a scalar tensor that needs a gradient")


@contextmanager
def _hooks(model: nn.Module, trace: _Trace, now_s: Callable[[], float]) -> Iterator[None]:
    handles: list[RemovableHandle] = []

    def called(module: nn.Module, _: object) -> None:
        trace.calls.append((module, now_s()))

    def ready(parameter: Tensor) -> None:
        trace.ready[parameter] = now_s()

    try:
        handles += [module.register_forward_pre_hook(called) for module in model.modules()]
        for p in model.parameters():
            if p.requires_grad:
                handles.append(p.register_post_accumulate_grad_hook(ready))  # type: ignore[no-untyped-call]
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _restored(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device
) -> Iterator[None]:
    """Put back, in place, everything a step changes."""
    tensors = [*model.parameters(), *model.buffers()]
    values = [t.detach().clone() for t in tensors]
    gradients = [(p, p.grad) for p in model.parameters()]
    state = copy.deepcopy(optimizer.state_dict()) if optimizer is not None else None
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - the user's
    gpus = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 - as above
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        for p, gradient in gradients:
            p.grad = gradient
        if optimizer is not None and state is not None:
            optimizer.load_state_dict(state)


def _layers(
    model: nn.Module,
    trained: dict[str, nn.Parameter],
    traces: Sequence[_Trace],
    clean_s: tuple[float, float],
) -> tuple[Layer, ...]:
    """Put sizes and the medians of traced times together."""
    owners = _owners(model, traces[0])
    names = {module: name for name, module in model.named_modules()}
    parameters: dict[nn.Module, list[Parameter]] = {}
    tensors: dict[nn.Module, list[Tensor]] = {}
    for module, own in owners.items():
        for name, p in trained.items():
            if any(p is q for q in own):
                parameters.setdefault(module, []).append(_describe(name, p))
                tensors.setdefault(module, []).append(p)
    order = list(parameters)
    if not order:
        raise SpecError("loss", "unrelated", "one that calls a module with parameters to train")
    forward = [median(column) for column in zip(*(_forward(t, order) for t in traces), strict=True)]
    backward = [
        median(column)
        for column in zip(*(_backward(t, order, tensors) for t in traces), strict=True)
    ]
    scales = [
        clean / sum(times) if sum(times) else 0.0
        for clean, times in zip(clean_s, (forward, backward), strict=True)
    ]
    return tuple(
        Layer(names[m] or type(m).__name__, tuple(parameters[m]), f * scales[0], b * scales[1])
        for m, f, b in zip(order, forward, backward, strict=True)
    )


def _owners(model: nn.Module, trace: _Trace) -> dict[nn.Module, list[nn.Parameter]]:
    """Return the parameters each called module is the first to need, in order of use."""
    parents = {child: parent for parent in model.modules() for child in parent.children()}
    called = list(dict.fromkeys(module for module, _ in trace.calls))
    owners: dict[nn.Module, list[nn.Parameter]] = {module: [] for module in called}
    for module in model.modules():
        owner: nn.Module | None = module
        while owner is not None and owner not in owners:
            owner = parents.get(owner)
        if owner is not None:
            owners[owner] += module.parameters(recurse=False)
    seen: set[nn.Parameter] = set()
    first: dict[nn.Module, list[nn.Parameter]] = {}
    for module, own in owners.items():
        first[module] = [p for p in own if p not in seen]
        seen.update(own)
    return first


def _forward(trace: _Trace, order: Sequence[nn.Module]) -> list[float]:
    """Return each layer's time from its calls to the next layer's, in order."""
    known = set(order)
    marks = [(module, time_s) for module, time_s in trace.calls if module in known]
    ends = [time_s for _, time_s in marks[1:]] + [trace.forward_end_s]
    times = dict.fromkeys(order, 0.0)
    for (module, start_s), end_s in zip(marks, ends, strict=True):
        times[module] += end_s - start_s
    times[order[0]] += marks[0][1]  # what runs before the first layer delays it
    return [times[module] for module in order]


def _backward(
    trace: _Trace, order: Sequence[nn.Module], tensors: dict[nn.Module, list[Tensor]]
) -> list[float]:
    """Return each layer's time from the gradients of the layer behind it to its own."""
    times, reached_s = [], 0.0
    for module in reversed(order):
        ready_s = max([trace.ready.get(p, 0.0) for p in tensors[module]], default=0.0)
        times.append(max(0.0, ready_s - reached_s))
        reached_s = max(reached_s, ready_s)
    times[-1] += max(0.0, trace.backward_end_s - reached_s)
    return times[::-1]


def _describe(name: str, p: nn.Parameter) -> Parameter:
    return parameter(name, tuple(p.shape), str(p.dtype).removeprefix("torch."))
