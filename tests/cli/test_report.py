from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from expecttest import assert_expected_inline

from gradwire.cli import main
from gradwire.cli import report as report_command
from made_results import bench_result, demo_result, sweep_result


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, args)], prog_name="gradwire")


@pytest.fixture
def bench_file(tmp_path: Path) -> Path:
    path = tmp_path / "bench.json"
    path.write_text(bench_result().to_json(), encoding="utf-8")
    return path


@pytest.fixture
def demo_file(tmp_path: Path) -> Path:
    path = tmp_path / "demo.json"
    path.write_text(demo_result().to_json(), encoding="utf-8")
    return path


def test_report_help():
    assert_expected_inline(
        run("--help").output,
        """\
Usage: gradwire report [OPTIONS] RESULT [OTHER]

  Show what bench, demo or a sweep has written.

  As text, or as what the options name; FILE may be - for standard output. With
  OTHER, a later result of bench or demo, the two are compared cell by cell, and
  all else is about OTHER.

Options:
  --html FILE                 Write one page with every plot.
  --json FILE                 Write the summary for machines.
  --csv FILE                  Write one row a cell and mode.
  --euro-per-rank-hour FLOAT  Price; adds the cost of a training.
  --force                     Overwrite files that exist.
  -h, --help                  Show this message and exit.
""",
    )


def test_report_prints_a_bench(bench_file: Path):
    done = run(bench_file)
    assert done.exit_code == 0
    assert "Times plain DDP's speed" in done.stdout
    assert "Fastest: gradwire int2, 133 ms a step" in done.stdout


def test_report_prints_a_demo_as_the_demo_does(demo_file: Path):
    done = run(demo_file)
    assert done.exit_code == 0
    assert "gradwire int4 against plain DDP: WINS time" in done.stdout


def test_report_compares_two_files(bench_file: Path, demo_file: Path):
    assert "within" in run(bench_file, bench_file).stdout
    assert "Only in the first: text, 2 ranks, 200 Mbit/s" in run(demo_file, bench_file).stdout


def test_report_writes_files_and_names_them(bench_file: Path, tmp_path: Path):
    targets = [tmp_path / "new" / name for name in ("page.html", "sum.json", "rows.csv")]
    done = run(bench_file, "--html", targets[0], "--json", targets[1], "--csv", targets[2])
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [f"Written: {target}" for target in targets]
    assert targets[0].read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(targets[1].read_text(encoding="utf-8"))["format"] == 1
    assert targets[2].read_text(encoding="utf-8").count("\n") == 15


def test_report_writes_a_demo_page(demo_file: Path, tmp_path: Path):
    assert run(demo_file, "--html", tmp_path / "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Does compressing gradients pay on this link?" in page


def test_report_shows_a_sweep_and_says_what_it_lacks(bench_file: Path, tmp_path: Path):
    path = tmp_path / "sweep.json"
    path.write_text(sweep_result().to_json(), encoding="utf-8")
    assert "Everything here is simulated" in run(path).stdout
    assert run(path, "--html", tmp_path / "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Which plan wins where?" in page
    refused = run(path, "--csv", "-")
    assert refused.stderr == f"gradwire: {path} holds a sweep, which has no --csv\n"
    assert "shown by itself" in run(bench_file, path).stderr
    assert "shown by itself" in run(path, "--euro-per-rank-hour", "1").stderr


def test_report_keeps_standard_output_for_what_was_asked(bench_file: Path, tmp_path: Path):
    done = run(bench_file, "--json", "-", "--csv", tmp_path / "rows.csv")
    assert json.loads(done.stdout)["format"] == 1
    assert done.stderr == f"Written: {tmp_path / 'rows.csv'}\n"


def test_report_adds_the_cost(demo_file: Path):
    assert "EUR" in run(demo_file, "--euro-per-rank-hour", "2.5").stdout
    assert "EUR" not in run(demo_file).stdout


def test_report_never_overwrites_unasked(bench_file: Path, tmp_path: Path):
    target = tmp_path / "rows.csv"
    target.write_text("mine", encoding="utf-8")
    refused = run(bench_file, "--csv", target)
    assert (refused.exit_code, target.read_text(encoding="utf-8")) == (2, "mine")
    assert refused.stderr == f"gradwire: {target} exists; --force overwrites it\n"
    assert run(bench_file, "--csv", target, "--force").exit_code == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--json", "-", "--csv", "-"], "standard output cannot hold two outputs"),
        (["--json", "x", "--csv", "x"], "x cannot hold two outputs"),
        (["--euro-per-rank-hour", "-1"], "--euro-per-rank-hour -1.0 is not above 0"),
    ],
)
def test_report_refuses_wrong_usage(bench_file: Path, args: list[str], message: str):
    done = run(bench_file, *args)
    assert (done.exit_code, done.stderr) == (2, f"gradwire: {message}\n")


def test_report_refuses_what_is_no_result(tmp_path: Path):
    assert run(tmp_path / "none.json").exit_code == 2
    path = tmp_path / "other.json"
    for text, message in (
        ("{}", "result format=None"),
        ("nothing", "JSON"),
        ("[1]", "format=[1]"),
        ('{"format": 1}', "content='format' is not what gradwire bench, demo --json or"),
    ):
        path.write_text(text, encoding="utf-8")
        done = run(path)
        assert done.exit_code == 2
        assert message in done.stderr
    path.write_bytes(b"\xff\xfe\x00")
    assert (run(path).exit_code, "is no text" in run(path).stderr) == (1, True)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rate_bytes_per_s", "fast", "Cell.rate_bytes_per_s='fast' is not float or null"),
        ("network", "wifi", "Cell.network='wifi' is not one of lab, shaped, none"),
        ("latency_s", None, "Cell.latency_s=None is not float"),
        ("modes", ["x"], "is not complete"),
    ],
)
def test_report_names_the_field_of_a_wrong_type(
    bench_file: Path, field: str, value: object, message: str
):
    data = json.loads(bench_file.read_text(encoding="utf-8"))
    data["cells"][1][field] = value
    bench_file.write_text(json.dumps(data), encoding="utf-8")
    done = run(bench_file)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"gradwire: {bench_file} cannot be shown: ")
    assert message in done.stderr


def test_report_never_overwrites_its_source(bench_file: Path):
    text = bench_file.read_text(encoding="utf-8")
    done = run(bench_file, "--csv", bench_file, "--force")
    assert done.exit_code == 2
    assert done.stderr == f"gradwire: {bench_file} is what the report is made from\n"
    assert bench_file.read_text(encoding="utf-8") == text


def test_report_says_what_drawing_needs(bench_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report_command, "missing_extras", lambda: ["scikit-learn", "jinja2"])
    done = run(bench_file, "--html", "x.html")
    assert done.exit_code == 1
    assert done.stderr == "gradwire: --html needs jinja2: pip install 'gradwire[demo]'\n"
    assert run(bench_file).exit_code == 0
