"""The pilot observes, tries what is close, settles, and looks again; no real time passes."""

import threading
from types import SimpleNamespace

import pytest
import torch

from gradwire.comm.local import run_ranks
from gradwire.engine.synchronizer import Synchronizer
from gradwire.hardware import Device, Hardware, Line, LinkSpeed
from gradwire.integrations.machine import Machine
from gradwire.integrations.pilot import AutoPilot, Task
from gradwire.plan import Parameter, Plan
from gradwire.planner.choice import name_of
from gradwire.planner.shortlist import candidates
from gradwire.spec import Auto, Entry

PARAMETERS = [Parameter("a", Entry(1, (256, 256))), Parameter("b", Entry(2, (64, 128)))]
NUMEL = 256 * 256 + 64 * 128
_LIMIT = 20_000  # planning goes on beside the steps
SLOW, FAST = LinkSpeed(1e-4, 1e6), LinkSpeed(1e-6, 1e12)


def _machine(link, within=None, ranks_per_node=2):
    kernels = {
        f"{s} {n}": Line(1e-6, 1e-12)
        for n in candidates(Auto(max_harm=1), 2)
        for s in ("encode", "decode")
    }
    return Machine(
        Hardware(Device(interference=0.0), kernels, within or link, link), ranks_per_node, "a test"
    )


class Rank:
    """A synchronizer with a pilot, and a model whose steps take as long as told."""

    def __init__(self, mailbox, link, now, step_s, auto=None, within=None):
        plan = Plan.of(auto or Auto(observed_steps=2, tried_steps=2, watched_steps=2))
        task = Task(PARAMETERS, 25 << 20, mailbox.world_size)
        self.pilot = AutoPilot(plan, task, _machine(link, within), mailbox)
        self.sync = Synchronizer(plan, PARAMETERS, mailbox, pilot=self.pilot)
        self._now, self._step_s, self._mailbox = now, step_s, mailbox
        self.left = 0

    def step(self, number, *, has_input=True, scale=1.0):
        clock, generator = self.pilot.clock, torch.Generator()
        x = torch.randn(NUMEL, generator=generator.manual_seed(7 * number + self._mailbox.rank))
        x *= scale if has_input else 0.0
        if clock is not None:
            if has_input:
                clock.forward_begins()
            self._now[0] += 0.001
            if has_input:
                clock.forward_ends()
            self._now[0] += self._step_s(name_of(self.sync.plan)) - 0.001
            if clock.is_sampling:
                clock.samples.update(a=x[: 256 * 256].view(256, 256).clone(), b=x[256 * 256 :])
            clock.bucket(("a", "b"), is_last=True)
        if self.sync.is_left_to_backend:
            self.sync.pass_by([(2, 4 * NUMEL)])
            self.left += 1
            return None
        done = torch.futures.Future()
        names = ("a", "b")
        self.sync.reduce(0, x, names, lambda m, e: done.set_result((m, e)), is_last=True)
        mean, error = done.wait()
        assert error is None, error
        return mean.clone()

    def until_settled(self, first=0):
        """Make steps until a plan is chosen; return how many, and the means."""
        means = []
        for number in range(first, first + _LIMIT):
            means.append(self.step(number))
            if self.sync.plan.auto is None:
                return means
        raise AssertionError("no plan was chosen")


class _Now(threading.local):
    """The time of each rank, which is a thread here."""

    def __init__(self):
        self._now_s = 0.0

    def __getitem__(self, _):
        return self._now_s

    def __setitem__(self, _, value):
        self._now_s = value


@pytest.fixture
def now(monkeypatch):
    clock = _Now()
    fake = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr("gradwire.integrations.clock.time", fake)
    return clock


def _constant(_):
    return 0.003


def test_a_slow_link_gets_what_the_harm_allows(now):
    def body(mailbox):
        rank = Rank(mailbox, SLOW, now, _constant)
        means = rank.until_settled()
        rank.sync.close()
        return means, rank.sync.plan, rank.sync.decision, rank.sync.stats().planned

    (means, plan, choice, planned), (theirs, other, none, _) = run_ranks(2, body)
    assert plan == other == Plan.of("nearest3@broadcast")
    assert all(map(torch.equal, means, theirs))
    assert none is None
    assert choice.name == "nearest3@broadcast"
    assert choice.decision.buckets[0].options
    assert planned == str(choice)


def test_steps_without_input_are_waited_out_and_timed(now):
    """Within Join a rank takes part after its last input, without a forward pass."""

    def body(mailbox):
        rank = Rank(mailbox, SLOW, now, _constant)
        for number in range(12):
            rank.step(number, has_input=False)
        assert rank.sync.plan.auto is not None
        settled = len(rank.until_settled(12))
        for number in range(settled, settled + 30):
            rank.step(number, has_input=False)
        rank.sync.close()
        return rank.sync.plan

    assert run_ranks(2, body) == [Plan.of("nearest3@broadcast")] * 2


def test_plans_are_tried_where_no_step_has_an_input(now):
    def body(mailbox):
        rank = Rank(mailbox, SLOW, now, _constant)
        for number in range(6):
            rank.step(number)
        for number in range(6, _LIMIT):
            rank.step(number, has_input=rank.pilot.decision is None and number % 2 == 0)
            if rank.sync.plan.auto is None:
                rank.sync.close()
                return rank.sync.plan.digest()
        raise AssertionError("no plan was chosen")

    mine, theirs = run_ranks(2, body)
    assert mine == theirs


def test_gradients_that_are_not_finite_teach_nothing(now):
    def body(mailbox):
        rank = Rank(mailbox, SLOW, now, _constant)
        for number in range(12):
            rank.step(number, scale=float("inf"))
        assert rank.sync.plan.auto is not None
        rank.until_settled(12)
        rank.sync.close()
        return rank.sync.plan

    assert run_ranks(2, body) == [Plan.of("nearest3@broadcast")] * 2


def test_ranks_of_two_nodes_encode_between_the_nodes(now):
    def body(mailbox):
        rank = Rank(mailbox, SLOW, now, _constant, within=FAST)
        means = rank.until_settled()
        means += [rank.step(len(means) + i) for i in range(3)]
        rank.sync.close()
        return means, rank.sync.plan

    found = run_ranks(4, body)
    assert [plan for _, plan in found] == [Plan.of("nearest4@hierarchical:2")] * 4
    for others in zip(*(means for means, _ in found), strict=True):
        assert all(torch.equal(others[0], other) for other in others)


def test_less_harm_allows_more_bits_only(now):
    def body(mailbox):
        auto = Auto(max_harm=0.005, observed_steps=2, tried_steps=2)
        rank = Rank(mailbox, SLOW, now, _constant, auto)
        rank.until_settled()
        rank.sync.close()
        return rank.sync.plan

    assert run_ranks(2, body) == [Plan.of("nearest5")] * 2


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, ("none",)),  # nothing to gain: the most exact
        # Worse than predicted; which of the others are tried is up to microseconds.
        ({"none": 0.02, "bf16": 0.02}, ("fp16", "int8", "int8@broadcast")),
        ({"none": 0.00312}, ("none",)),  # less than the advantage that counts
    ],
)
def test_what_is_close_is_tried_and_measurements_decide(now, times, expected):
    def body(mailbox):
        auto = Auto(max_harm=1e-4, observed_steps=2, tried_steps=2, watched_steps=2)
        rank = Rank(mailbox, FAST, now, lambda name: times.get(name, 0.003), auto)
        means = rank.until_settled()
        rank.sync.close()
        return means, rank.sync.plan, rank.sync.decision

    (means, plan, choice), (theirs, other, _) = run_ranks(2, body)
    assert plan == other
    assert plan in [Plan.of(name) for name in expected]
    assert {"none", "bf16"} <= set(choice.step_s)
    for mine, other_mean in zip(means, theirs, strict=True):
        assert (mine is None) == (other_mean is None)
        assert mine is None or torch.equal(mine, other_mean)


def test_where_nothing_is_gained_ddp_averages_by_itself(now):
    def body(mailbox):
        auto = Auto(observed_steps=2, tried_steps=2, watched_steps=50)
        rank = Rank(mailbox, FAST, now, _constant, auto)
        first = len(rank.until_settled())
        rank.left = 0
        for number in range(first, first + 40):
            rank.step(number)
        rank.sync.close()
        return rank.left, rank.sync.stats().steps_done - first

    for left, done in run_ranks(2, body):
        assert done == 40
        assert left > 30  # some steps are looked at


def test_costs_that_stay_moved_lead_to_another_plan(now, monkeypatch):
    wire_s, step_s = [0.001], [0.003]
    monkeypatch.setattr(AutoPilot, "_costs", lambda *_: (wire_s[0], 0.001))

    def body(mailbox):
        rank = Rank(mailbox, FAST, now, lambda _: step_s[0])
        first = len(rank.until_settled())
        before, number = name_of(rank.sync.plan), first + 20
        for quiet in range(first, number):
            rank.step(quiet)
        mailbox.gather_objects(None)
        wire_s[0], step_s[0] = 1e4, 0.006  # ten million times slower
        after = before
        while after != "nearest3@broadcast" and number < _LIMIT:
            rank.step(number)
            number += 1
            after = name_of(rank.sync.plan)
        rank.sync.close()
        return before, after, number

    mine, theirs = run_ranks(2, body)
    assert mine == theirs
    assert mine[:2] == ("none", "nearest3@broadcast")


def test_a_resumed_run_keeps_the_stored_plan_and_tries_nothing(now):
    def body(mailbox):
        rank = Rank(mailbox, SLOW, now, _constant)
        means = rank.until_settled()
        state = rank.sync.state_dict()
        number = len(means)
        further = [rank.step(number + i) for i in range(12)]
        rank.sync.close()
        again = Rank(mailbox, FAST, now, _constant)
        again.sync.load_state_dict(state)
        resumed = [again.step(number + i) for i in range(12)]
        again.sync.close()
        return further, resumed, again.sync.plan

    for further, resumed, plan in run_ranks(2, body):
        assert plan == Plan.of("nearest3@broadcast")
        assert all(map(torch.equal, further, resumed))
