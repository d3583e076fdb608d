"""Plan: which reducer each parameter uses; readable, diffable, hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.errors import SpecError
from gradwire.layout import GROUP
from gradwire.spec import (
    Adaptive,
    AllReduce,
    Auto,
    Broadcast,
    Entry,
    Hierarchical,
    ReducerSpec,
    check_whole,
    parse_reducer,
    reducer_from_dict,
    sent_bytes,
    to_dict,
)

DEFAULT_SPEC = "int6"
"""The fewest bits whose loss curves could not be told from float32's."""
DENSE = AllReduce("float32")
MIN_NUMEL = 4 * GROUP
"""Parameters with fewer values stay dense: scales and padding would eat the gain."""

_FORMAT = 1
_FIELDS = {"adaptive", "auto", "format", "rules", "seed", "warmup_steps"}
_AQGB = "aqgb"
AUTO = "auto"


class Parameter(NamedTuple):
    """What a plan needs to know of a parameter.

    Attributes:
        name: Its name in the module.
        entry: Hash of the name and sizes in storage order.
        dtype: Short dtype name, such as `"float32"`.
        is_sparse: Whether its gradient is a sparse tensor.
    """

    name: str
    entry: Entry
    dtype: str = "float32"
    is_sparse: bool = False


class Assignment(NamedTuple):
    """The reducer of one parameter, and why it is dense where it is."""

    reducer: ReducerSpec
    dense_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Gives a reducer to the parameters it matches.

    Attributes:
        reducer: What to use.
        match: Shell pattern over parameter names.
        min_numel: Only parameters with at least this many values.
        min_ndim: Only parameters with at least this many dimensions.

    Example:
        >>> Rule(parse_reducer("int8"), match="*.weight").min_ndim
        2
    """

    reducer: ReducerSpec
    match: str = "*"
    min_numel: int = MIN_NUMEL
    min_ndim: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.reducer, ReducerSpec) or isinstance(self.reducer, type):
            raise SpecError("Rule.reducer", self.reducer, "a reducer spec, such as TwoPhase(...)")
        if not isinstance(self.match, str):
            raise SpecError("Rule.match", self.match, "a shell pattern over names")
        check_whole("Rule.min_numel", self.min_numel, 0)
        check_whole("Rule.min_ndim", self.min_ndim, 0)

    def mismatch(self, parameter: Parameter) -> str | None:
        """Return why this rule does not apply, or None where it does."""
        shape = parameter.entry.shape
        if not fnmatchcase(parameter.name, self.match):
            return f"no rule matches its name (last pattern: {self.match})"
        if len(shape) < self.min_ndim:
            return f"{len(shape)} dimensions, fewer than {self.min_ndim}"
        if parameter.entry.numel < self.min_numel:
            return f"{parameter.entry.numel} values, fewer than {self.min_numel}"
        return None


@dataclass(frozen=True, slots=True)
class Plan:
    """Rules in order of precedence; what none of them takes is averaged in float32.

    Attributes:
        rules: The first rule that matches a parameter decides.
        seed: Names the random streams; the user's random state is not used.
        warmup_steps: Steps at the start in which everything is dense.
        adaptive: How bits follow network and training (AQGB), from what the
            rules say; None for a plan that stays.
        auto: How another plan is chosen while this one is in use (HAGC); None
            where this is the choice.

    Example:
        >>> plan = Plan.of("int4")
        >>> Plan.from_json(plan.to_json()) == plan
        True
    """

    rules: tuple[Rule, ...]
    seed: int = 0
    warmup_steps: int = 0
    adaptive: Adaptive | None = None
    auto: Auto | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.adaptive, Adaptive | None):
            raise SpecError("Plan.adaptive", self.adaptive, "Adaptive(...) or None")
        if not isinstance(self.auto, Auto | None):
            raise SpecError("Plan.auto", self.auto, "Auto(...) or None")
        is_sequence = isinstance(self.rules, (tuple, list))
        if not is_sequence or not all(isinstance(rule, Rule) for rule in self.rules):
            raise SpecError("Plan.rules", self.rules, "a tuple of rules; Plan.of takes a reducer")
        object.__setattr__(self, "rules", tuple(self.rules))
        check_whole("Plan.seed", self.seed, 0)
        check_whole("Plan.warmup_steps", self.warmup_steps, 0)

    @classmethod
    def of(cls, spec: str | ReducerSpec | Auto = DEFAULT_SPEC, *, seed: int = 0) -> Plan:
        """Build the plan that uses one reducer wherever it pays.

        Args:
            spec: A reducer spec, its short name, `"aqgb"`: see `Adaptive`, or
                `"auto"` or `Auto(...)`: begin with the default, and choose
                from measured costs.
            seed: Names the random streams.

        Raises:
            UnknownIdError: No such short name.

        Example:
            >>> Plan.of("none").rules[0].reducer
            AllReduce(format='float32')
        """
        if spec == _AQGB:
            return cls(Plan.of("int4").rules, seed, adaptive=Adaptive())
        if spec == AUTO or isinstance(spec, Auto):
            return cls(Plan.of().rules, seed, auto=spec if isinstance(spec, Auto) else Auto())
        return cls((Rule(parse_reducer(spec) if isinstance(spec, str) else spec),), seed)

    def assign(self, parameters: Sequence[Parameter], world_size: int) -> dict[str, Assignment]:
        """Choose the reducer of each parameter.

        A parameter stays dense where no rule matches, where its dtype or
        layout asks for it, and where the reducer would not send fewer bytes.

        Raises:
            SpecError: A broadcast would move more than a bfloat16 all-reduce
                of its parameters, and is not forced: float32, as for a
                parameter that would not shrink, would move even more.

        Example:
            >>> bias = Parameter("bias", Entry(0, (64,)))
            >>> Plan.of("int4").assign([bias], 2)["bias"].dense_reason
            '1 dimensions, fewer than 2'
        """
        chosen = {p.name: self._assign(p, world_size) for p in parameters}
        for spec in dict.fromkeys(a.reducer for a in chosen.values()):
            if isinstance(spec, Broadcast):
                entries = [p.entry for p in parameters if chosen[p.name].reducer == spec]
                if refusal := spec.refusal(entries, world_size):
                    reason = (
                        f"sensible here: it {refusal}; use two_phase, fewer bits, or force=True"
                    )
                    raise SpecError("plan", spec, reason)
        return chosen

    def _assign(self, parameter: Parameter, world_size: int) -> Assignment:
        if parameter.is_sparse:
            return Assignment(DENSE, "sparse gradient")
        if parameter.dtype not in ("float32", "bfloat16", "float16", "complex64"):
            return Assignment(DENSE, f"{parameter.dtype} is averaged in its own precision")
        reason = "the plan has no rules"
        for rule in self.rules:
            mismatch = rule.mismatch(parameter)
            if mismatch is not None:
                reason = mismatch
                continue
            if rule.reducer == DENSE:
                return Assignment(DENSE, "the plan says so")
            return self._unless_larger(rule.reducer, parameter.entry, world_size)
        return Assignment(DENSE, reason)

    @staticmethod
    def _unless_larger(reducer: ReducerSpec, entry: Entry, world_size: int) -> Assignment:
        # A hierarchy is asked for by its form; what must shrink is what it sends between nodes.
        plain: ReducerSpec = DENSE
        if isinstance(reducer, Hierarchical):
            plain = replace(reducer, inner=DENSE)
        # One rank sends nothing; it does as two do, so that what is owed fits when another joins.
        size, dense = (sent_bytes(r, [entry], max(world_size, 2)) for r in (reducer, plain))
        if size >= dense and reducer != plain:
            return Assignment(DENSE, f"would send {size} bytes, dense {dense}")
        return Assignment(reducer)

    def to_json(self) -> str:
        """Write the plan as JSON with sorted keys.

        Example:
            >>> '"min_ndim": 2' in Plan.of("int4").to_json()
            True
        """
        rules = [
            {
                "reducer": to_dict(rule.reducer),
                "match": rule.match,
                "min_numel": rule.min_numel,
                "min_ndim": rule.min_ndim,
            }
            for rule in self.rules
        ]
        data = {
            "adaptive": None if self.adaptive is None else self.adaptive.to_dict(),
            "format": _FORMAT,
            "rules": rules,
            "seed": self.seed,
            "warmup_steps": self.warmup_steps,
        }
        if self.auto is not None:
            data["auto"] = self.auto.to_dict()
        return json.dumps(data, indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from `to_json`'s text.

        Raises:
            SpecError: Not JSON, another format number, or a field that is
                missing, unknown or out of range.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError("plan", text[:40], f"JSON: {error}") from None
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            found = data.get("format") if isinstance(data, dict) else data
            raise SpecError("plan format", found, f"{_FORMAT}, the one this version reads")
        unknown = sorted(set(data) - _FIELDS)
        if unknown:
            raise SpecError("plan field", unknown[0], "one of: " + ", ".join(sorted(_FIELDS)))
        rules = data.get("rules", [])
        if not isinstance(rules, list):
            raise SpecError("plan rules", rules, "a list")
        read = tuple(_rule_from_dict(rule) for rule in rules)
        adaptive = (
            Adaptive.from_dict(data["adaptive"]) if data.get("adaptive") is not None else None
        )
        auto = Auto.from_dict(data["auto"]) if data.get("auto") is not None else None
        return cls(read, data.get("seed", 0), data.get("warmup_steps", 0), adaptive, auto)

    def digest(self) -> str:
        """Return a hash that is equal exactly for equal plans.

        Example:
            >>> Plan.of("int4").digest() == Plan.of("int8").digest()
            False
        """
        return hashlib.blake2b(self.to_json().encode(), digest_size=16).hexdigest()


def _rule_from_dict(data: Mapping[str, Any]) -> Rule:
    if not isinstance(data, dict):
        raise SpecError("plan rule", data, "an object")
    try:
        reducer = reducer_from_dict(data["reducer"])
        return Rule(reducer, **{k: v for k, v in data.items() if k != "reducer"})
    except (KeyError, TypeError) as error:
        raise SpecError("plan rule", data, f"complete: {error}") from None


def load_plan(plan: Plan | ReducerSpec | Auto | str | Path | None) -> Plan:
    """Turn whatever `attach` accepts into a plan.

    Args:
        plan: A plan, a reducer spec, a short name, the path of a plan file,
            or None for the default.

    Raises:
        UnknownIdError: A string that is neither a short name nor a file.
        SpecError: The file holds no plan.

    Example:
        >>> load_plan("int8") == Plan.of("int8")
        True
    """
    if plan is None:
        return Plan.of()
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, Path) or (isinstance(plan, str) and plan.endswith(".json")):
        path = Path(plan)
        if not path.is_file():
            raise SpecError("plan", str(plan), "the path of an existing file")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise SpecError("plan", str(plan), f"a text file: {error}") from None
        return Plan.from_json(text)
    return Plan.of(plan)
