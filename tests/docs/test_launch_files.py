# SPDX-License-Identifier: Apache-2.0
"""Files of the page Launch: shells accept them, their options exist, and they train."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "launch"
SCRIPTS = ("one.sh", "torchrun.sh", "slurm.sbatch")
# A GPT that is trained in a moment.
SMALL = ("width=32", "layers=1", "heads=2", "context=32")
SHORT = [
    *("--set", "steps=4", "--set", "stages.0.train.evaluation.every=4"),
    *(word for part in SMALL for word in ("--set", f"stages.0.train.model.{part}")),
]
# What sbatch knows; a name that is not one of these is a typing error.
KNOWN = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "signal", "requeue"}
KNOWN |= {"open-mode"}


def environment(**more):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **more}


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_accepts_the_script(name):
    subprocess.run(["bash", "-n", FILES / name], check=True)  # noqa: S607
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", FILES / name], check=True)  # noqa: S607


def test_options_of_sbatch_exist_and_stand_at_the_top():
    text = (FILES / "slurm.sbatch").read_text()
    asked = re.findall(r"^#SBATCH --([a-z-]+)(?:=\S+)?$", text, re.M)
    assert len(asked) == text.count("#SBATCH")
    assert set(asked) <= KNOWN
    assert text.index("set -e") > text.rindex(
        "#SBATCH"
    )  # sbatch stops reading at the first command


def job():
    return yaml.safe_load((FILES / "pytorchjob.yaml").read_text())


def test_the_job_is_one_that_the_operator_takes():
    assert (job()["apiVersion"], job()["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert isinstance(job()["spec"]["nprocPerNode"], str)
    replicas = job()["spec"]["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"}
    assert replicas["Master"]["replicas"] == 1
    for each in replicas.values():
        assert each["restartPolicy"] in {"OnFailure", "Never", "Always", "ExitCode"}
        (container,) = each["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        volumes = {volume["name"] for volume in each["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_the_mesh_of_the_job_is_as_large_as_its_pods():
    replicas = job()["spec"]["pytorchReplicaSpecs"]
    pods = sum(each["replicas"] for each in replicas.values())
    command = replicas["Master"]["template"]["spec"]["containers"][0]["command"]
    mesh = yaml.safe_load(command[command.index("--set") + 1].partition("=")[2])
    assert mesh == {"data": pods * int(job()["spec"]["nprocPerNode"])}


def test_one_process_trains(tmp_path):
    done = subprocess.run(
        ["bash", FILES / "one.sh", *SHORT],  # noqa: S607
        cwd=tmp_path,
        env=environment(OUT="gpt"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "gpt" / "manifest.json").is_file()


@pytest.mark.slow
def test_two_processes_of_torchrun_train(tmp_path):
    done = subprocess.run(
        ["bash", FILES / "torchrun.sh", *SHORT],  # noqa: S607
        cwd=tmp_path,
        env=environment(OUT="gpt", PROCESSES="2"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "grid of 2: data 2" in done.stdout + done.stderr
    assert (tmp_path / "gpt" / "manifest.json").is_file()


# The two commands of SLURM that the script calls, for nodes that are this machine.
_SRUN = """#!/usr/bin/env bash
for node in $(seq "$SLURM_NNODES"); do "$@" & done
wait
"""
_SCONTROL = """#!/usr/bin/env bash
[ "$1 $2" = "show hostnames" ] && printf '127.0.0.1\\n127.0.0.1\\n'
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


@pytest.mark.slow
def test_two_nodes_of_slurm_train(tmp_path):
    for name, text in (("srun", _SRUN), ("scontrol", _SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]"}
    env = environment(OUT="gpt", PORT=free_port(), **slurm)
    env["PATH"] = f"{tmp_path}{os.pathsep}{env['PATH']}"
    command = ["bash", FILES / "slurm.sbatch", *SHORT]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "grid of 2: data 2" in done.stdout + done.stderr
    assert (tmp_path / "gpt" / "manifest.json").is_file()


@pytest.mark.slow
def test_two_pods_of_the_job_train(tmp_path):
    """The command of the pods, with the variables that the operator sets, on this machine."""
    replicas = job()["spec"]["pytorchReplicaSpecs"]
    command = replicas["Master"]["template"]["spec"]["containers"][0]["command"]
    command = [word.replace("/shared", str(tmp_path)) for word in command]
    shared = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": job()["spec"]["nprocPerNode"],
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": free_port(),
    }
    pods = [
        subprocess.Popen(
            [*command, *SHORT],
            cwd=tmp_path,
            env=environment(**shared, PET_NODE_RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [pod.communicate()[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said
    assert (tmp_path / "trained" / "manifest.json").is_file()
