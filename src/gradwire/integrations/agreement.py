"""What all ranks must agree on before the first exchange, and what none may do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

from gradwire.comm.base import Mailbox
from gradwire.comm.shaped import Link
from gradwire.engine.layout import storage_shape
from gradwire.engine.stats import StepStats
from gradwire.errors import RankMismatchError, SpecError
from gradwire.integrations.levels import with_levels
from gradwire.key import name_hash
from gradwire.plan import Parameter, Plan, load_plan
from gradwire.spec import Auto, Entry, ReducerSpec, check_whole


class Options(NamedTuple):
    """What `attach` takes besides the plan."""

    link: Link | None
    check_every: int
    on_step: Callable[[StepStats], None] | None
    mesh: DeviceMesh | None = None

    def check(self, device: torch.device) -> None:
        """Refuse what would fail in the midst of training only.

        Args:
            device: Where the gradients live.

        Raises:
            SpecError: One of them is of another kind or out of range.
        """
        if self.link is not None and not isinstance(self.link, Link):
            raise SpecError("link", self.link, "a Link or None")
        if self.link is not None and device.type != "cpu":
            raise SpecError("link", self.link, f"None: exchanges of {device} cannot be slowed down")
        check_whole("check_every", self.check_every, 0)
        if self.on_step is not None and not callable(self.on_step):
            raise SpecError("on_step", self.on_step, "a function or None")
        if self.mesh is not None and not isinstance(self.mesh, DeviceMesh):
            raise SpecError("mesh", self.mesh, "a DeviceMesh or None")


def agree(
    ddp: DDP,
    plan: Plan | ReducerSpec | Auto | str | Path | None,
    options: Options,
    mailbox: Mailbox,
) -> tuple[Plan, list[Parameter]]:
    """Read a DDP model's plan and parameters; make sure all ranks read the same.

    Raises:
        SpecError: The plan or an option asks for what cannot exist, or the
            model uses what cannot be combined with a hook.
        RankMismatchError: Another rank has refused, or has read something else.
    """

    def read() -> tuple[Plan, list[Parameter]]:
        options.check(device_of(ddp))
        chosen = with_levels(without_bits_to_hide(load_plan(plan)), options.mesh)
        parameters = parameters_of(ddp)
        _refuse(ddp)
        return chosen, parameters

    return agree_on(read, options, mailbox)


def agree_on(
    read: Callable[[], tuple[Plan, list[Parameter]]], options: Options, mailbox: Mailbox
) -> tuple[Plan, list[Parameter]]:
    """Read plan and parameters, and make sure that all ranks read the same.

    Raises:
        RankMismatchError: Another rank has refused, or has read something else.
        Exception: What `read` raises here.
    """
    problem: Exception | None = None
    chosen = Plan(())
    parameters: list[Parameter] = []
    try:
        chosen, parameters = read()
    except Exception as error:  # noqa: BLE001 - raised below, once the others know
        problem = error
    settings = {"check_every": str(options.check_every), "links": str(options.link)}
    settle("attach", problem, chosen, parameters, settings, mailbox)
    return chosen, parameters


def settle(
    op: str,
    problem: Exception | None,
    plan: Plan,
    parameters: Sequence[Parameter],
    settings: Mapping[str, str],
    mailbox: Mailbox,
) -> None:
    """Make sure that no rank has a problem, and that all have read the same.

    Args:
        op: What was called, for the message.
        problem: What this rank cannot do, or None.
        plan: As read here.
        parameters: As found here.
        settings: Whatever else must be equal, by a name in the plural.
        mailbox: Connects the ranks.

    Raises:
        RankMismatchError: Another rank has a problem, or has read something else.
    """
    mine = {
        "problem": f"{type(problem).__name__}: {problem}" if problem else "",
        "plan": plan.digest(),
        "settings": dict(settings),
        "parameters": [tuple(p) for p in parameters],
    }
    everyone = [v for v in mailbox.gather_objects(mine) if isinstance(v, dict)]
    if problem is not None:
        raise problem
    digests = {r: str(v["plan"]) for r, v in enumerate(everyone)}
    for rank, theirs in enumerate(everyone):
        difference = _difference(everyone[0], theirs, rank)
        if difference:
            raise RankMismatchError(op, mailbox.rank, difference, digests)


def fixed(plan: Plan) -> Plan:
    """Return a plan, where it is one that does not change in training.

    Raises:
        SpecError: It is chosen from what steps of DDP take, or from what overlaps.
    """
    if plan.auto is not None:
        allowed = "a fixed plan here: only attach chooses one, for a DDP model"
        raise SpecError("plan", "auto", allowed)
    return without_bits_to_hide(plan)


def without_bits_to_hide(plan: Plan) -> Plan:
    """Return a plan, where its bits do not follow the next forward pass.

    Raises:
        SpecError: They do.
    """
    if plan.adaptive is not None:
        raise SpecError(
            "plan",
            "aqgb",
            "possible here, where each step waits for every gradient: use gradwire.overlap",
        )
    return plan


def _difference(first: Mapping[str, Any], theirs: Mapping[str, Any], rank: int) -> str | None:
    """Say how a rank's reading differs from rank 0's, or return None."""
    for number, reading in ((0, first), (rank, theirs)):
        if reading["problem"]:
            return f"rank {number} refused: {reading['problem']}"
    ours = [Parameter(*p) for p in first["parameters"]]
    others = [Parameter(*p) for p in theirs["parameters"]]
    pairs = [
        ("plans (digest)", first["plan"], theirs["plan"]),
        *((name, value, theirs["settings"].get(name)) for name, value in first["settings"].items()),
        ("number of parameters", len(ours), len(others)),
    ]
    for a, b in zip(ours, others, strict=False):
        pairs += [
            ("parameter names", a.name, b.name),
            (f"shape of {a.name}", tuple(a.entry.shape), tuple(b.entry.shape)),
            (f"dtype of {a.name}", a.dtype, b.dtype),
            (f"sparse gradient of {a.name}", a.is_sparse, b.is_sparse),
        ]
    for what, a_value, b_value in pairs:
        if a_value != b_value:
            return f"{what} differ: {a_value} on rank 0, {b_value} on rank {rank}"
    return None


def logged(ddp: DDP, what: str) -> object:
    """Return one of the things that DDP notes of itself; 0 before it has any."""
    read: Callable[[], dict[str, object]] = ddp._get_ddp_logging_data  # noqa: SLF001 - no public way
    return read().get(what, 0)


def trained(ddp: DDP) -> dict[str, nn.Parameter]:
    """Return the parameters that DDP synchronises and our hook sees, by name."""
    return {
        name: p
        for name, p in ddp.module.named_parameters()
        if p.requires_grad and _ddp_name(name) not in ddp.parameters_to_ignore
    }


def device_of(ddp: DDP) -> torch.device:
    """Return where the gradients live."""
    return next((p.device for p in trained(ddp).values()), torch.device("cpu"))


def _ddp_name(name: str) -> str:
    """Return a name as DDP looks for it: with a dot even where there is no submodule."""
    return name if "." in name else f".{name}"


def parameters_of(ddp: DDP) -> list[Parameter]:
    """Return what a plan needs to know of the parameters that our hook sees."""
    sparse = {
        id(module.weight)
        for module in ddp.module.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }
    return [
        Parameter(
            name,
            Entry(name_hash(name), storage_shape(p)),
            str(p.dtype).removeprefix("torch."),
            id(p) in sparse,
        )
        for name, p in trained(ddp).items()
    ]


def _refuse(ddp: DDP) -> None:
    """Refuse, in words, what cannot be combined with a hook."""
    if ddp._delay_all_reduce_all_params:  # noqa: SLF001 - no public way to read it
        raise SpecError(
            "DDP(delay_all_reduce_named_params)",
            "all parameters",
            "fewer than all: those bypass the hook, and nothing is left to compress",
        )
    hook = logged(ddp, "comm_hook")  # built-in ones too; a copy of a model has none
    if hook:
        raise SpecError(
            "communication hook of DDP",
            hook,
            "unset: a DDP model takes one only; wrap the model anew to attach again",
        )
    _refuse_strangers(ddp)
    for name, p in trained(ddp).items():
        if p.device != device_of(ddp) or p.device.type not in ("cpu", "cuda"):
            allowed = "the one of all other parameters, the CPU or a CUDA device"
            raise SpecError(f"device of {name}", str(p.device), allowed)
        if getattr(p, "_in_backward_optimizers", None):
            raise SpecError(
                f"optimizer of {name}",
                "inside backward",
                "outside of it: it would step before gradients are averaged",
            )
    if ddp.mixed_precision is not None:
        raise SpecError("DDP(mixed_precision)", "set", "None: it brings a hook of its own")
    if ddp._use_python_reducer:  # noqa: SLF001
        raise SpecError(
            "torch._dynamo.config.optimize_ddp",
            "python_reducer",
            "True or False: that reducer does not use hooks",
        )


def _refuse_strangers(ddp: DDP) -> None:
    """Refuse parameters that were replaced, added or unfrozen after wrapping."""
    known = {id(p) for p in ddp._module_parameters}  # noqa: SLF001
    parameters = trained(ddp)
    for name, p in parameters.items():
        if id(p) not in known:
            raise stranger(name)
    wrapped = logged(ddp, "num_parameter_tensors")
    if wrapped != len(parameters):
        raise SpecError(
            "number of trained parameters",
            len(parameters),
            f"{wrapped}, as when DDP was built: freeze and unfreeze before wrapping the model",
        )


def stranger(name: str) -> SpecError:
    """Return the error for a parameter that DDP does not know."""
    return SpecError(
        f"parameter {name}",
        "new",
        "one of those DDP was built with, and would not be synchronised:"
        " wrap the model again after replacing or unfreezing parameters",
    )
