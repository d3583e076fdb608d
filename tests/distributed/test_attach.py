"""What `attach` accepts, what it refuses, and that all ranks hear of it."""

import json
import re
import threading
import time
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from launch import NEVER_S, run_processes
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

import gradwire
from gradwire.comm.shaped import Link
from gradwire.integrations import ddp as module
from gradwire.integrations.ddp import find_ddp

BIG = (64, 32)


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16))


def _step(model: nn.Module) -> None:
    model(torch.ones(2, 64)).sum().backward()


def _refusal(action) -> str:
    """Return what `action` raises as `type: text`; it must leave no thread behind."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its text is what is looked at
        action()
    text = f"{caught.type.__name__}: {caught.value}"
    del caught
    end = time.monotonic() + 10
    while _threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert _threads() == []
    return text


def _threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("gradwire")]


# One rank: what is refused without asking the others.


def _attached_twice() -> object:
    ddp = DDP(_net())
    gradwire.attach(ddp, "int8").close()
    return gradwire.attach(ddp, "int8")


def _sharded() -> object:
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    return find_ddp(fully_shard(_net(), mesh=mesh))


def _two() -> object:
    return find_ddp(nn.ModuleList([DDP(nn.Linear(2, 2)), DDP(nn.Bilinear(2, 2, 2))]))


def _optimizer_in_backward() -> object:
    net = _net()
    net[1].weight._in_backward_optimizers = [torch.optim.SGD([net[1].weight], 0.1)]
    return gradwire.attach(DDP(net))


def _mixed_precision() -> object:
    ddp = DDP(_net())
    ddp.mixed_precision = SimpleNamespace(param_dtype=torch.bfloat16)  # itself refuses the CPU
    return gradwire.attach(ddp)


def _python_reducer() -> object:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        ddp = DDP(_net())
    return gradwire.attach(ddp)


def _not_on_the_cpu() -> object:
    return gradwire.attach(DDP(nn.Linear(64, 32, device="meta"), init_sync=False))


def _replaced_before() -> object:
    ddp = DDP(_net())
    ddp.module[0].weight = nn.Parameter(torch.ones(32, 64))
    return gradwire.attach(ddp)


def _frozen_before() -> object:
    ddp = DDP(_net())
    ddp.module[0].weight.requires_grad_(False)
    return gradwire.attach(ddp)


def _replaced_after() -> object:
    ddp = DDP(_net())
    sync = gradwire.attach(ddp)
    _step(ddp)
    ddp.module[1].weight = nn.Parameter(torch.ones(16, 32))
    try:
        return ddp(torch.ones(2, 64))
    finally:
        sync.close()


def _unfrozen_after() -> object:
    net = _net()
    net[0].bias.requires_grad_(False)
    ddp = DDP(net)
    sync = gradwire.attach(ddp)
    _step(ddp)
    net[0].bias.requires_grad_(True)
    try:
        return ddp(torch.ones(2, 64))
    finally:
        sync.close()


def _all_delayed() -> object:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _net()

    net = Nested()
    net.net[1].requires_grad_(False)
    named = list(net.named_parameters())[:2]
    ddp = DDP(net, delay_all_reduce_named_params=named, param_to_hook_all_reduce=named[0][1])
    return gradwire.attach(ddp)


def _with(plan: object, **options: object):
    return lambda: gradwire.attach(DDP(_net()), plan, **options)


class _Unreadable:
    def digest(self) -> str:
        raise OSError("disk on fire")


REFUSED = {
    "L1 a plain module": (
        lambda: gradwire.attach(_net()),
        r"TypeError: no DistributedDataParallel model in Sequential; wrap the model",
    ),
    "L1 nothing at all": (
        lambda: gradwire.attach(None),
        "TypeError: no DistributedDataParallel model in NoneType",
    ),
    "L1 two": (_two, r"TypeError: 2 Dist\w+ models in ModuleList \(of Linear, Bilinear\)"),
    "L3 FSDP": (_sharded, r"TypeError: no DistributedDataParallel model in FSDPSequential"),
    "attached twice": (
        _attached_twice,
        r"SpecError: communication hook of DDP='_hook' is not unset: .* wrap the model anew",
    ),
    "L5": (
        _optimizer_in_backward,
        r"SpecError: optimizer of 1\.weight='inside backward' is not outside of it",
    ),
    "mixed precision": (_mixed_precision, r"SpecError: DDP\(mixed_precision\)="),
    "L9": (_python_reducer, "SpecError: torch._dynamo.config.optimize_ddp='python_reducer' is not"),
    "not on the CPU": (_not_on_the_cpu, r"SpecError: device of weight='meta' is not the one of"),
    "E1 replaced before attaching": (_replaced_before, r"SpecError: parameter 0\.weight='new' is"),
    "E1 frozen before attaching": (
        _frozen_before,
        "SpecError: number of trained parameters=3 is not 4, as when DDP was built",
    ),
    "E1 replaced after attaching": (_replaced_after, r"SpecError: parameter 1\.weight='new' is"),
    "E1 unfrozen after attaching": (_unfrozen_after, r"SpecError: parameter 0\.bias='new' is"),
    "all parameters delayed": (
        _all_delayed,
        r"SpecError: DDP\(delay_all_reduce_named_params\)='all parameters' is not fewer",
    ),
    "unknown short name": (
        _with("int9000x"),
        "UnknownIdError: spec='int9000x' is not one of: none",
    ),
    "number out of range": (_with("int9"), "SpecError: Quantize.bits=9 is not a whole number"),
    "no file": (_with("no/plan.json"), "SpecError: plan='no/plan.json' is not the path of an"),
    "negative check_every": (_with("int4", check_every=-1), "SpecError: check_every=-1 is not"),
    "check_every of text": (_with("int4", check_every="3"), "SpecError: check_every='3' is not"),
    "broken check_every": (_with("int4", check_every=1.5), "SpecError: check_every=1.5 is not"),
    "link of text": (_with("int4", link="1Mbit/s"), "SpecError: link='1Mbit/s' is not a Link"),
    "on_step that cannot be called": (_with("int4", on_step=5), "SpecError: on_step=5 is not a"),
    "no plan at all": (_with(7), "SpecError: Rule.reducer=7 is not a reducer spec"),
    "unknown option": (_with("int4", bits=3), "TypeError: .*'bits'"),
}


@pytest.fixture(scope="module")
def refusals() -> dict[str, str]:
    def body(_: int) -> dict[str, str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about what is refused here
            return {name: _refusal(action) for name, (action, _) in REFUSED.items()}

    (texts,) = run_processes(1, body, timeout_s=100)
    return texts


@pytest.mark.parametrize("case", REFUSED)
def test_e1_l1_l3_l5_l9_attach_refuses_in_words(refusals, case):
    assert re.match(REFUSED[case][1], refusals[case]), refusals[case]


def test_l1_attach_finds_the_model_inside_other_objects(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(gradwire.Plan.of("int8").to_json())

    def body(_: int) -> list[int]:
        steps = []
        for wrapped in (
            lambda ddp: ddp,
            lambda ddp: torch.compile(ddp, backend="eager"),
            nn.Sequential,
            lambda ddp: SimpleNamespace(module=ddp),
            lambda ddp: SimpleNamespace(_forward_module=ddp),
            lambda ddp: SimpleNamespace(model=torch.compile(ddp, backend="eager")),
            lambda ddp: SimpleNamespace(strategy=SimpleNamespace(model=ddp), model=ddp.module),
        ):
            ddp = DDP(_net())
            thing = wrapped(ddp)
            assert find_ddp(thing) is ddp
            sync = gradwire.attach(thing, path if len(steps) % 2 else str(path))
            assert sync.plan == gradwire.Plan.of("int8")
            _step(thing if callable(thing) else ddp)
            steps.append(sync.stats().steps_done)
            sync.close()
        return steps

    assert run_processes(1, body, timeout_s=100) == [[1] * 7]


def test_parameters_that_ddp_ignores_or_averages_itself_are_left_to_it():
    def body(rank: int):
        net = _net()
        DDP._set_params_and_buffers_to_ignore_for_model(net, ["0.weight"])
        delayed = [("0.bias", net[0].bias)]
        ddp = DDP(
            net, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=net[0].weight
        )
        sync = gradwire.attach(ddp, "none")
        # Once, four times: unequal before the average, also where a rank has halved its own.
        (ddp(torch.ones(2, 64)).sum() * 4**rank).backward()
        parameters = sum(b.parameters for b in sync.stats().recent[0].buckets)
        seen, end = [torch.zeros(32), torch.ones(32)], time.monotonic() + 30
        while not torch.equal(*seen) and time.monotonic() < end:  # DDP waits for this one nowhere
            dist.all_gather(seen, net[0].bias.grad)
        return net[0].weight.grad[:, 0], net[1].weight.grad, net[0].bias.grad, parameters

    first, second = run_processes(2, body)
    assert first[3] == second[3] == 2
    assert torch.equal(second[0], 4 * first[0])  # ignored: each rank has its own
    assert torch.equal(second[1], first[1])  # averaged through the hook
    assert torch.equal(second[2], first[2])  # averaged by DDP


def test_i5_the_hook_is_a_plain_function_with_the_signature_ddp_asks_for():
    def body(_: int) -> bool:
        ddp = DDP(_net())
        gradwire.attach(ddp, "int8")
        return ddp._comm_hooks[0][0] is hook

    hook = module._hook
    assert run_processes(1, body) == [True]
    assert type(hook).__name__ == "function"
    assert list(hook.__annotations__) == ["state", "bucket", "return"]
    assert hook.__annotations__["bucket"] is dist.GradBucket
    assert hook.__annotations__["return"] == torch.futures.Future[torch.Tensor]
    assert hook.__qualname__ == "_hook"  # importable by name, and no name DDP has rules for


# Two ranks that differ.


class _Named(nn.Module):
    def __init__(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.zeros(*shape, dtype=dtype)))


def _unequal(module: nn.Module) -> DDP:
    return DDP(module, init_sync=False)  # the first to compare would be DDP itself


MISMATCHES = {
    "plan": (
        lambda rank: gradwire.attach(DDP(_net()), "int4" if rank else "int8"),
        r"attach failed on rank \d: plans \(digest\) differ: \w{32} on rank 0, \w{32} on rank 1",
    ),
    "seed of the plan": (
        lambda rank: gradwire.attach(DDP(_net()), gradwire.Plan.of("int4", seed=rank)),
        r"plans \(digest\) differ",
    ),
    "check_every": (
        lambda rank: gradwire.attach(DDP(_net()), check_every=5 * rank),
        "check_every differ: 0 on rank 0, 5 on rank 1",
    ),
    "link on rank 1 only": (
        lambda rank: gradwire.attach(DDP(_net()), link=Link(1e9, 0.001) if rank else None),
        r"links differ: None on rank 0, Link\(rate_bytes_per_s=1000000000.0, .*\) on rank 1",
    ),
    "parameter name": (
        lambda rank: gradwire.attach(DDP(_Named("xy"[rank], *BIG))),
        "parameter names differ: x on rank 0, y on rank 1",
    ),
    "shape": (
        lambda rank: gradwire.attach(_unequal(_Named("x", 64 + rank, 32))),
        r"shape of x differ: \(64, 32\) on rank 0, \(65, 32\) on rank 1",
    ),
    "dtype": (
        lambda rank: gradwire.attach(
            _unequal(_Named("x", *BIG, dtype=(torch.float32, torch.float64)[rank]))
        ),
        "dtype of x differ: float32 on rank 0, float64 on rank 1",
    ),
    "count": (
        lambda rank: gradwire.attach(_unequal(nn.Linear(64, 32, bias=bool(rank)))),
        "number of parameters differ: 1 on rank 0, 2 on rank 1",
    ),
    "sparse gradient": (
        lambda rank: gradwire.attach(DDP(nn.Embedding(64, 32, sparse=bool(rank)))),
        "sparse gradient of weight differ: False on rank 0, True on rank 1",
    ),
    "L10 an unknown name on rank 1": (
        lambda rank: gradwire.attach(DDP(_net()), "int5oops" if rank else "int4"),
        "rank 1 refused: UnknownIdError: spec='int5oops' is not one of",
    ),
    "L10 no file on rank 1": (
        lambda rank: gradwire.attach(DDP(_net()), "gone.json" if rank else None),
        "rank 1 refused: SpecError: plan='gone.json' is not the path of an existing file",
    ),
    "L10 any other failure on rank 0": (
        lambda rank: gradwire.attach(DDP(_net()), None if rank else _Unreadable()),
        "rank 0 refused: SpecError: Rule.reducer=",
    ),
}


@pytest.fixture(scope="module")
def mismatches() -> list[dict[str, str]]:
    def body(rank: int) -> dict[str, str]:
        told = {}
        for name, (action, _) in MISMATCHES.items():
            told[name] = _refusal(partial(action, rank))
        ddp = DDP(_net())
        sync = gradwire.attach(ddp)  # nothing of the failed attempts is in the way
        _step(ddp)
        assert sync.stats().steps_done == 1
        return told

    return run_processes(2, body, timeout_s=100, group_timeout_s=NEVER_S)


@pytest.mark.parametrize("case", MISMATCHES)
def test_l10_attach_tells_every_rank_what_differs(mismatches, case):
    for rank, told in enumerate(mismatches):
        text = told[case]
        own_refusal = re.search(r"rank (\d) refused: (.*)", MISMATCHES[case][1])
        if own_refusal and int(own_refusal[1]) == rank:
            assert re.match(own_refusal[2], text), text
        else:
            assert text.startswith("RankMismatchError: ")
            assert re.search(MISMATCHES[case][1], text), text


def test_attach_refuses_a_plan_file_that_is_none(tmp_path):
    broken = {
        "no JSON": ("{", "SpecError: plan='{' is not JSON"),
        "no object": ("[1]", r"SpecError: plan format=\[1\] is not 1, the one this version reads"),
        "other format": ('{"format": 2}', "SpecError: plan format=2 is not 1"),
        "unknown field": ('{"format": 1, "sede": 3}', "SpecError: plan field='sede' is not one of"),
        "not text": (b"\xff\xfe\x00", "SpecError: plan='.*' is not a text file"),
        "unknown codec": (
            json.dumps(
                {
                    "format": 1,
                    "rules": [{"reducer": {"id": "two_phase", "codec": {"id": "x"}}}],
                }
            ),
            "UnknownIdError: codec_specs='x' is not one of: bit_planes, float",
        ),
    }

    def body(_: int) -> dict[str, str]:
        texts = {}
        ddp = DDP(_net())
        for name, (text, _) in broken.items():
            path = tmp_path / f"{name}.json"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            texts[name] = _refusal(lambda path=path: gradwire.attach(ddp, path))
        gradwire.attach(ddp)  # the model can still be attached
        return texts

    (texts,) = run_processes(1, body)
    for name, (_, expected) in broken.items():
        assert re.match(expected, texts[name]), (name, texts[name])
