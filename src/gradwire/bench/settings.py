"""What a bench measures: models, cells, the job of each. No torch here."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from gradwire.demo.settings import MOST_RANKS, Method
from gradwire.errors import SpecError, UnknownIdError
from gradwire.plan import DENSE, load_plan
from gradwire.report.results import Network
from gradwire.spec import AllReduce, Entry, ReducerSpec, sent_bytes

ACCELERATOR = "sleep:10.9:100:200:12"
"""What `accel` stands for: the size of ResNet-18, on a device that needs no core."""

LEAST_STEPS = 2
WARMUP_STEPS = 3
"""DDP rebuilds its buckets after the first step, and PowerSGD's first two are dense."""

_SLEEP = re.compile(r"sleep:([0-9.]+):([0-9.]+):([0-9.]+):([0-9]+)")


class Model(NamedTuple):
    """What predicts how long a model's cells last.

    Attributes:
        compute_s: Forward, backward and optimiser of one step on one core.
        sleeps: Whether computation needs no core.
    """

    description: str
    num_parameters: int
    batch_size: int
    compute_s: float
    sleeps: bool = False


MODELS = {
    "mlp": Model("perceptron on digits", 4_837_386, 64, 0.06),
    "vgg": Model("few convolutions, then large layers, on digits", 10_026_000, 32, 0.12),
    "embed": Model("large embedding of byte triples in front, small rest", 4_276_000, 8, 0.04),
    "resnet": Model("ResNet-18 on digits of 32 x 32 pixels", 11_173_962, 16, 0.45),
    "text": Model("the demo's GPT on Python's standard library", 10_868_736, 4, 0.3),
    "digits": Model("the demo's convolutional net on digits", 548_000, 32, 0.02),
}
"""Models besides `accel` and `sleep:MPARAM:FWD_MS:BWD_MS:LAYERS`."""


class Sleep(NamedTuple):
    """A simulated accelerator's work.

    Attributes:
        num_parameters: About so many, in layers of equal size.
    """

    num_parameters: int
    forward_s: float
    backward_s: float
    layers: int


def parse_sleep(name: str) -> Sleep | None:
    """Read `accel` or `sleep:MPARAM:FWD_MS:BWD_MS:LAYERS`; None for other models.

    Example:
        >>> parse_sleep("accel")
        Sleep(num_parameters=10900000, forward_s=0.1, backward_s=0.2, layers=12)
    """
    match = _SLEEP.fullmatch(ACCELERATOR if name == "accel" else name)
    if match is None:
        return None
    try:
        millions, forward_ms, backward_ms = (float(match[i]) for i in (1, 2, 3))
    except ValueError:
        return None
    numel, layers = round(millions * 1e6), int(match[4])
    if layers < 1 or numel < 4 * layers:
        raise SpecError("model", name, "a model of at least one layer, with 4 parameters each")
    return Sleep(numel, forward_ms / 1e3, backward_ms / 1e3, layers)


def model_of(name: str) -> Model:
    """Return what is known of a model by name.

    Raises:
        UnknownIdError: No such model.

    Example:
        >>> model_of("sleep:1:10:20:4").compute_s
        0.03
    """
    if sleep := parse_sleep(name):
        compute_s = sleep.forward_s + sleep.backward_s
        return Model("simulated accelerator", sleep.num_parameters, 1, compute_s, sleeps=True)
    if name not in MODELS:
        known = [*MODELS, "accel", "sleep:MPARAM:FWD_MS:BWD_MS:LAYERS"]
        raise UnknownIdError("model", name, known)
    return MODELS[name]


@dataclass(frozen=True, slots=True)
class CellJob:
    """One cell: everything a worker has to know, besides its rank.

    Attributes:
        rate_bytes_per_s: Of each rank's link, each way; None for no limit.
        rounds: How often all modes take turns.
        steps: Timed steps of a mode in a round, at most.
        round_s: A mode's share of a round ends after about so long, but not
            before `LEAST_STEPS`.

    Raises:
        SpecError: A number is out of range.

    Example:
        >>> job = CellJob("accel", 2, 1.25e7, 0.0, "shaped", (Method("none", "DDP", "ddp"),))
        >>> CellJob.from_json(job.to_json()) == job
        True
    """

    model: str
    ranks: int
    rate_bytes_per_s: float | None
    latency_s: float
    network: Network
    modes: tuple[Method, ...]
    seed: int = 0
    rounds: int = 3
    steps: int = 20
    round_s: float = 4.0

    def __post_init__(self) -> None:
        model_of(self.model)
        least = (("ranks", 2), ("rounds", 1), ("steps", LEAST_STEPS), ("seed", 0))
        for field, bound in least:
            value = getattr(self, field)
            if value < bound:
                raise SpecError(field, value, f"at least {bound}")
        if self.ranks > MOST_RANKS:
            raise SpecError("ranks", self.ranks, f"at most {MOST_RANKS}: each is a process here")

    def to_json(self) -> str:
        """Write the job in one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CellJob:
        """Read the job from `to_json`'s line."""
        data = json.loads(text)
        return cls(**{**data, "modes": tuple(Method(**m) for m in data["modes"])})

    def settings(self) -> dict[str, Any]:
        """Return what decides whether a stored cell is the one asked for."""
        data: dict[str, Any] = json.loads(self.to_json())
        return data

    def predicted_step_s(self, method: Method, cores: int) -> float:
        """Return about how long a step takes, with nothing hidden."""
        model = model_of(self.model)
        shared = 1.0 if model.sleeps else max(1.0, self.ranks / cores)
        wire_s = 0.0
        if method.name != "nosync":
            rate = math.inf if self.rate_bytes_per_s is None else self.rate_bytes_per_s
            wire_s = self._sent_bytes(method) / rate + 4 * self.latency_s
        return model.compute_s * shared + wire_s

    def _sent_bytes(self, method: Method) -> float:
        columns = 512
        entries = [Entry(0, (max(1, model_of(self.model).num_parameters // columns), columns))]
        dense = sent_bytes(AllReduce(), entries, self.ranks)
        if method.plan is not None and method.family == "gradwire":
            rules = load_plan(method.plan).rules
            reducer: ReducerSpec = rules[0].reducer if rules else DENSE
            return sent_bytes(reducer, entries, self.ranks)
        hook = method.hook or ""
        return dense * (0.5 if hook in ("fp16", "bf16") else 0.01 if "powersgd" in hook else 1.0)

    def slowest_step_s(self, cores: int) -> float:
        """Return about how long a step of the slowest mode takes."""
        return max(self.predicted_step_s(m, cores) for m in self.modes)

    def predicted_round_s(self, method: Method, cores: int) -> float:
        """Return about how long a mode's share of a round lasts."""
        step_s = self.predicted_step_s(method, cores)
        return max(LEAST_STEPS * step_s, min(self.steps * step_s, self.round_s)) + step_s


@dataclass(frozen=True, slots=True)
class Matrix:
    """All combinations to measure.

    Example:
        >>> matrix = Matrix(("mlp",), (2, 4), (None,), (0.0, 0.02))
        >>> len(matrix.jobs("shaped", ()))
        4
    """

    models: tuple[str, ...]
    ranks: tuple[int, ...]
    rates_bytes_per_s: tuple[float | None, ...]
    latencies_s: tuple[float, ...] = (0.0,)

    def jobs(
        self,
        network: Network,
        modes: Sequence[Method],
        **settings: Any,  # noqa: ANN401 - of CellJob
    ) -> tuple[CellJob, ...]:
        """Return the job of each cell.

        Args:
            network: `"lab"` or `"shaped"`; a cell without limits that is not in
                the lab has `"none"`.
            modes: What each cell compares.
            settings: Further fields of `CellJob`.
        """
        product = itertools.product(self.models, self.ranks, self.rates_bytes_per_s)
        jobs = []
        for model, ranks, rate in product:
            for latency_s in self.latencies_s:
                is_free = network == "shaped" and rate is None and not latency_s
                where: Network = "none" if is_free else network
                jobs.append(CellJob(model, ranks, rate, latency_s, where, tuple(modes), **settings))
        return tuple(jobs)
