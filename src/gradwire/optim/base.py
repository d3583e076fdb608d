"""What AdamW and LAMB share: phases, the exchange, and the moments."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from gradwire.engine.stats import Stats
from gradwire.errors import SpecError, StateError
from gradwire.optim.exchange import Exchange, ExchangeOptions, Status, gradient_of
from gradwire.optim.moments import Update, fill, take_gradient
from gradwire.optim.warmup import Warmup

_KEY = "gradwire"


class MomentumOptimizer(Optimizer, ABC):
    """Averages gradients during warm-up, and compressed momenta afterwards.

    Before each step ranks tell each other in a few bytes which parameters
    have a gradient and whether all are finite. If one is not, on any rank,
    none makes the step, and nothing changes: neither parameters nor moments nor
    what is owed.

    A parameter that the plan leaves dense is never frozen: its momentum would
    take as many bytes as its gradient. One that is first used after the end of
    the warm-up goes through one of its own, as long as the first.

    Args:
        params: As for `torch.optim.AdamW`; named, rules of the plan can match names.
        defaults: Settings of parameter groups, with `betas`, `eps` among them.
        warmup: When the warm-up ends.
        options: The plan and the ranks.

    Raises:
        SpecError: A setting is out of range.
        RankMismatchError: Ranks differ in settings, plan or parameters.
    """

    _step_supports_amp_scaling = True
    """GradScaler hands over its scale: the decision to skip must not be this rank's alone."""

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        warmup: Warmup,
        options: ExchangeOptions,
    ) -> None:
        self._exchange: Exchange | None = None
        super().__init__(params, defaults)
        self._warmup = warmup
        self._skipped_steps = 0
        self._names = _names(self.param_groups)
        for group in self.param_groups:
            self._check_group(group)
        settings = [
            {k: v for k, v in g.items() if k not in ("params", "param_names")}
            for g in self.param_groups
        ]
        parameters = {name: p for p, name in self._names.items()}
        self._exchange = Exchange(parameters, options, f"{type(self).__name__} {settings} {warmup}")
        warmup.follow(self._exchange.plan.warmup_steps)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        if not (0 <= beta1 < 1 and 0 < beta2 < 1 and beta1**2 < beta2):
            raise SpecError("betas", group["betas"], "below 1 each, with betas[0]**2 < betas[1]")
        for key in ("lr", "eps", "weight_decay"):
            if not 0 <= float(group[key]) < math.inf:
                raise SpecError(key, group[key], "at least 0 and finite")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; during construction only, as ranks have agreed on all parameters.

        Raises:
            SpecError: The optimiser has been made.
        """
        if self._exchange is not None:
            allowed = "added later: make the optimiser with all parameters, frozen ones too"
            raise SpecError("parameter group", len(self.param_groups), allowed)
        super().add_param_group(param_group)

    @property
    def exchange(self) -> Exchange:
        """What the ranks say to each other."""
        assert self._exchange is not None
        return self._exchange

    @property
    def is_warming_up(self) -> bool:
        """Whether gradients still travel in full, for all parameters."""
        return not self._warmup.is_over

    @property
    def skipped_steps(self) -> int:
        """Steps that no rank made, because some rank's gradient was not finite."""
        return self._skipped_steps

    def stats(self) -> Stats:
        """Return what the latest steps sent, and what is not compressed."""
        return self.exchange.sync.stats()

    def close(self) -> None:
        """Stop the threads and disconnect. Can be called twice."""
        self.exchange.sync.close()

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Exchange, and update all parameters that have a gradient on any rank.

        Every rank calls it as often as the others.

        Args:
            closure: Computes loss and gradients anew; called once.

        Raises:
            RankMismatchError: Before the first step, if parameters differ.
            CollectiveError: The exchange failed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        exchange = self.exchange
        exchange.compare_replicas()
        gradients = self._gradients()
        finite = [g.isfinite().all() for g in gradients.values()]
        is_finite = bool(torch.stack(finite).all()) if finite else True
        used = [name in gradients for name in self._names.values()]
        agreed = exchange.agree(Status(is_finite, self._warmup.is_settled, used))
        if agreed.is_settled:
            self._warmup.end()
        updates = self._updates(gradients, agreed) if agreed.is_finite else []
        if not self._average(updates) or not agreed.is_finite:
            self._skipped_steps += 1
            return loss
        windows = [round(1 / (1 - group["betas"][1])) for group in self.param_groups]
        self._warmup.advance(self._variance, max(windows))
        return loss

    def _gradients(self) -> dict[str, Tensor]:
        scale = getattr(self, "grad_scale", None)
        found = {}
        for p, name in self._names.items():
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise SpecError(f"gradient of {name}", "sparse", "dense; make it so, or freeze it")
            found[name] = p.grad if scale is None else p.grad / scale.to(p.device)
        return found

    def _updates(self, gradients: Mapping[str, Tensor], agreed: Status) -> list[Update]:
        updates = []
        used = dict(zip(self._names.values(), agreed.used, strict=True))
        for group in self.param_groups:
            for p in group["params"]:
                name = self._names[p]
                if not used[name]:
                    continue
                state = self.state[p] or self._start(p)
                is_warm = (
                    self._warmup.is_over
                    and self.exchange.is_compressed(name)
                    and state["variance_step"] >= self._warmup.ended_at
                )
                is_frozen = is_warm and not self._warmup.is_refresh
                gradient = gradients.get(name)
                updates.append(Update(name, p, group, gradient, state, is_frozen, is_warm))
        return updates

    def _start(self, p: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[p]
        state["step"] = torch.tensor(0.0, dtype=torch.float32)
        state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        state["variance_step"] = 0
        return state

    def _average(self, updates: list[Update]) -> bool:
        """Exchange and apply; return False, with nothing applied, if a mean is not finite."""
        travels = {u.name if u.is_frozen else gradient_of(u.name): u for u in updates}
        buckets = self.exchange.lay_out([(name, u.parameter) for name, u in travels.items()])
        views = {
            n: v for bucket in buckets for n, v in zip(bucket.names, bucket.views, strict=True)
        }
        for name, view in views.items():
            fill(view, travels[name])
        if not self.exchange.average(buckets):
            return False
        self._apply([(travels[name], view) for name, view in views.items()])
        return True

    def _apply(self, means: list[tuple[Update, Tensor]]) -> None:
        exact = [(u, mean) for u, mean in means if not u.is_warm]
        for group in self.param_groups:
            self._update_exact(group, [pair for pair in exact if pair[0].group is group])
        for update, mean in means:
            if not update.is_warm:
                continue
            state = update.state
            state["step"] += 1
            if update.is_frozen:
                state["exp_avg"].copy_(mean)
            else:
                take_gradient(update, mean)
            self._update_warm(update)

    @abstractmethod
    def _update_exact(self, group: dict[str, Any], means: list[tuple[Update, Tensor]]) -> None:
        """Update parameters, and moments, from averaged gradients, as without compression."""

    @abstractmethod
    def _update_warm(self, update: Update) -> None:
        """Update a parameter from its moments."""

    def _variance(self) -> float:
        """Return the norm of the variances that are to be frozen, free of their bias."""
        total = 0.0
        for group in self.param_groups:
            beta2 = group["betas"][1]
            for p in group["params"]:
                steps = self.state[p].get("variance_step", 0) if p in self.state else 0
                if steps and self.exchange.is_compressed(self._names[p]):
                    norm = self.state[p]["exp_avg_sq"].sum(dtype=torch.float64)
                    total += float(norm) / (1 - beta2**steps)
        return total

    def state_dict(self) -> dict[str, Any]:
        """Return moments, phase, and what this rank owes.

        The entry `gradwire` differs by rank: save the whole on every rank. Its
        key `exchange` holds one key that carries the rank.
        """
        state = super().state_dict()
        state[_KEY] = {
            "exchange": self.exchange.sync.state_dict(),
            "warmup": self._warmup.state_dict(),
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, bit by bit.

        Residuals of other ranks or another number of ranks are treated as
        `Synchronizer.load_state_dict` treats them.

        Raises:
            StateError: Not a state of such an optimiser.
            ValueError: Parameter groups differ.
        """
        own = state_dict.get(_KEY)
        if not isinstance(own, Mapping) or not {"exchange", "warmup"} <= set(own):
            raise StateError(
                "no state of gradwire.optim; load what its own state_dict returned", missing=[_KEY]
            )
        warmup = copy.copy(self._warmup)
        warmup.load_state_dict(own["warmup"])  # before anything changes
        super().load_state_dict({k: v for k, v in state_dict.items() if k != _KEY})
        self._warmup = warmup
        self.exchange.load_state_dict(own["exchange"])

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an optimiser that holds threads and connections cannot be pickled or copied;"
            " save its state_dict() instead"
        )


def _names(groups: Iterable[Mapping[str, Any]]) -> dict[Tensor, str]:
    names: dict[Tensor, str] = {}
    for group in groups:
        given = group.get("param_names")
        for index, p in enumerate(group["params"]):
            names[p] = given[index] if given else f"parameter{len(names)}"
    if len(set(names.values())) < len(names):
        raise SpecError("parameter names", sorted(names.values()), "different from each other")
    return names
