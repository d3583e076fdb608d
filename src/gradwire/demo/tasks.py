"""The demo's two real tasks, on data every installation has. No downloads."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name all of PyTorch uses

from gradwire.errors import UnknownIdError


class Score(NamedTuple):
    """Sums over one rank's share of the held-out data."""

    loss_sum: float
    num_correct: int
    num_targets: int


class Task(Protocol):
    """A model, its data, and how to judge it; all of it a function of the seed."""

    def model(self, seed: int) -> nn.Module:
        """Build the model, with equal parameters for equal seeds."""

    def optimiser(self, module: nn.Module) -> torch.optim.Optimizer:
        """Build the optimiser."""

    def batch(self, rank: int, world_size: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of one rank's share of a step."""

    def held_out(self, rank: int, world_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's share of the held-out data."""


def loss_of(module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy, over all targets, in nats."""
    return F.cross_entropy(module(inputs).flatten(0, -2), targets.flatten())


@torch.no_grad()
def evaluate(task: Task, module: nn.Module, rank: int, world_size: int) -> Score:
    """Score one rank's share of the held-out data.

    Args:
        task: Where the data comes from.
        module: The model itself, not its DDP wrapper: ranks do not wait here.
        rank: This process's number.
        world_size: Number of processes.
    """
    module.eval()
    loss_sum, num_correct, num_targets = 0.0, 0, 0
    for inputs, targets in task.held_out(rank, world_size):
        logits = module(inputs).flatten(0, -2)
        loss_sum += F.cross_entropy(logits, targets.flatten(), reduction="sum").item()
        num_correct += int((logits.argmax(-1) == targets.flatten()).sum())
        num_targets += targets.numel()
    module.train()
    return Score(loss_sum, num_correct, num_targets)


def _generator(seed: int, step: int, rank: int, world_size: int) -> torch.Generator:
    # PyTorch's generator looks at the seed's lowest 32 bits only.
    number = 1_000_003 * seed + step * world_size + rank
    return torch.Generator().manual_seed(number % (1 << 32))


class Block(nn.Module):
    """One pre-norm transformer layer: causal attention, then a perceptron."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.perceptron_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[batch, context, width]` to the same shape."""
        heads = self.query_key_value(self.attention_norm(x))
        heads = heads.unflatten(-1, (3, self.num_heads, -1))  # [batch, context, 3, heads, size]
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.perceptron_norm(x))))
        return out


class ByteModel(nn.Module):
    """A small GPT that predicts the next byte.

    Example:
        >>> model = ByteModel(width=32, num_layers=1, num_heads=2, context=8)
        >>> model(torch.zeros(3, 8, dtype=torch.long)).shape
        torch.Size([3, 8, 256])
    """

    def __init__(
        self, *, width: int = 384, num_layers: int = 6, num_heads: int = 6, context: int = 64
    ) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.apply(self._start)
        # Bytes that differ clearly are told apart within tens of steps.
        nn.init.normal_(self.byte.weight)

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map bytes `[batch, context]` (int64) to logits `[batch, context, 256]`."""
        x = self.byte(inputs) + self.position.weight[: inputs.shape[1]]
        out: Tensor = self.head(self.norm(self.blocks(x)))
        return out


_LARGEST_FILE_BYTES = 200_000
_TEXT_BYTES = 6_000_000
_HELD_OUT_EVERY = 20
_SKIPPED = {"site-packages", "dist-packages", "test"}


def standard_library_text() -> tuple[bytes, bytes]:
    """Read the source text of Python's standard library.

    Modules and those of its packages, in the order of their paths; every 20th
    is held out. Tests, and files over 200 kB or unreadable, are left out.

    Returns:
        Text to train on (6 MB at most), and text held out.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(p for form in ("*.py", "*/*.py") for p in root.glob(form))
    texts: tuple[list[bytes], list[bytes]] = ([], [])
    size = 0
    for number, path in enumerate(paths):
        if path.parent.name in _SKIPPED or size > _TEXT_BYTES:
            continue
        try:
            text = path.read_bytes()
        except OSError:  # a broken link or a file of another user: not worth stopping for
            continue
        if len(text) <= _LARGEST_FILE_BYTES:
            texts[number % _HELD_OUT_EVERY == 0].append(text)
            size += len(text)
    return b"".join(texts[0]), b"".join(texts[1])


class Text:
    """Next-byte prediction on the source text of Python's standard library."""

    context = 64
    held_out_batches = 8
    held_out_batch_size = 16

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        train, held_out = standard_library_text()
        self.train = torch.frombuffer(bytearray(train), dtype=torch.uint8)
        self.held = torch.frombuffer(bytearray(held_out), dtype=torch.uint8)

    def model(self, seed: int) -> nn.Module:
        """See `Task.model`."""
        torch.manual_seed(seed)
        return ByteModel(context=self.context)

    def optimiser(self, module: nn.Module) -> torch.optim.Optimizer:
        """See `Task.optimiser`."""
        return torch.optim.AdamW(module.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)

    def batch(self, rank: int, world_size: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """See `Task.batch`."""
        generator = _generator(seed, step, rank, world_size)
        last = self.train.numel() - self.context - 1
        starts = torch.randint(0, last, (self.batch_size,), generator=generator)
        return self._windows(self.train, starts)

    def held_out(self, rank: int, world_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Task.held_out`: windows evenly spaced over the held-out text."""
        count = self.held_out_batches * self.held_out_batch_size
        last = self.held.numel() - self.context - 1
        starts = torch.linspace(0, last, count).long().view(self.held_out_batches, -1)
        for part in starts[rank::world_size]:
            yield self._windows(self.held, part)

    def _windows(self, text: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        places = starts[:, None] + torch.arange(self.context + 1)
        window = text[places].long()  # [batch, context + 1]
        return window[:, :-1], window[:, 1:]


class Digits:
    """Scikit-learn's handwritten digits, 8 x 8 pixels, and a convolutional net."""

    num_held_out = 360

    def __init__(self, batch_size: int) -> None:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra, loaded when used

        self.batch_size = batch_size
        data = load_digits()
        order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
        images = torch.from_numpy(data.images).float().unsqueeze(1)[order] / 16
        targets = torch.from_numpy(data.target).long()[order]
        self.images, self.targets = images[self.num_held_out :], targets[self.num_held_out :]
        self.held_images, self.held_targets = (t[: self.num_held_out] for t in (images, targets))

    def model(self, seed: int) -> nn.Module:
        """See `Task.model`."""
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )

    def optimiser(self, module: nn.Module) -> torch.optim.Optimizer:
        """See `Task.optimiser`."""
        return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

    def batch(self, rank: int, world_size: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """See `Task.batch`."""
        generator = _generator(seed, step, rank, world_size)
        chosen = torch.randint(0, len(self.targets), (self.batch_size,), generator=generator)
        return self.images[chosen], self.targets[chosen]

    def held_out(self, rank: int, world_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Task.held_out`."""
        yield self.held_images[rank::world_size], self.held_targets[rank::world_size]


def build(name: str, batch_size: int) -> Task:
    """Build a task.

    Args:
        name: `"text"` or `"digits"`.
        batch_size: Examples of each rank and step.

    Raises:
        UnknownIdError: No such task.
    """
    tasks: dict[str, type[Text | Digits]] = {"text": Text, "digits": Digits}
    if name not in tasks:
        raise UnknownIdError("task", name, sorted(tasks))
    return tasks[name](batch_size)
