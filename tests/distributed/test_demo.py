from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

# The demo runs in a folder of its own, where a relative search path leads nowhere.
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
TINY = ["--task", "digits", "--steps", "3", "--link", "1Gbit/s", "--latency", "0s"]


def demo(*args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradwire", "demo", *TINY, *args],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_demo_compares_all_methods_end_to_end(tmp_path: Path):
    done = demo("--json", "-", "--plan", "auto", "--plan", "int6", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    methods = {m["name"]: m for m in result["methods"]}
    assert list(methods) == ["ddp", "fp16", "powersgd", "gradwire:auto", "gradwire:int6", "aqgb"]
    assert all(len(set(m["digests"])) == 1 for m in methods.values())
    first_losses = {m["steps"][0]["loss"] for m in methods.values()}
    assert len(first_losses) == 1
    sent = {name: m["steps"][2]["sent_bytes"] for name, m in methods.items()}
    numel = result["settings"]["num_parameters"]
    assert 4 * numel <= sent["ddp"] <= 4 * numel + 100_000
    assert 0.45 < sent["fp16"] / sent["ddp"] < 0.55
    assert 0.1 < sent["gradwire:int6"] / sent["ddp"] < 0.2
    assert ": " in methods["gradwire:auto"]["why"]
    assert sent["powersgd"] < 0.1 * sent["ddp"]
    (report,) = (tmp_path / "reports").glob("demo-digits-*.html")
    assert "<svg" in report.read_text()
    assert 0.02 < sent["aqgb"] / sent["ddp"] < 0.15
    assert all(0 < b < 5 for name, b in methods["aqgb"]["bits"].items() if name != "0")
    kinds = {span["kind"] for span in methods["aqgb"]["timeline"]["spans"]}
    assert {"forward", "backward", "encode", "transfer", "decode"} <= kinds
    assert "Timeline of a step: gradwire AQGB" in report.read_text()
    assert f"Written: reports/{report.name}" in done.stderr


def test_demo_interrupted_ends_with_130(tmp_path: Path):
    running = subprocess.Popen(
        [sys.executable, "-m", "gradwire", "demo", "--task", "digits", "--steps", "100000"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running:
        assert running.stdout.readline().startswith("Training a convolutional net")
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert errors.strip() == "gradwire: interrupted"
