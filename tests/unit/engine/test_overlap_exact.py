"""With a dense plan, weights are those of plain synchronous training, bit for bit."""

import pytest
import torch
from torch import nn

from overlapped import draw, plain, run, same, train

SCHEDULE = 100


class Residual(nn.Module):
    """Normalised blocks with skips, a layer used twice, and a parameter of the root's own."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(24))
        self.first = nn.Linear(12, 24)
        self.twice = nn.Linear(24, 24)
        self.norm = nn.LayerNorm(24)
        self.last = nn.Linear(24, 1)

    def forward(self, x):
        x = self.first(x) * self.gain
        x = x + torch.tanh(self.twice(self.norm(x)))
        x = x + torch.tanh(self.twice(x))
        return self.last(x)


class Language(nn.Module):
    """Tied embeddings around attention, whose output projection is never called."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens)))


class Convolutions(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3)),
            nn.Flatten(),
            nn.Linear(64, 1),
        )


def _regression(model, rank, i):
    return model(draw(8, 12, seed=1000 * i + rank)).square().mean()


def _language(model, rank, i):
    generator = torch.Generator().manual_seed(1000 * i + rank)
    tokens = torch.randint(30, (4, 7), generator=generator)
    logits = model(tokens[:, :-1]).reshape(-1, 30)
    return nn.functional.cross_entropy(logits, tokens[:, 1:].reshape(-1))


def _images(model, rank, i):
    return model(draw(4, 1, 8, 8, seed=1000 * i + rank)).square().mean()


MODELS = {
    "residual": (Residual, _regression),
    "language": (Language, _language),
    "convolutions": (Convolutions, _images),
}


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)


def _adamw(parameters):
    return torch.optim.AdamW(list(parameters), lr=1e-3)


def _cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SCHEDULE)


def _builder(model, optimizer):
    def build():
        torch.manual_seed(3)
        net = model()
        return net, optimizer(net.parameters())

    return build


@pytest.mark.parametrize(
    ("name", "optimizer", "world_size", "steps"),
    [
        ("residual", _sgd, 2, 100),
        ("residual", _adamw, 3, 40),
        ("language", _adamw, 2, 40),
        ("language", _sgd, 3, 20),
        ("convolutions", _adamw, 2, 80),
        ("convolutions", _sgd, 3, 20),
    ],
)
def test_weights_are_those_of_plain_training(name, optimizer, world_size, steps):
    model, loss = MODELS[name]
    build = _builder(model, optimizer)
    expected = plain(world_size, build, range(steps), loss, _cosine)
    found = run(world_size, build, lambda r: train(r, range(steps), loss, _cosine(r.optimizer)))
    assert all(same(expected, weights) for weights in found)
