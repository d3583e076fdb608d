"""The models of the bench beside the demo's: each a function of the seed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name all of PyTorch uses

from gradwire.bench.settings import Sleep, model_of, parse_sleep
from gradwire.demo.tasks import Digits, Task, Text


class Perceptron(Digits):
    """Four large layers on digits: much to send, little to compute."""

    width = 1536

    def model(self, seed: int) -> nn.Module:
        """See `Task.model`."""
        torch.manual_seed(seed)
        width = self.width
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )


class Vgg(Digits):
    """As VGG: convolutions compute, and the layers behind hold the parameters."""

    def model(self, seed: int) -> nn.Module:
        """See `Task.model`."""
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(1024, 4096),
            nn.ReLU(),
            nn.Linear(4096, 1400),
            nn.ReLU(),
            nn.Linear(1400, 10),
        )


class Block(nn.Module):
    """Two convolutions beside a shortcut. Source: He et al., CVPR 2016, figure 2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, inputs, height, width]` to `outputs` channels."""
        return F.relu(self.residual(x) + self.shortcut(x))


class ResNet18(Digits):
    """ResNet-18 with a small stem, on digits of 32 x 32 pixels."""

    def __init__(self, batch_size: int) -> None:
        super().__init__(batch_size)
        self.images, self.held_images = (
            F.interpolate(x, scale_factor=4).expand(-1, 3, -1, -1)
            for x in (self.images, self.held_images)
        )

    def model(self, seed: int) -> nn.Module:
        """See `Task.model`."""
        torch.manual_seed(seed)
        layers = [nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        inputs = 64
        for outputs in (64, 128, 256, 512):
            for stride in (1 if outputs == inputs else 2, 1):
                layers.append(Block(inputs, outputs, stride))
                inputs = outputs
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class TripleModel(nn.Module):
    """Predicts the next byte from the last three: one large embedding, small rest.

    Example:
        >>> TripleModel(rows=64, width=8)(torch.zeros(3, 5, dtype=torch.long)).shape
        torch.Size([3, 5, 256])
    """

    def __init__(self, rows: int = 65536, width: int = 64) -> None:
        super().__init__()
        self.rows = rows
        self.triples = nn.Embedding(rows, width)
        self.up = nn.Linear(width, 4 * width)
        self.head = nn.Linear(4 * width, 256)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map bytes `[batch, context]` (int64) to logits `[batch, context, 256]`."""
        before = F.pad(inputs, (2, 0))
        triple = (before[:, :-2] << 16) + (before[:, 1:-1] << 8) + inputs
        # Knuth's multiplicative hash spreads triples over the rows.
        x = self.triples(triple * 2654435761 % self.rows)
        out: Tensor = self.head(F.relu(self.up(x)))
        return out


class Embed(Text):
    """The demo's text, learned by an embedding of byte triples."""

    def model(self, seed: int) -> nn.Module:
        """See `Task.model`."""
        torch.manual_seed(seed)
        return TripleModel()


class _SleepFunction(torch.autograd.Function):
    """Sleeps forward and backward; the weight's gradient was there before."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, _weight: Tensor, layer: SleepLayer) -> Tensor:
        time.sleep(layer.forward_s)
        ctx.layer = layer
        return x.clone()

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        time.sleep(ctx.layer.backward_s)
        return grad, ctx.layer.gradient, None


class _Context(Protocol):
    layer: SleepLayer


class SleepLayer(nn.Module):
    """One layer of a simulated accelerator: computation takes time, but no core.

    Args:
        rows: Its weight has 4 times as many columns.
        forward_s: How long forward sleeps.
        backward_s: How long backward sleeps.
        gradient: The weight's gradient in each step, `[rows, 4 * rows]`.
    """

    def __init__(self, rows: int, forward_s: float, backward_s: float, gradient: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, 4 * rows))
        self.forward_s = forward_s
        self.backward_s = backward_s
        self.gradient = gradient

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`, later."""
        out: Tensor = _SleepFunction.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
        return out


class RowStep(torch.optim.Optimizer):
    """Steps one row of each matrix: replicas can be compared, and no core is used."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module.parameters(), {})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Subtract the gradient of each matrix's next row."""
        for group in self.param_groups:
            for weight in group["params"]:
                steps = self.state[weight].setdefault("steps", 0)
                row = steps % len(weight)
                weight[row] -= weight.grad[row]
                self.state[weight]["steps"] = steps + 1


class Sleeper:
    """A simulated accelerator as a task; it learns nothing.

    Args:
        work: Its size and times.
        rank: This process's number: gradients differ by rank.
    """

    def __init__(self, work: Sleep, rank: int) -> None:
        self.work = work
        rows = max(1, int((work.num_parameters / work.layers / 4) ** 0.5))
        generator = torch.Generator().manual_seed(rank)
        self.gradients = [
            torch.randn(rows, 4 * rows, generator=generator) for _ in range(work.layers)
        ]

    def model(self, seed: int) -> nn.Module:
        """See `Task.model`."""
        times = (self.work.forward_s / self.work.layers, self.work.backward_s / self.work.layers)
        return nn.Sequential(*(SleepLayer(len(g), *times, g) for g in self.gradients))

    def optimiser(self, module: nn.Module) -> torch.optim.Optimizer:
        """See `Task.optimiser`."""
        return RowStep(module)

    def batch(self, rank: int, world_size: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """See `Task.batch`: two logits, which pass through all layers."""
        return torch.zeros(1, 2, requires_grad=True), torch.zeros(1, dtype=torch.long)

    def held_out(self, rank: int, world_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Task.held_out`: none."""
        return iter(())


_TASKS: dict[str, type[Digits | Text]] = {
    "mlp": Perceptron,
    "vgg": Vgg,
    "embed": Embed,
    "resnet": ResNet18,
    "text": Text,
    "digits": Digits,
}


def build(name: str, rank: int) -> Task:
    """Build the task of a model.

    Args:
        name: One of `settings.MODELS`, `accel` or `sleep:...`.
        rank: This process's number.

    Raises:
        UnknownIdError: No such model.

    Example:
        >>> sum(p.numel() for p in build("sleep:0.01:0:0:2", 0).model(0).parameters())
        9800
    """
    model = model_of(name)
    if sleep := parse_sleep(name):
        return Sleeper(sleep, rank)
    return _TASKS[name](model.batch_size)
