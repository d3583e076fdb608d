"""`gradwire measure`, `gradwire plan`, and the self-test of `gradwire doctor`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from expecttest import assert_expected_inline

import gradwire
from gradwire.cli import main
from gradwire.hardware import Device, Hardware, Line, LinkSpeed
from gradwire.measure import run as measuring
from gradwire.measure import selftest
from gradwire.plan import Plan
from gradwire.workload import Layer, Workload, parameter

NAMES = ("none", "bf16", "int8", "int6", "nearest4", "int2")
MODEL = """
import torch
def make():
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    return model, lambda m: m(torch.ones(4, 32)).sum(), torch.optim.SGD(model.parameters())
def wrong():
    return torch.nn.Linear(1, 1)
"""


def run(*args):
    return CliRunner().invoke(main, list(args), prog_name="gradwire")


def hardware(*, ranks=2, rate=1.25e7, names=NAMES):
    kernels = {f"{s} {n}": Line(1e-5, 2e-10, 0.01) for n in names for s in ("encode", "decode")}
    link = LinkSpeed(1e-3, rate, 0.05, {"exchange": Line(1e-3, 1 / rate, 0.05)}, ranks)
    return Hardware(Device("cpu", "made", 2, ("avx2",), interference=0.5), kernels, link, link)


@pytest.fixture
def files(tmp_path):
    layers = tuple(
        Layer(f"l{i}", (parameter(f"l{i}.weight", (1000, 1000)),), 0.005, 0.01) for i in range(4)
    )
    work, machine = tmp_path / "work.json", tmp_path / "machine.json"
    work.write_text(Workload("four", layers, 0.001).to_json())
    machine.write_text(hardware().to_json())
    return ("--workload", str(work), "--hardware", str(machine), "--ranks", "4")


def test_plan_says_what_it_chose_and_why(files):
    result = run("plan", *files)
    assert result.exit_code == 0, result.output
    assert "four on 4 ranks, 100 Mbit/s, 1 ms" in result.output
    assert "nearest4" in result.output
    assert "Why: the most exact of the fastest" in " ".join(result.output.split())
    assert "Candidates" not in result.output


def test_plan_explains_candidates_and_break_even(files):
    text = " ".join(run("plan", *files, "--explain").output.split())
    assert "Candidates for bucket 0" in text
    assert "int2: 14.3% more steps, 10.0% allowed" in text
    assert "Pays on links slower than" in text


def test_plan_as_json_has_every_candidate(files):
    data = json.loads(run("plan", *files, "--explain", "--json").stdout)
    assert Plan.from_json(json.dumps(data["plan"])) == Plan.of("nearest4")
    options = {o["name"]: o for o in data["buckets"][0]["options"]}
    assert options["int6"]["step_s"] < options["none"]["step_s"]
    assert options["int2"]["step_s"] is None
    assert options["int2"]["harm"] > 0.1 > options["nearest4"]["harm"] > 0
    assert data["break_even"]["int6"]["overlapped"] > 1.25e7
    assert data["step_s"] < data["plain_s"]


def test_plan_is_written_and_can_be_read(files, tmp_path):
    out = tmp_path / "plan.json"
    result = run("plan", *files, "--max-harm", "0.005", "--out", str(out))
    assert f"Written: {out}" in result.output
    assert gradwire.load_plan(out) == Plan.of("int6")
    assert run("plan", *files, "--out", str(out)).exit_code == 2  # exists


def test_plan_takes_another_link_and_other_candidates(files):
    fast = run("plan", *files, "--link", "1Tbit/s", "--latency", "1us", "--json")
    assert Plan.from_json(json.dumps(json.loads(fast.stdout)["plan"])) == Plan.of("none")
    eight = run("plan", *files, "--candidates", "int8", "--bucket-cap-mb", "5", "--json")
    data = json.loads(eight.stdout)
    assert Plan.from_json(json.dumps(data["plan"])) == Plan.of("int8")
    assert data["bucket_cap_mb"] == 5


def test_plan_keeps_to_errors_that_were_measured(files, tmp_path):
    own = tmp_path / "own.json"
    own.write_text(json.dumps({f"l{i}.weight": {"nearest4": 0.5} for i in range(4)}))
    data = json.loads(run("plan", *files, "--errors", str(own), "--json").stdout)
    assert Plan.from_json(json.dumps(data["plan"])) == Plan.of("int6")


def test_plan_wants_a_measured_link(files, tmp_path):
    path = tmp_path / "alone.json"
    path.write_text(hardware(ranks=0, rate=float("inf")).to_json())
    args = (*files[:3], str(path), "--ranks", "4")
    result = run("plan", *args)
    assert result.exit_code == 2
    assert "has no measured link; give --link" in result.stderr
    assert run("plan", *args, "--link", "100Mbit/s", "--latency", "1ms").exit_code == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ranks", "0"], "world_size=0 is not a whole number of at least 1"),
        (["--candidates", "zip"], "'zip' is not one of: none, bf16"),
        (["--max-harm", "-1"], "Limits.max_harm=-1.0 is not at least 0"),
        (["--link", "fast"], "rate='fast' is not a rate above 0"),
        (["--bucket-cap-mb", "0"], "cap_bytes=0 is not a whole number of at least 1"),
    ],
)
def test_mistakes_in_a_plan_are_told_in_one_line(files, args, message):
    result = run("plan", *files, *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ranks", "1"], "--ranks 1 is not at least 2: a link has two ends"),
        (["--errors", "x.json"], "--errors needs --model"),
        (["--link", "1Gbit/s"], "--link and --latency need --ranks"),
        (["--model", "m:f", "--ranks", "2"], "--model goes with neither --ranks nor --link"),
        (["--model", "m"], "--model m is not of the form module:function"),
        (["--model", "no_such_module:f"], "cannot be loaded: No module named 'no_such_module'"),
    ],
)
def test_mistakes_in_a_measurement_are_told_in_one_line(args, message):
    result = run("measure", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_measure_shows_and_writes_the_hardware(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "measure_here", lambda _: hardware())
    out = tmp_path / "machine.json"
    result = run("measure", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "made (cpu, 2 cores): avx2" in result.output
    assert "100 Mbit/s" in result.output
    assert Hardware.from_json(out.read_text()) == hardware()


def test_measure_says_what_scatters(monkeypatch):
    shaky = hardware(ranks=0)
    shaky.kernels["encode int8"] = Line(0.0, 1e-9, 0.5)  # type: ignore[index]
    monkeypatch.setattr(measuring, "measure_here", lambda _: shaky)
    text = " ".join(run("measure").output.split())
    assert "1 of 12 lines scatter by more than 20%" in text
    assert "not measured" in text


def test_measure_here_is_cached(monkeypatch, tmp_path):
    from gradwire.measure import cache  # noqa: PLC0415

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = measuring.Options(specs=("int4",))
    found = measuring.measure_here(options)
    assert {"encode int4", "decode int4", "hadamard, plain"} <= set(found.kernels)
    assert found.within == measuring.UNMEASURED
    assert cache.load(cache.Machine.here()) == cache.Cached(found, None)
    assert found.fingerprint == cache.Machine.here().fingerprint()


def test_measure_takes_a_model_from_a_function(monkeypatch, tmp_path):
    (tmp_path / "made_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    result = run("measure", "--model", "made_model:make", "--json")
    work = Workload.from_json(result.stdout)
    assert [layer.name for layer in work.layers] == ["0", "2"]
    assert work.optimiser_s > 0
    shown = run("measure", "--model", "made_model:make").output
    assert "2,632 parameters" in shown
    assert run("measure", "--model", "made_model:make", "--errors", "own.json").exit_code == 0
    own = json.loads((tmp_path / "own.json").read_text())
    assert 0 < own["0.weight"]["int4"] < 1
    wrong = run("measure", "--model", "made_model:wrong")
    assert wrong.exit_code == 1
    assert "returned Linear, not (model, loss)" in wrong.stderr


def test_selftest_fails_where_a_kernel_differs(monkeypatch):
    parities = [selftest.Parity("sign_encode", 3), selftest.Parity("hadamard", 1, "2 of 5 values")]
    monkeypatch.setattr(selftest, "check_kernels", lambda _: parities)
    result = run("doctor", "--selftest")
    assert result.exit_code == 1
    assert "2 of 5 values" in result.stdout
    assert result.stderr == (
        "gradwire: hadamard differ from the reference; set GRADWIRE_BACKEND=reference\n"
    )
    data = json.loads(run("doctor", "--selftest", "--json").stdout)
    assert data["kernels"][0] == {"op": "sign_encode", "comparisons": 3, "mismatch": None}


def test_plan_help():
    assert_expected_inline(
        run("plan", "--help").output,
        """\
Usage: gradwire plan [OPTIONS]

  Choose what each bucket sends, from measured costs.

  Of the plans that are close to the fastest, the most exact one is taken;
  compression must win by more than 5 %.

Options:
  --workload FILE           From `gradwire measure --model`.  [required]
  --hardware FILE           From `gradwire measure --out`.  [required]
  --ranks INTEGER           Number of ranks.  [default: 2]
  --ranks-per-node INTEGER  Of those.  [default: 1]
  --link TEXT               Another rate than the measured one, such as
                            "1Gbit/s".
  --latency TEXT            Another one-way delay, such as "1ms".
  --max-harm FLOAT          Share of more steps allowed.  [default: 0.1]
  --errors FILE             From `gradwire measure --model --errors`.
  --candidates TEXT         Short names of what may be used, such as
                            none,int8,int4.
  --bucket-cap-mb INTEGER   DDP's bucket size, if it is given. [MiB]
  --explain                 Show every candidate and break-even link speeds.
  --json                    Print JSON instead of tables.
  --out PATH                Write the plan, for gradwire.attach(ddp, FILE).
  --force                   Overwrite a file that exists.
  -h, --help                Show this message and exit.
""",
    )


def test_measure_help():
    assert_expected_inline(
        run("measure", "--help").output,
        """\
Usage: gradwire measure [OPTIONS]

  Measure how fast this machine encodes, and how fast its links are.

  Started by torchrun, it measures the links between those ranks; with --ranks,
  between processes of this machine. With --model, the layers of a model.
  `gradwire plan` takes what --out writes.

Options:
  --ranks INTEGER           Processes to start here, to measure links between
                            them.
  --ranks-per-node INTEGER  Consecutive ranks that share a node.
  --link TEXT               Imitate a rate, such as "100Mbit/s"; needs --ranks.
  --latency TEXT            Imitate a one-way delay, such as "1ms"; needs
                            --ranks.
  --model TEXT              Measure a model instead: module:function, which
                            makes it.
  --thorough                Take longer, for numbers that scatter less.
  --json                    Print JSON instead of tables.
  --out PATH                Write the JSON to a file.
  --errors PATH             Write what codecs lose of the gradients.
  --force                   Overwrite a file that exists.
  -h, --help                Show this message and exit.
""",
    )
