from __future__ import annotations

import pytest
import torch

from gradwire.demo import tasks
from gradwire.demo.settings import TASKS
from gradwire.errors import UnknownIdError


@pytest.fixture(scope="module")
def text() -> tasks.Text:
    return tasks.Text(batch_size=4)


@pytest.fixture(scope="module")
def digits() -> tasks.Digits:
    return tasks.Digits(batch_size=64)


def test_text_is_some_megabytes_with_a_twentieth_held_out(text: tasks.Text):
    assert 2_000_000 < text.train.numel() < 7_000_000
    assert 0.01 < text.held.numel() / text.train.numel() < 0.15


def test_text_is_the_same_each_time():
    assert tasks.standard_library_text() == tasks.standard_library_text()


def test_text_skips_what_cannot_be_read(tmp_path, monkeypatch):
    for number in range(3):
        (tmp_path / f"m{number}.py").write_bytes(b"x" * 10)
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "huge.py").write_bytes(b"x" * 300_000)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "t.py").write_bytes(b"y")
    monkeypatch.setattr(tasks.sysconfig, "get_path", lambda _name: str(tmp_path))
    train, held_out = tasks.standard_library_text()
    assert (len(train) + len(held_out), set(train + held_out)) == (30, {ord("x")})


def test_text_targets_are_the_next_bytes(text: tasks.Text):
    inputs, targets = text.batch(0, 2, seed=0, step=0)
    assert inputs.shape == targets.shape == (4, 64)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


@pytest.mark.parametrize("name", ["text", "digits"])
def test_batches_depend_on_seed_step_and_rank_only(name: str, request):
    task: tasks.Task = request.getfixturevalue(name)
    first = task.batch(0, 2, seed=3, step=5)
    again = task.batch(0, 2, seed=3, step=5)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    others = [(1, 3, 5), (0, 4, 5), (0, 3, 6)]
    for rank, seed, step in others:
        assert not torch.equal(task.batch(rank, 2, seed=seed, step=step)[0], first[0])


@pytest.mark.parametrize("name", ["text", "digits"])
def test_models_are_equal_for_equal_seeds(name: str, request):
    task: tasks.Task = request.getfixturevalue(name)
    one, same, other = (list(task.model(seed).parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["text", "digits"])
def test_predicted_size_is_the_model_s(name: str, request):
    task: tasks.Task = request.getfixturevalue(name)
    numel = sum(p.numel() for p in task.model(0).parameters())
    assert TASKS[name].num_parameters == pytest.approx(numel, rel=0.01)


def test_evaluate_splits_the_held_out_data_between_ranks(digits: tasks.Digits):
    module = digits.model(0)
    whole = tasks.evaluate(digits, module, 0, 1)
    parts = [tasks.evaluate(digits, module, rank, 3) for rank in range(3)]
    assert whole.num_targets == digits.num_held_out == sum(p.num_targets for p in parts)
    assert whole.num_correct == sum(p.num_correct for p in parts)
    assert whole.loss_sum == pytest.approx(sum(p.loss_sum for p in parts))
    assert module.training


def test_digits_are_learned_by_one_process(digits: tasks.Digits):
    module = digits.model(0)
    optimiser = digits.optimiser(module)
    for step in range(40):
        optimiser.zero_grad()
        tasks.loss_of(module, *digits.batch(0, 1, seed=0, step=step)).backward()
        optimiser.step()
    score = tasks.evaluate(digits, module, 0, 1)
    assert score.num_correct > 0.5 * score.num_targets


def test_build_names_the_tasks_there_are():
    with pytest.raises(UnknownIdError, match="digits, text"):
        tasks.build("images", 4)
