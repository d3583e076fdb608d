"""Step statistics reach each logger in one call, without a network."""

from __future__ import annotations

import pytest

from gradwire.engine.stats import BucketStats, StepStats
from gradwire.integrations.loggers import log_to

STEPS = [
    StepStats(step, (BucketStats(0, 2, 4000, 500, 500, 0.1, 0.2, 0.1, 0.3),), 0.3, 0.2, True)
    for step in range(2)
]


def test_tensorboard_has_a_curve_for_each_number(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", exc_type=ImportError)
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        write = log_to(writer)
        for stats in STEPS:
            write(stats)
    events = reader.EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == set(STEPS[0].scalars())
    curve = events.Scalars("gradwire/sent_bytes")
    assert [(event.step, event.value) for event in curve] == [(0, 500.0), (1, 500.0)]


def test_prometheus_has_a_gauge_for_each_number():
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    write = log_to(registry)
    for stats in STEPS:
        write(stats)
    text = prometheus.generate_latest(registry).decode()
    assert "gradwire_sent_bytes 500.0" in text
    assert "gradwire_step 1.0" in text


@pytest.mark.filterwarnings("ignore")  # of the package's own
def test_wandb_offline_takes_the_numbers(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    settings = wandb.Settings(silent=True, x_disable_stats=True)
    with wandb.init(project="gradwire", mode="offline", dir=tmp_path, settings=settings) as run:
        write = log_to(run)
        for stats in STEPS:
            write(stats)
        assert run.summary["gradwire/sent_bytes"] == 500.0
    (saved,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert b"gradwire/sent_bytes" in saved.read_bytes()


@pytest.mark.filterwarnings("ignore")  # of the package's own
def test_trackio_takes_the_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trackio = pytest.importorskip("trackio")
    run = trackio.init(project="gradwire", auto_log_gpu=False, auto_log_cpu=False)
    write = log_to(run)
    for stats in STEPS:
        write(stats)
    trackio.finish()
    saved = b"".join(path.read_bytes() for path in tmp_path.glob("gradwire.db*"))
    assert b"gradwire/sent_bytes" in saved
