"""Hooks by which the cross-iteration engine sees a model and its optimisers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.optim import Optimizer

from gradwire.engine.overlap import Overlap
from gradwire.engine.overlap_layers import Layer, LayerTable
from gradwire.errors import SpecError


class Hooks:
    """Tells the engine of gradients, steps, and modules about to run.

    Copies of a model get hooks that do nothing: their parameters are others.
    """

    def __init__(self, engine: Overlap, model: nn.Module, table: LayerTable) -> None:
        self._engine = engine
        self._model = model
        self._layers = table.layers
        self._needed_by = {name: table.needed_by.get(name, []) for name, _ in model.named_modules()}
        self._called: set[str] = set()
        self._is_forward = False
        self._accumulators: list[Node] = []

    def install(self, optimizers: Sequence[Optimizer]) -> None:
        """Register all hooks."""
        for name, module in self._model.named_modules():
            # Before others: those may read parameters, as weight_norm's does.
            module.register_forward_pre_hook(_Hook(self, name), prepend=True)
            module.register_state_dict_pre_hook(_Hook(self, None))
            module.register_load_state_dict_pre_hook(_Hook(self, None))
        self._model.register_forward_hook(_EndHook(self))
        for layer in self._layers:
            for place, p in enumerate(layer.parameters):
                node = torch.autograd.graph.get_gradient_edge(p).node
                node.register_prehook(_incoming_hook(self._engine, layer, place))
                self._accumulators.append(node)  # parameters do not keep them
                hook = _gradient_hook(self._engine, layer, place)
                p.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        for number, optimizer in enumerate(optimizers):
            optimizer.step = MethodType(self._step_of(number), optimizer)  # type: ignore[method-assign]
            optimizer.register_state_dict_pre_hook(_Hook(self, None))
            optimizer.register_load_state_dict_pre_hook(_Hook(self, None))

    def _step_of(self, number: int) -> Callable[..., None]:
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def step(optimizer: Optimizer, closure: object = None) -> None:
            """Mark the end of a step; the updates follow layer by layer."""
            if closure is not None:
                raise SpecError("closure", closure, "None: gradients would be averaged once only")
            self._adopt_orphans()
            self._engine.mark(number)
            self._is_forward = False
            optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001 - schedulers look at it

        step._gradwire = True  # noqa: SLF001 - `overlap` looks at it
        marking: Callable[..., None] = step
        return marking

    def before_forward(self, name: str) -> None:
        """Wait for what a module needs."""
        if not self._is_forward:
            self._is_forward = True
            self._called.clear()
        self._called.add(name)
        self._engine.need(self._needed_by[name], is_training=torch.is_grad_enabled())

    def forward_ended(self) -> None:
        """Note that the model's forward is over."""
        self._engine.forward_ended()

    def synchronize(self) -> None:
        """Bring all parameters up to date."""
        self._engine.synchronize()

    def _adopt_orphans(self) -> None:
        """Let parameters be waited for where they were used: at the nearest module that ran.

        Attention, for one, uses the weights of its output projection without
        calling that module.
        """
        for layer in self._layers:
            if layer.turn is None or not layer.turn.seen or self._engine.met(layer):
                continue
            name = layer.names[0].rpartition(".")[0]
            while name and name not in self._called:
                name = name.rpartition(".")[0]
            if layer not in self._needed_by[name]:
                self._needed_by[name].append(layer)


class _Hook:
    """A hook of one module, or of a checkpoint where `name` is None."""

    def __init__(self, hooks: Hooks, name: str | None) -> None:
        self._hooks = hooks
        self._name = name

    # Not compiled: what runs here is not the model's.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *_args: object) -> None:
        """Wait for parameters that are about to be used or read."""
        if self._name is None:
            self._hooks.synchronize()
        else:
            self._hooks.before_forward(self._name)

    def __reduce__(self) -> tuple[type[_NoHook], tuple[()]]:
        return _NoHook, ()


class _EndHook:
    """The hook at the end of the model's forward."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *_args: object) -> None:
        """Note the time."""
        self._hooks.forward_ended()

    def __reduce__(self) -> tuple[type[_NoHook], tuple[()]]:
        return _NoHook, ()


class _NoHook:
    """What a copy of a model has in place of a hook."""

    def __call__(self, *_args: object) -> None:
        """Do nothing."""


def _incoming_hook(
    engine: Overlap, layer: Layer, place: int
) -> Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor] | None]:
    def incoming(gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor] | None:
        taken = engine.incoming(layer, place, gradients[0])
        return None if taken is None else (taken,)

    return incoming


def _gradient_hook(engine: Overlap, layer: Layer, place: int) -> Callable[[torch.Tensor], None]:
    def accumulated(_: torch.Tensor) -> None:
        engine.gradient(layer, place)

    return accumulated
