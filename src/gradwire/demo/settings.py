"""What a demo run does: tasks, methods, the job of each worker. No torch here."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gradwire.errors import SpecError, UnknownIdError
from gradwire.plan import AUTO, DENSE, load_plan
from gradwire.report.model import BASELINE, Family
from gradwire.spec import AllReduce, Entry, ReducerSpec, sent_bytes

UNTIMED_STEPS = 2
"""Steps that medians leave out: DDP rebuilds its buckets after the first, and
PyTorch's PowerSGD sends the first two uncompressed."""

_SEEDS = 1 << 63  # what PyTorch's generators take

VALIDATIONS = 2
"""How often each method is validated, the last step included."""


@dataclass(frozen=True, slots=True)
class TaskDefaults:
    """A task's defaults, and what predicts its duration.

    Attributes:
        compute_s: Forward, backward and optimiser of one step on one core.
        validation_s: One validation, split between two ranks.
    """

    description: str
    num_parameters: int
    steps: int
    batch_size: int
    link: str
    latency: str
    compute_s: float
    validation_s: float


TASKS: dict[str, TaskDefaults] = {
    "text": TaskDefaults(
        "a GPT on the source text of Python's standard library",
        num_parameters=10_868_736,
        steps=20,
        batch_size=8,
        link="200Mbit/s",
        latency="1ms",
        compute_s=0.55,
        validation_s=1.5,
    ),
    "digits": TaskDefaults(
        "a convolutional net on handwritten digits",
        num_parameters=548_000,
        steps=100,
        batch_size=32,
        link="100Mbit/s",
        latency="1ms",
        compute_s=0.02,
        validation_s=0.02,
    ),
}


def task_defaults(task: str) -> TaskDefaults:
    """Return a task's defaults.

    Raises:
        UnknownIdError: No such task.

    Example:
        >>> task_defaults("digits").steps
        100
    """
    if task not in TASKS:
        raise UnknownIdError("task", task, sorted(TASKS))
    return TASKS[task]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to exchange gradients.

    Attributes:
        bucket_cap_mb: DDP's bucket size, None for its default. PyTorch's
            PowerSGD hook gets one bucket: with several it aborts or mixes data
            on Gloo.
        plan: For gradwire: what `attach` takes.
        hook: A hook of PyTorch's: `"fp16"`, `"bf16"`, `"powersgd1"`,
            `"powersgd2"` (the number is the rank) or `"powersgd_batched"`;
            `"overlap"` goes without DDP.
        has_views: Whether gradients are DDP's buckets themselves
            (`gradient_as_bucket_view`), and not copied out of them.
    """

    name: str
    label: str
    family: Family
    bucket_cap_mb: float | None = 5
    plan: str | None = None
    hook: str | None = None
    has_views: bool = False


DEFAULT_PLAN = AUTO
_BUILT_IN = (
    Method(BASELINE, "plain DDP", "ddp"),
    Method("fp16", "fp16 hook", "hook", hook="fp16"),
    Method("powersgd", "PowerSGD hook", "hook", 1000, hook="powersgd1"),
)
_AQGB = Method("aqgb", "gradwire AQGB", "gradwire", plan="aqgb", hook="overlap")
METHODS = (*(m.name for m in _BUILT_IN), "gradwire", _AQGB.name)


def choose_methods(names: Sequence[str], plans: Sequence[str]) -> tuple[Method, ...]:
    """Build the methods to run, plain DDP, the baseline of all others, first.

    Args:
        names: Some of `METHODS`.
        plans: Short names or plan files; each adds a method where `"gradwire"`
            is among the names.

    Raises:
        UnknownIdError: No such method or plan.

    Example:
        >>> [m.label for m in choose_methods(["gradwire"], ["int4", "int2"])]
        ['plain DDP', 'gradwire int4', 'gradwire int2']
    """
    for name in names:
        if name not in METHODS:
            raise UnknownIdError("method", name, METHODS)
    chosen = [m for m in _BUILT_IN if m.name in {BASELINE, *names}]
    if "gradwire" in names:
        for plan in dict.fromkeys(plans or [DEFAULT_PLAN]):
            load_plan(plan)
            label = f"gradwire {Path(plan).stem if plan.endswith('.json') else plan}"
            chosen.append(Method(f"gradwire:{plan}", label, "gradwire", plan=plan))
    if _AQGB.name in names:
        chosen.append(_AQGB)
    return tuple(chosen)


@dataclass(frozen=True, slots=True)
class Job:
    """Everything a worker has to know, besides its rank.

    Raises:
        SpecError: A number is out of range.

    Example:
        >>> job = Job("digits", 2, 3, 8, 0, 12.5e6, 0.001, choose_methods([], []))
        >>> Job.from_json(job.to_json()) == job
        True
    """

    task: str
    ranks: int
    steps: int
    batch_size: int
    seed: int
    link_bytes_per_s: float
    latency_s: float
    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        task_defaults(self.task)
        for field, least in (("ranks", 2), ("steps", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, field)
            if value < least:
                raise SpecError(field, value, f"at least {least}")
        if self.seed >= _SEEDS:
            raise SpecError("seed", self.seed, "less than 2 to the power of 63")

    def to_json(self) -> str:
        """Write the job in one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read the job from `to_json`'s line."""
        data = json.loads(text)
        return cls(**{**data, "methods": tuple(Method(**m) for m in data["methods"])})

    def validates_after(self, step: int) -> bool:
        """Whether held-out data is scored after this step (from 0)."""
        points = {round(self.steps * part / VALIDATIONS) for part in range(1, VALIDATIONS + 1)}
        return step + 1 in points

    def predicted_bytes(self, method: Method) -> int:
        """Return about what one rank sends in a step, from the task's size."""
        columns = 512
        entries = [Entry(0, (TASKS[self.task].num_parameters // columns, columns))]
        dense = sent_bytes(AllReduce(), entries, self.ranks)
        if method.plan is not None:
            rules = load_plan(method.plan).rules
            reducer: ReducerSpec = rules[0].reducer if rules else DENSE
            return sent_bytes(reducer, entries, self.ranks)
        return round(dense * {"fp16": 0.5, "powersgd": 0.01}.get(method.name, 1.0))

    def slowest_step_s(self, cores: int) -> float:
        """Return about how long a step of the slowest method takes."""
        return max(self.predicted_step_s(m, cores) for m in self.methods)

    def predicted_step_s(self, method: Method, cores: int) -> float:
        """Return about how long a step takes: compute, and what it does not hide.

        Backward, two thirds of compute, hides what is sent meanwhile.
        """
        compute_s = TASKS[self.task].compute_s * max(1.0, self.ranks / cores)
        wire_s = self.predicted_bytes(method) / self.link_bytes_per_s + 4 * self.latency_s
        overlap_s = 0.0 if math.isinf(self.link_bytes_per_s) else min(wire_s, compute_s * 2 / 3)
        return compute_s + wire_s - overlap_s
