"""Layers: what becomes due at once, each with memory for its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gradwire.engine.layout import storage_shape
from gradwire.errors import SpecError
from gradwire.key import name_hash
from gradwire.plan import Parameter
from gradwire.spec import Entry

if TYPE_CHECKING:
    from gradwire.engine.overlap_turn import Turn

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(slots=True, eq=False)
class Layer:
    """The parameters of one module that one optimiser updates.

    Attributes:
        index: Its number, equal on all ranks.
        name: Name of the module.
        optimizer: Number of the optimiser.
        names: Names of its parameters.
        parameters: The parameters.
        buffer: This rank's gradients, 1-D, float32 (float64 for float64).
        views: The same, each in the shape of its parameter.
        mean: The averaged gradients, like `buffer`.
        means: The same, each in the shape of its parameter.
        turns: How many gradients it has averaged so far.
        dropped: How many of them the user has thrown away after they had left.
        turn: Its gradient that is under way, if any.
    """

    index: int
    name: str
    optimizer: int
    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    buffer: Tensor
    views: tuple[Tensor, ...]
    mean: Tensor
    means: tuple[Tensor, ...]
    turns: int = 0
    dropped: int = 0
    turn: Turn | None = None

    @classmethod
    def of(
        cls, index: int, name: str, optimizer: int, parameters: Mapping[str, nn.Parameter]
    ) -> Layer:
        """Allocate gradient memory for parameters."""
        values = tuple(parameters.values())
        wide = values[0].dtype == torch.float64
        total = sum(p.numel() for p in values)
        own, mean = (
            torch.zeros(total, dtype=torch.float64 if wide else torch.float32) for _ in range(2)
        )
        names = tuple(parameters)
        views, means = _views(own, values), _views(mean, values)
        return cls(index, name, optimizer, names, values, own, views, mean, means)

    def holds(self, gradient: Tensor, place: int) -> bool:
        """Whether a gradient lies in this layer's memory already."""
        view = self.views[place]
        return gradient.data_ptr() == view.data_ptr() and gradient.dtype == view.dtype

    def accepts(self, gradient: Tensor, place: int) -> bool:
        """Whether a gradient on its way to its parameter may go to this layer's memory."""
        turn, view = self.turn, self.views[place]
        is_free = turn is None or (not turn.is_marked and place not in turn.seen)
        is_alike = gradient.dtype == view.dtype and gradient.shape == view.shape
        return is_free and is_alike and self.parameters[place].grad is None


def _views(buffer: Tensor, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, ...]:
    offsets = accumulate((p.numel() for p in parameters), initial=0)
    return tuple(_view(buffer, start, p) for start, p in zip(offsets, parameters, strict=False))


def _view(buffer: Tensor, offset: int, parameter: nn.Parameter) -> Tensor:
    """Return the place of a gradient, its values in the parameter's storage order."""
    own = buffer.narrow(0, offset, parameter.numel())
    shape = storage_shape(parameter)
    if shape == tuple(parameter.shape):
        return own.view(parameter.shape)
    return own.as_strided(parameter.shape, parameter.stride())


@dataclass(slots=True)
class LayerTable:
    """All layers of a model, and which of them each module needs.

    Attributes:
        layers: In the order of `named_modules`.
        needed_by: Layers by module name: those with a parameter of the module's own,
            tied ones too.
    """

    layers: list[Layer] = field(default_factory=list)
    needed_by: dict[str, list[Layer]] = field(default_factory=dict)

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters as a plan wants them, in order."""
        return [
            Parameter(
                name, Entry(name_hash(name), storage_shape(p)), str(p.dtype).removeprefix("torch.")
            )
            for layer in self.layers
            for name, p in zip(layer.names, layer.parameters, strict=True)
        ]


def find_layers(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> LayerTable:
    """Find the layers of a model whose parameters the optimisers update.

    A module whose parameters go to several optimisers, or to float64 and
    others, has one layer for each.

    Raises:
        SpecError: An optimiser has parameters that the model has not, or that
            cannot be averaged; or two have the same.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> table = find_layers(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
        >>> [(layer.name, layer.names) for layer in table.layers]
        [('0', ('0.weight', '0.bias')), ('2', ('2.weight', '2.bias'))]
    """
    owner = _owners(model, optimizers)
    table = LayerTable()
    layer_of: dict[int, Layer] = {}
    for module_name, module in model.named_modules():
        needed: dict[int, Layer] = {}
        groups: dict[tuple[int, bool], dict[str, nn.Parameter]] = {}
        for name, p in _own(module_name, module):
            if id(p) in owner and id(p) not in layer_of:
                group = (owner[id(p)], p.dtype == torch.float64)
                groups.setdefault(group, {})[name] = p
        for number, ((optimizer, _), parameters) in enumerate(groups.items()):
            suffix = f"#{number}" if number else ""
            name = (module_name or type(module).__name__) + suffix
            layer = Layer.of(len(table.layers), name, optimizer, parameters)
            table.layers.append(layer)
            layer_of.update((id(p), layer) for p in parameters.values())
        for _, p in _own(module_name, module):
            if id(p) in layer_of:
                needed[layer_of[id(p)].index] = layer_of[id(p)]
        if needed:
            table.needed_by[module_name] = list(needed.values())
    return table


def _own(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    yield from module.named_parameters(prefix, recurse=False, remove_duplicate=False)


def _owners(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[int, int]:
    """Return the number of the optimiser of each trained parameter, by id."""
    names = {id(p): name for name, p in model.named_parameters()}
    owner: dict[int, int] = {}
    for number, optimizer in enumerate(optimizers):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            name = names.get(id(p))
            if name is None:
                what = f"a tensor of shape {tuple(p.shape)}"
                raise SpecError(
                    "parameter of the optimizer", what, "one of the model's: pass their common root"
                )
            if id(p) in owner:
                raise SpecError(f"optimizers of {name}", 2, "one: its updates would be mixed")
            if p.requires_grad:
                _check(name, p)
                owner[id(p)] = number
    if not owner:
        raise SpecError("trained parameters", 0, "at least one that the optimizer has")
    return owner


def _check(name: str, parameter: nn.Parameter) -> None:
    if parameter.device.type != "cpu":
        raise SpecError(f"device of {name}", str(parameter.device), "the CPU; others come later")
    if parameter.dtype not in _DTYPES:
        kinds = "float32, bfloat16, float16 or float64"
        raise SpecError(f"dtype of {name}", str(parameter.dtype), kinds)
