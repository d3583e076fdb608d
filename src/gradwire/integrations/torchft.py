"""torchft: DDP over replicas that come and go, with gradients encoded."""

# No `from __future__ import annotations` here: DDP reads the hook's annotations.

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, PrefixStore
from torchft import Manager
from torchft.ddp import DistributedDataParallel as FaultTolerantDDP

from gradwire.comm.torch_dist import TorchMailbox
from gradwire.engine.scheme import Variant
from gradwire.engine.synchronizer import Synchronizer
from gradwire.errors import CollectiveError, RankMismatchError, SpecError
from gradwire.integrations.agreement import device_of, fixed, parameters_of, trained
from gradwire.plan import Plan, load_plan
from gradwire.spec import ReducerSpec

_LEAST_RANKS = 2


class DistributedDataParallel(FaultTolerantDDP):
    """torchft's DDP, whose hook encodes.

    When the quorum changes, replicas connect anew. Each keeps what it owes, in
    the unit of the new number of participants. What a failed step changed is
    taken back, as its gradients are never applied. A replica that heals
    contributes zeros and owes nothing.

    Args:
        manager: torchft's manager of this replica.
        module: The model, on the CPU.
        plan: See `gradwire.attach`; the same on all replicas.
        timeout_s: After so many seconds an exchange has failed.
        options: Those of torchft's DDP.

    Raises:
        SpecError: Parameters are not on the CPU.

    Example:
        >>> from torchft import Manager, ProcessGroupGloo  # doctest: +SKIP
        >>> manager = Manager(ProcessGroupGloo(), load, save, 1)  # doctest: +SKIP
        >>> model = DistributedDataParallel(manager, model, "int6")  # doctest: +SKIP
    """

    def __init__(
        self,
        manager: Manager,
        module: nn.Module,
        plan: Plan | ReducerSpec | str | Path | None = None,
        *,
        timeout_s: float = 60.0,
        **options: Any,  # noqa: ANN401 - those of torchft's DDP
    ) -> None:
        self._plan = fixed(load_plan(plan))
        self._timeout_s = timeout_s
        super().__init__(manager, module, **options)

    def register_comm_hook(self, state: Manager, hook: object) -> None:
        """Register our hook; torchft's constructor calls it at its end with its own."""
        self.exchange = Exchange(state, self._plan, self, self._timeout_s)
        super().register_comm_hook(self.exchange, _hook)


class Exchange:
    """Averages one replica's gradients with those of whoever is in the quorum.

    Args:
        manager: Knows the quorum.
        plan: What to use.
        ddp: The model.
        timeout_s: Time limit of an exchange.
    """

    def __init__(
        self,
        manager: Manager,
        plan: Plan,
        ddp: nn.parallel.DistributedDataParallel,
        timeout_s: float,
    ) -> None:
        device = device_of(ddp)
        if device.type != "cpu":
            raise SpecError("device of the model", str(device), "the CPU, with torchft")
        self.sync: Synchronizer | None = None
        self.connections = 0
        self._manager = manager
        self._plan = plan
        self._timeout_s = timeout_s
        self._parameters = parameters_of(ddp)
        self._names = {id(p): name for name, p in trained(ddp).items()}
        self._group: object = None
        self._kept: dict[str, Any] | None = None
        self._participants = 1
        self._has_failed = False

    def start(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Start averaging a bucket; what goes wrong is told to the manager."""
        buffer = bucket.buffer()
        arrived: torch.futures.Future[Tensor] = torch.futures.Future()
        if bucket.index() == 0:
            self._begin()
        if self.sync is None or self._manager.errored():
            arrived.set_result(buffer)
            return arrived
        if not self._manager.is_participating():
            buffer.zero_()
        # The engine divides by the group's size, of which some only look on.
        weight = self.sync.world_size / self._participants

        def deliver(mean: Tensor | None, error: BaseException | None) -> None:
            if mean is None:
                self._fail(error)
            elif weight != 1:
                mean.mul_(weight)
            arrived.set_result(buffer if mean is None else mean)

        names = tuple(self._names[id(p)] for p in bucket.parameters())
        self.sync.reduce(bucket.index(), buffer, names, deliver, is_last=bucket.is_last())
        return arrived

    def _fail(self, error: BaseException | None) -> None:
        self._has_failed = True
        self._manager.report_error(error if isinstance(error, Exception) else RuntimeError(error))

    def _begin(self) -> None:
        """Meet the quorum, and remember what is owed before the step."""
        if self._manager.errored():
            return
        self._manager.wait_quorum()
        if self._manager.errored():
            return
        group = self._manager._pg.parent  # noqa: SLF001 - no public way to it
        if group is not self._group:
            try:
                self._connect(group)
            except RankMismatchError:
                raise
            except CollectiveError as error:
                self._fail(error)
                return
        if self._has_failed:  # its connections are broken: not until there is a new quorum
            self._fail(CollectiveError("reduce", group.rank(), "waits for a new quorum"))
            return
        participants = self._manager.num_participants()
        assert self.sync is not None
        if participants and participants != self._participants:
            self.sync.rescale(participants / self._participants)
            self._participants = participants
        self._kept = self.sync.state_dict()

    def _connect(self, group: Any) -> None:  # noqa: ANN401 - a process group of torchft's
        """Connect the replicas of a new quorum, and carry over what this one owes.

        Raises:
            RankMismatchError: Replicas differ in plan or parameters.
            CollectiveError: One of them is gone already.
        """
        state = self._state()
        if self.sync is not None:
            self.sync.close()
            self.sync = None
        store = PrefixStore("gradwire", group.get_group_store())
        mailbox = TorchMailbox(group, timeout_s=self._timeout_s, store=store)
        try:
            steps_done = self._agree(state["steps_done"], mailbox)
        except BaseException:
            mailbox.close()
            raise
        # Alone, everything would shrink; what is owed must not depend on who else is there.
        chosen = self._plan.assign(self._parameters, max(_LEAST_RANKS, mailbox.world_size))
        sync = Synchronizer(
            self._plan, self._parameters, mailbox, hold_unused=True, variant=Variant(chosen)
        )
        key = f"rank{sync.rank}"
        place = {"rank": sync.rank, "world_size": sync.world_size}
        fresh = sync.state_dict()[key]
        sync.load_state_dict({key: fresh | state | place | {"steps_done": steps_done}})
        self.sync, self._group, self._has_failed = sync, group, False
        self.connections += 1

    def _agree(self, steps_done: int, mailbox: TorchMailbox) -> int:
        """Return the number of steps that all count from, the highest of theirs.

        Raises:
            RankMismatchError: Replicas differ in plan or parameters.
        """
        mine = (self._plan.digest(), [tuple(p) for p in self._parameters])
        told = mailbox.gather_objects((steps_done, mine))
        everyone = [reading for reading in told if isinstance(reading, tuple)]
        different = [r for r, (_, theirs) in enumerate(everyone) if theirs != mine]
        if different:
            detail = f"plan or parameters of replicas {different} differ from this one's"
            digests = {r: str(theirs[0]) for r, (_, theirs) in enumerate(everyone)}
            raise RankMismatchError("quorum", mailbox.rank, detail, digests)
        return max(int(steps) for steps, _ in everyone)

    def _state(self) -> dict[str, Any]:
        """Return what this replica owes, as before a step that failed."""
        states = self._kept if self._has_failed or self.sync is None else self.sync.state_dict()
        state: dict[str, Any] = dict(next(iter(states.values()))) if states else {"steps_done": 0}
        if not self._manager.is_participating():
            state = {"steps_done": state["steps_done"]}
        return state


def _hook(state: Exchange, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Start averaging a bucket; DDP calls this once per bucket, in order."""
    return state.start(bucket)
