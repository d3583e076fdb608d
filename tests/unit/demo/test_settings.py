from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire.demo.settings import METHODS, Job, choose_methods
from gradwire.errors import SpecError, UnknownIdError
from gradwire.plan import Plan

JOB = Job("text", 2, 30, 8, 0, 12.5e6, 0.001, choose_methods(METHODS, []))


def test_choose_methods_puts_plain_ddp_first_and_gradwire_last():
    assert [m.name for m in choose_methods(METHODS, [])] == [
        "ddp",
        "fp16",
        "powersgd",
        "gradwire:auto",
        "aqgb",
    ]


def test_choose_methods_takes_plan_files(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(Plan.of("int2").to_json())
    *_, method = choose_methods(["gradwire"], [str(path)])
    assert (method.label, method.plan) == ("gradwire mine", str(path))


@pytest.mark.parametrize(("names", "plans"), [(["nccl"], []), (["gradwire"], ["zip9"])])
def test_choose_methods_refuses_unknown_names(names, plans):
    with pytest.raises(UnknownIdError, match="is not one of"):
        choose_methods(names, plans)


def test_powersgd_gets_one_bucket():
    (_, method) = choose_methods(["powersgd"], [])
    assert method.bucket_cap_mb == 1000


@pytest.mark.parametrize("change", [{"ranks": 1}, {"steps": 0}, {"batch_size": 0}, {"seed": -1}])
def test_job_refuses_numbers_out_of_range(change):
    with pytest.raises(SpecError, match="at least"):
        replace(JOB, **change)


def test_job_survives_json():
    job = replace(JOB, link_bytes_per_s=float("inf"))
    assert Job.from_json(job.to_json()) == job


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 31])
def test_job_validates_after_the_last_step(steps):
    job = replace(JOB, steps=steps)
    points = [s for s in range(steps) if job.validates_after(s)]
    assert points[-1] == steps - 1
    assert len(points) == min(2, steps)


def test_predicted_bytes_fall_with_the_method():
    sizes = [JOB.predicted_bytes(m) for m in JOB.methods]
    assert sizes[0] == pytest.approx(4 * 10.9e6, rel=0.01)
    assert sizes[1] == pytest.approx(sizes[0] / 2)
    assert sizes[3] == pytest.approx(sizes[0] / 5.22, rel=0.01)


def test_predicted_bytes_of_a_plan_without_rules_are_those_of_plain_ddp(tmp_path):
    path = tmp_path / "empty.json"
    path.write_text(Plan(()).to_json(), encoding="utf-8")
    plain, empty = choose_methods(["gradwire"], [str(path)])
    assert JOB.predicted_bytes(empty) == JOB.predicted_bytes(plain)


def test_predicted_step_without_a_limit_is_compute_and_latency():
    job = replace(JOB, link_bytes_per_s=float("inf"), latency_s=0.0)
    alone, shared = (job.predicted_step_s(job.methods[0], cores) for cores in (2, 1))
    assert shared == 2 * alone
