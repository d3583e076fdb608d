from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire.bench.modes import parse_modes
from gradwire.bench.settings import CellJob, Matrix, model_of, parse_sleep
from gradwire.errors import SpecError, UnknownIdError

JOB = CellJob("mlp", 2, 12.5e6, 0.0, "shaped", parse_modes("nosync,none,fp16@5,gradwire:int4"))


@pytest.mark.parametrize("rate", [12.5e6, None])
def test_job_survives_json(rate):
    job = replace(JOB, rate_bytes_per_s=rate)
    assert CellJob.from_json(job.to_json()) == job


def test_settings_differ_with_anything_asked_for():
    changes = [
        {"seed": 1},
        {"steps": 3},
        {"rounds": 1},
        {"round_s": 1.0},
        {"ranks": 4},
        {"modes": ()},
        {"network": "lab"},
        {"latency_s": 1.0},
    ]
    assert all(replace(JOB, **change).settings() != JOB.settings() for change in changes)


@pytest.mark.parametrize("change", [{"ranks": 1}, {"steps": 1}, {"rounds": 0}, {"seed": -1}])
def test_job_refuses_numbers_out_of_range(change):
    with pytest.raises(SpecError, match="at least"):
        replace(JOB, **change)


def test_job_refuses_more_processes_than_a_machine_can_start():
    with pytest.raises(SpecError, match="ranks=65 is not at most 64"):
        replace(JOB, ranks=65)


def test_predicted_steps_follow_the_bytes():
    nosync, none, fp16, int4 = (JOB.predicted_step_s(m, 2) for m in JOB.modes)
    assert nosync < int4 < fp16 < none == JOB.slowest_step_s(2)
    assert none - nosync == pytest.approx(4 * model_of("mlp").num_parameters / 12.5e6, rel=0.01)


def test_only_real_computation_shares_the_cores():
    crowded = replace(JOB, ranks=8)
    sleeping = replace(crowded, model="accel")
    nosync = JOB.modes[0]
    assert crowded.predicted_step_s(nosync, 2) == 4 * JOB.predicted_step_s(nosync, 2)
    assert sleeping.predicted_step_s(nosync, 2) == pytest.approx(0.3)


def test_matrix_is_every_combination_and_names_its_network():
    jobs = Matrix(("mlp", "vgg"), (2, 4), (1e6, None), (0.0, 0.01)).jobs("shaped", ())
    assert len(jobs) == 16
    free = [job for job in jobs if job.network == "none"]
    assert all(job.rate_bytes_per_s is None and not job.latency_s for job in free)
    assert len(free) == 4


@pytest.mark.parametrize("name", ["gpt5", "sleep:1:2:3", "sleep:1.2.3:1:1:1", "accel:2"])
def test_unknown_models_are_refused(name):
    with pytest.raises(UnknownIdError, match="is not one of: mlp"):
        model_of(name)


@pytest.mark.parametrize("name", ["sleep:1:1:1:0", "sleep:0.00001:1:1:9"])
def test_sleep_without_parameters_is_refused(name):
    with pytest.raises(SpecError, match="at least one layer"):
        parse_sleep(name)
