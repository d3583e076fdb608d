"""The scripts and manifests for many nodes: they parse, and start the tested script rightly."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "many_nodes"
NEEDED = set(re.findall(r"\$\{(\w+):\?", (FOLDER / "launch.sh").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["launch.sh", "slurm.sh"])
def test_script_has_no_syntax_error(name):
    shell = "sh" if name == "launch.sh" else "bash"
    subprocess.run([shell, "-n", FOLDER / name], check=True)


def test_launch_script_asks_for_what_differs_between_clusters():
    assert {"NODES", "NODE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME"} == NEEDED


def test_slurm_script_sets_what_the_launch_script_needs():
    text = (FOLDER / "slurm.sh").read_text(encoding="utf-8")
    assert set(re.findall(r"\b([A-Z_]+)=", text)) >= NEEDED
    (nodes,) = re.findall(r"^#SBATCH --nodes=(\d+)$", text, re.MULTILINE)
    assert int(nodes) > 1
    assert "#SBATCH --ntasks-per-node=1\n" in text  # launch.sh starts the ranks of its node
    assert text.rstrip().endswith("sh launch.sh'")


def test_kubernetes_manifest_sets_what_the_launch_script_needs():
    service, job = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
    name, pods = job["metadata"]["name"], job["spec"]["template"]["spec"]
    (container,) = pods["containers"]
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    shell, flag, command = container["command"]
    assert (shell, flag) == ("sh", "-c")
    assert command == "NODE=$JOB_COMPLETION_INDEX sh /many_nodes/launch.sh"
    assert given.keys() | {"NODE"} >= NEEDED
    assert job["spec"]["completionMode"] == "Indexed"
    completions = job["spec"]["completions"]
    assert int(given["NODES"]) == completions == job["spec"]["parallelism"] > 1
    # Pod 0 is found by its name in the headless service.
    assert given["MASTER_ADDR"] == f"{name}-0.{service['metadata']['name']}"
    assert pods["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
