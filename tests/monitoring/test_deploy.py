"""The files of examples/deploy: their syntax, and that what they name exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.monitoring.promtool import EXAMPLES, check_results, promtool
from tests.support import missing

FOLDER = EXAMPLES / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
KEDA: dict[str, Any] = yaml.safe_load((FOLDER / "keda.yaml").read_text(encoding="utf-8"))

#: The schema of docker-compose, where `make setup` and tox install it (dependency group `monitors`).
SCHEMA = Path(sys.prefix, "monitors", "compose", "config", "compose_spec.json")


def test_compose_file_has_the_shape_of_the_specification() -> None:
    if not SCHEMA.exists():
        missing("no docker-compose: `make setup` installs it (dependency group `monitors`)")
    # The schema of the last release in Python is older than `name`.
    rest = {key: value for key, value in COMPOSE.items() if key != "name"}
    jsonschema.Draft7Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(rest)
    for service in SERVICES.values():
        for other, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[other]


def test_a_misspelt_option_of_a_service_is_found() -> None:
    if not SCHEMA.exists():
        missing("no docker-compose: `make setup` installs it (dependency group `monitors`)")
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate({"services": {"redis": {"image": "redis", "healthchek": {}}}})


def test_compose_file_names_what_exists() -> None:
    for service in SERVICES.values():
        if build := service.get("build"):
            root = FOLDER / build["context"]
            dockerfile = root / build["dockerfile"]
            copied = re.findall(r"^COPY (.+) \S+$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
            assert copied
            assert all((root / name).exists() for names in copied for name in names.split())
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (FOLDER / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"]


def test_compose_file_has_a_redis_that_keeps_tasks_and_two_workers_and_one_of_everything_else() -> None:
    options = SERVICES["redis"]["command"]
    assert options[options.index("--appendonly") + 1] == "yes"
    assert options[options.index("--maxmemory-policy") + 1] == "noeviction"
    numbers = {name: service.get("deploy", {}).get("replicas", 1) for name, service in SERVICES.items()}
    assert numbers == {"redis": 1, "worker": 2, "transfer": 1, "metrics": 1, "prometheus": 1}


def test_docker_takes_the_compose_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, timeout=60).returncode:
        pytest.skip("no `docker compose`")
    command = [docker, "compose", "--file", str(FOLDER / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if service["image"] == "shop"])
def test_celery_knows_the_commands(name: str) -> None:
    assert (FOLDER / "Dockerfile").read_text(encoding="utf-8").endswith('ENTRYPOINT ["celery", "-A", "shop"]\n')
    command = [sys.executable, "-m", "celery", "-A", "shop", *SERVICES[name]["command"], "--help"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert f"delayq {SERVICES[name]['command'][-1]}" in done.stdout or "worker [OPTIONS]" in done.stdout


def test_celery_knows_the_health_checks() -> None:
    checks = [service["healthcheck"]["test"] for service in SERVICES.values() if "healthcheck" in service]
    asked = [check[check.index("delayq") :] for check in checks if "delayq" in check]
    assert asked
    for arguments in asked:
        command = [sys.executable, "-m", "celery", "-A", "shop", *arguments, "--help"]
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        assert f"delayq {arguments[1]}" in done.stdout


def test_the_app_takes_the_broker_of_the_compose_file() -> None:
    url = SERVICES["worker"]["environment"]["BROKER_URL"]
    check = "import shop; shop.delayq; print(shop.app.connection_for_write().hostname, *shop.app.conf.beat_schedule)"
    environment = {**os.environ, "BROKER_URL": url}
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=100
    )
    assert url == "delayq://redis:6379/0"
    assert done.stdout.split() == ["redis", "report"], done.stderr


def test_prometheus_takes_its_configuration_beside_the_alerts(tmp_path: Path) -> None:
    mounted = [volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"] if volume.startswith(".")]
    for source, target in mounted:
        shutil.copy(FOLDER / source, tmp_path / Path(target).name)
    promtool("check", "config", tmp_path / "prometheus.yml")
    configuration = yaml.safe_load((tmp_path / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = configuration["scrape_configs"]
    assert job["job_name"] == "delayq"
    assert job["static_configs"] == [{"targets": ["metrics:9808"]}]
    assert SERVICES["metrics"]["command"] == ["delayq", "metrics"]  # so the port is the default


def test_keda_gets_the_fields_that_it_knows() -> None:
    assert (KEDA["apiVersion"], KEDA["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    known = {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "fallback"}
    spec = KEDA["spec"]
    assert spec.keys() <= known | {"advanced", "triggers"}
    assert spec["minReplicaCount"] < spec["maxReplicaCount"]
    assert spec["fallback"].keys() == {"failureThreshold", "replicas"}
    (trigger,) = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
    known = {"serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues"}
    assert trigger["metadata"].keys() == known
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_the_query_of_keda_finds_what_the_endpoint_shows(tmp_path: Path) -> None:
    (trigger,) = KEDA["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    check_results([query], tmp_path)
    for name in ("delayq_ready_messages", "delayq_in_flight_messages", "delayq_due_messages"):
        assert name in query
