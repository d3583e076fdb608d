"""Write a plan to a file, read it back, and ask what it does to some parameters."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gradwire import Plan, Rule, load_plan, parse_reducer
from gradwire.plan import Parameter
from gradwire.spec import Entry, sent_bytes, spec_key
from gradwire.units import format_bytes

plan = Plan(
    rules=(
        Rule(parse_reducer("none"), match="embedding.*"),
        Rule(parse_reducer("low_rank:4"), min_numel=1_000_000),
        Rule(parse_reducer("int4")),
    ),
    warmup_steps=100,
)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "plan.json")
    path.write_text(plan.to_json(), encoding="utf-8")
    assert load_plan(path) == plan

shapes = {
    "embedding.weight": (1000, 256),
    "layer.weight": (1024, 1024),
    "layer.bias": (1024,),
    "head.weight": (10, 1024),
}
parameters = [Parameter(name, Entry(0, shape)) for name, shape in shapes.items()]
for parameter, (name, chosen) in zip(parameters, plan.assign(parameters, 2).items(), strict=True):
    size = format_bytes(sent_bytes(chosen.reducer, [parameter.entry], world_size=2))
    reason = f" ({chosen.dense_reason})" if chosen.dense_reason else ""
    print(f"{name}: {spec_key(chosen.reducer)}, {size} a step{reason}")
