"""Joins what the ranks of a cell tell into its result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gradwire.bench.events import AloneDone, Profiled, Refused, RoundDone, RoundStarted
from gradwire.bench.explain import explained
from gradwire.bench.predict import predict
from gradwire.bench.settings import CellJob
from gradwire.demo.events import (
    Event,
    Finished,
    MethodDone,
    MethodStarted,
    PlanChosen,
    Recorded,
    Validated,
)
from gradwire.demo.settings import Method
from gradwire.hardware import Hardware
from gradwire.plan import load_plan
from gradwire.report.model import Validation
from gradwire.report.results import Cell, ModeResult, Round, StepTimes
from gradwire.workload import Workload


@dataclass(slots=True)
class CellCollector:
    """Takes events of all ranks, in any order between ranks.

    Attributes:
        current: The mode under way: the one to blame if the workers die.
    """

    job: CellJob
    current: str | None = None
    num_parameters: int = 0
    torch: str = ""
    latency_by: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    profile: Profiled | None = None
    _rounds: dict[tuple[str, int], dict[int, RoundDone]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _alone: dict[tuple[str, int], dict[int, AloneDone]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _foreign: dict[tuple[str, int], float] = field(default_factory=dict)
    _chosen: dict[str, PlanChosen] = field(default_factory=dict)
    _scores: dict[tuple[str, int], list[Validated]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _digests: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))

    _recorded: dict[str, Recorded] = field(default_factory=dict)

    def add(self, rank: int, event: Event) -> None:  # noqa: C901 - one case an event
        """Take one event."""
        match event:
            case MethodStarted():
                self.current = event.method
                self.num_parameters = event.num_parameters or self.num_parameters
            case RoundStarted():
                self.current = event.method
            case RoundDone():
                self._rounds[event.method, event.number][rank] = event
            case AloneDone():
                self._alone[event.method, event.number][rank] = event
            case Profiled() if rank == 0:
                self.profile = event
            case Refused():
                self.reasons[event.method] = event.reason
            case Validated():
                self._scores[event.method, event.step].append(event)
            case PlanChosen() if rank == 0:
                self._chosen[event.method] = event
            case MethodDone():
                self._digests[event.method][rank] = event.digest
            case Recorded():
                self._recorded[event.method] = event
            case Finished():
                self.torch = event.torch

    def add_foreign(self, done: RoundDone, cores: float) -> None:
        """Take how busy other programs were in a round."""
        self._foreign[done.method, done.number] = cores

    def result(self, job: CellJob, broken: Mapping[str, str]) -> Cell:
        """Return the cell.

        Args:
            job: With all modes that were asked for.
            broken: Reasons of those that ended their launch.
        """
        reasons = {**self.reasons, **broken}
        cell = Cell(
            model=job.model,
            ranks=job.ranks,
            rate_bytes_per_s=job.rate_bytes_per_s,
            latency_s=job.latency_s,
            network=job.network,
            modes=tuple(self._mode(m, reasons.get(m.name)) for m in job.modes),
            num_parameters=self.num_parameters,
            settings=job.settings(),
            latency_by=self.latency_by,
        )
        if self.profile is None:
            return cell
        workload = Workload.from_json(self.profile.workload)
        hardware = Hardware.from_json(self.profile.hardware)
        cell = replace(cell, modes=tuple(explained(m, workload, job.ranks) for m in cell.modes))
        return predict(cell, job.modes, workload, hardware)

    def _mode(self, mode: Method, reason: str | None) -> ModeResult:
        plan = load_plan(mode.plan).to_json() if mode.family == "gradwire" else None
        if reason is not None:
            return ModeResult(mode.name, mode.label, mode.family, plan=plan, reason=reason)
        chosen = self._chosen.get(mode.name)
        validations, elapsed_s = self._validations(mode.name)
        recorded = self._recorded.get(mode.name)
        by_rank = {} if mode.hook == "nosync" else self._digests[mode.name]
        return ModeResult(
            mode.name,
            mode.label,
            mode.family,
            tuple(self._round(mode.name, number) for number in range(self.job.rounds)),
            plan if chosen is None else chosen.plan,
            predicted_s=None if chosen is None else chosen.predicted_s,
            why=() if chosen is None else (chosen.why,),
            validations=validations,
            elapsed_s=elapsed_s,
            digests=tuple(by_rank[rank] for rank in sorted(by_rank)),
            bits=(recorded.bits or None) if recorded else None,
            timeline=recorded.timeline if recorded else None,
            alone=tuple(
                step
                for number in range(self.job.rounds)
                if (found := self._alone.get((mode.name, number)))
                for step in _slowest(r.steps for r in found.values())
            ),
        )

    def _round(self, mode: str, number: int) -> Round:
        ranks = self._rounds[mode, number].values()
        slowest = _slowest(r.steps for r in ranks)
        sent_bytes = max(r.sent_bytes for r in ranks)
        return Round(slowest, sent_bytes, self._foreign.get((mode, number), 0.0))

    def _validations(self, mode: str) -> tuple[tuple[Validation, ...], tuple[float, ...]]:
        found = []
        for (name, step), scores in sorted(self._scores.items()):
            if name == mode:
                targets = sum(s.num_targets for s in scores)
                loss = sum(s.loss_sum for s in scores) / targets
                found.append(Validation(step, loss, sum(s.num_correct for s in scores) / targets))
        elapsed_s = (self._rounds[mode, n][0].elapsed_s for n in range(len(found)))
        return tuple(found), tuple(elapsed_s)


def _slowest(by_rank: Iterable[tuple[StepTimes, ...]]) -> tuple[StepTimes, ...]:
    """Return the steps of the rank that took longest for all of them.

    Not the slowest rank of each step: a step that begins late on one rank and
    ends late on another would be longer than training takes for it.
    """
    return max(by_rank, key=lambda steps: sum(s.total_s for s in steps))
