from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from expecttest import assert_expected_inline

from gradwire import doctor as doctor_checks
from gradwire.cli import main
from gradwire.cli.files import write_file
from gradwire.errors import CommandError
from gradwire.lab import netns


def run(*args: str) -> Result:
    return CliRunner().invoke(main, list(args), prog_name="gradwire")


def test_help_lists_the_commands():
    assert_expected_inline(
        run("--help").output,
        """\
Usage: gradwire [OPTIONS] COMMAND [ARGS]...

  Compressed gradient exchange for PyTorch data-parallel training.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  bench     Compare ways to exchange gradients, over models, ranks, rates...
  demo      Train a small model over a slow link, once for each way to...
  doctor    Say what can run on this machine, and the reason for each thing...
  measure   Measure how fast this machine encodes, and how fast its links are.
  plan      Choose what each bucket sends, from measured costs.
  report    Show what bench, demo or a sweep has written.
  simulate  Predict a training step, or with --sweep where which plan wins.
""",
    )


def test_demo_help():
    assert_expected_inline(
        run("demo", "--help").output,
        """\
Usage: gradwire demo [OPTIONS]

  Train a small model over a slow link, once for each way to exchange gradients.

  Plain DDP, PyTorch's own hooks and gradwire start from the same model and see
  the same data; the report says what each took and what it learned.

Options:
  --task TEXT           What to train: text or digits.  [default: text]
  --ranks INTEGER       Processes, all on this machine.  [default: 2]
  --steps INTEGER       Steps of each method. [default: the task's]
  --batch-size INTEGER  Examples of each rank. [default: the task's]
  --link TEXT           Rate, "100Mbit/s" or "unlimited". [default: the task's]
  --latency TEXT        One-way delay, such as "1ms". [default: the task's]
  --methods TEXT        What to compare; plain DDP is always there.  [default:
                        ddp,fp16,powersgd,gradwire,aqgb]
  --plan TEXT           gradwire's plan; may be repeated.
  --seed INTEGER        Seeds model and data.  [default: 0]
  --report PATH         HTML file. [default: reports/]
  --json TEXT           Write every step as JSON to a file, or - for stdout.
  --force               Overwrite files that exist.
  -h, --help            Show this message and exit.
""",
    )


def test_doctor_help():
    assert_expected_inline(
        run("doctor", "--help").output,
        """\
Usage: gradwire doctor [OPTIONS]

  Say what can run on this machine, and the reason for each thing that cannot.

Options:
  --json      Print JSON instead of a table.
  --selftest  Compare every kernel with the reference.
  -h, --help  Show this message and exit.
""",
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["xyz"], "No such command 'xyz'."),
        (["demo", "--tusk"], "No such option '--tusk'."),
        (["demo", "--task", "images"], "task='images' is not one of: digits, text"),
        (["demo", "--ranks", "two"], "Invalid value for '--ranks': 'two' is not a valid integer."),
        (["demo", "--ranks", "1"], "ranks=1 is not at least 2"),
        (["demo", "--link", "fast"], "rate='fast' is not a rate above 0"),
        (["demo", "--latency", "1"], "duration='1' is not a duration"),
        (["demo", "--methods", "ddp,zip"], "method='zip' is not one of: ddp, fp16, powersgd"),
        (["demo", "--plan", "zip9"], "'zip9' is not one of: none, bf16"),
        (["demo", "--plan", "gone.json"], "plan='gone.json' is not the path of an existing file"),
        (["demo", "--report", "."], ". is a folder, not a file to write"),
        (["demo", "--report", "/dev/null/x.html"], "x.html cannot be written: "),
        (["demo", "--report", "x", "--json", "x"], "x cannot hold two outputs"),
        (["demo", "--methods", "ddp", "--plan", "int4"], "--plan needs gradwire among the"),
        (["bench", "--models", "gpt5"], "model='gpt5' is not one of: mlp, vgg"),
        (["bench", "--ranks", "2,two"], "ranks='two' is not a whole number"),
        (["bench", "--ranks", "1"], "ranks=1 is not at least 2"),
        (["bench", "--rates", "fast"], "rate='fast' is not a rate above 0"),
        (["bench", "--latency", "1"], "duration='1' is not a duration"),
        (["bench", "--modes", "none,zip"], "mode='zip' is not one of: nosync, none"),
        (["bench", "--modes", "none@0"], "mode='none@0' is not a name with a bucket size"),
        (["bench", "--steps", "1"], "steps=1 is not at least 2"),
        (["bench", "--out", "."], ". is a folder, not a file to write"),
        (["bench", "--resume", "--force"], "--resume keeps what --force overwrites"),
        (["demo", "--seed", str(1 << 63)], "is not less than 2 to the power of 63"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(args, message):
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("gradwire: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_demo_keeps_a_report_that_exists(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    result = run("demo", "--report", str(path))
    assert (result.exit_code, path.read_text()) == (2, "old")
    assert result.stderr == f"gradwire: {path} exists; --force overwrites it\n"


def test_demo_names_the_extra_that_is_missing(monkeypatch):
    monkeypatch.setattr(doctor_checks, "missing_extras", lambda: ["matplotlib"])
    result = run("demo")
    assert result.exit_code == 1
    assert result.stderr == ("gradwire: the demo needs matplotlib: pip install 'gradwire[demo]'\n")


def test_bench_lists_models_and_modes():
    output = run("bench", "--list").output
    assert all(name in output for name in ("resnet", "accel", "powersgd_batched", "gradwire:PLAN"))


def test_bench_keeps_a_result_that_exists(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    result = run("bench", "--out", str(path))
    assert (result.exit_code, path.read_text()) == (2, "old")
    assert "exists; --resume completes it, --force overwrites it" in result.stderr
    assert "is not JSON" in run("bench", "--out", str(path), "--resume").stderr


def test_bench_says_what_the_lab_lacks(monkeypatch, tmp_path):
    monkeypatch.setattr(netns, "missing", lambda: "network namespaces need root")
    result = run("bench", "--lab", "--out", str(tmp_path / "result.json"))
    assert result.exit_code == 1
    assert "gradwire: network namespaces need root; without --lab" in result.stderr


def test_doctor_gives_a_reason_for_what_cannot_run():
    result = run("doctor", "--json")
    assert result.exit_code == 0
    checks = {c["name"]: c for c in json.loads(result.stdout)["checks"]}
    assert {"Python", "torch", "Gloo", "NCCL", "matplotlib", "root"} <= set(checks)
    assert checks["Gloo"]["reason"] is None
    assert all(c["reason"] != "" for c in checks.values())


def test_doctor_fails_where_something_required_is_missing(monkeypatch):
    torch = doctor_checks.Check("base", "torch", "", "does not load: no", is_required=True)
    monkeypatch.setattr(doctor_checks, "examine", lambda: [torch])
    result = run("doctor")
    assert result.exit_code == 1
    assert "does not load: no" in result.stdout
    assert result.stderr == "gradwire: cannot work without torch\n"


@pytest.mark.parametrize("module", ["gradwire.cli", "gradwire.__main__"])
def test_command_line_starts_without_torch(module):
    code = f"import {module}, sys; print(sorted({{'torch', 'numpy', 'rich'}} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_python_m_gradwire_is_the_command_line():
    output = subprocess.check_output([sys.executable, "-m", "gradwire", "--version"], text=True)
    assert "gradwire" in output


def test_a_disk_that_is_full_leaves_no_half_file(tmp_path, monkeypatch):
    def fill(path, text, **_):
        path.write_bytes(text[:3].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fill)
    with pytest.raises(CommandError, match="cannot be written: No space left"):
        write_file(tmp_path / "a.json", "whole")
    assert list(tmp_path.iterdir()) == []
