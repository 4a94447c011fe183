"""The Kubernetes manifests fit KubeRay's published definitions, unknown fields included; the job's command survives."""

from __future__ import annotations

import copy
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.cluster.test_files import parse

CLUSTER = Path(__file__).parents[2] / "cluster"
CLAIM, CLUSTER_FILE, JOB = (
    yaml.safe_load((CLUSTER / f"kuberay-{name}.yaml").read_text()) for name in ("storage", "raycluster", "rayjob")
)
MANIFESTS = {"rayclusters": CLUSTER_FILE, "rayjobs": JOB}


def closed(schema: Any) -> Any:
    """The schema with unknown fields refused, as a Kubernetes server refuses them, but where it is told to keep them."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    return schema


@pytest.fixture(scope="module")
def check() -> Callable[[str, dict[str, Any]], None]:
    """check(plural, manifest) against ``ray.io_PLURAL.yaml`` of ``UEDP_SCHEMAS``, else ``../shared/schemas``."""
    folder = Path(os.environ.get("UEDP_SCHEMAS", Path(__file__).parents[3] / "shared" / "schemas"))
    if not folder.is_dir():
        pytest.skip(f"KubeRay's definitions are not at {folder} (set UEDP_SCHEMAS)")
    validators = {}
    for plural in MANIFESTS:
        with (folder / f"ray.io_{plural}.yaml").open() as file:
            definition = yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # a megabyte
        (version,) = [v for v in definition["spec"]["versions"] if v["name"] == "v1"]
        validators[plural] = jsonschema.Draft202012Validator(closed(version["schema"]["openAPIV3Schema"]))
    return lambda plural, manifest: validators[plural].validate(manifest)


@pytest.mark.parametrize("plural", MANIFESTS)
def test_it_fits_the_definition(check, plural):
    manifest = MANIFESTS[plural]
    check(plural, manifest)
    assert manifest["apiVersion"] == "ray.io/v1"
    assert plural == manifest["kind"].lower() + "s"
    assert set(manifest["metadata"]) == {"name"}


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        (["spec"], {"rayVersoin": "2.60.0"}),
        (["spec", "authOptions"], {"mode": "tokens"}),
        (["spec", "workerGroupSpecs", 0], {"replicas": "2"}),
        (["spec", "headGroupSpec", "template", "spec"], {"volume": []}),
        (["spec", "headGroupSpec", "template", "spec", "containers", 0], {"resource": {}}),
        (["spec", "headGroupSpec", "template", "spec", "containers", 0, "resources"], {"limits": {"cpu": "two"}}),
    ],
    ids=str,
)
def test_a_slip_is_caught(check, where, wrong):
    manifest = copy.deepcopy(CLUSTER_FILE)
    part = manifest
    for key in where:
        part = part[key]
    part.update(wrong)
    with pytest.raises(jsonschema.ValidationError):
        check("rayclusters", manifest)


def test_the_job_brings_the_same_cluster():
    assert JOB["spec"]["rayClusterSpec"] == CLUSTER_FILE["spec"]
    assert JOB["spec"]["shutdownAfterJobFinishes"]


def test_every_pod_mounts_the_shared_volume_as_one_user():
    spec = CLUSTER_FILE["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert len(groups) == 3
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/shared"}]
        assert pod["volumes"] == [{"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM["metadata"]["name"]}}]
        assert pod["securityContext"]["runAsUser"] == 1000
    assert CLAIM["spec"]["accessModes"] == ["ReadWriteMany"]
    assert spec["authOptions"]["mode"] == "token"
    assert [("nvidia.com/gpu" in str(group), "spot" in str(group)) for group in groups] == [
        (False, False),
        (True, False),
        (True, True),
    ]


@pytest.mark.parametrize("resumed", [False, True])
def test_the_jobs_command_reaches_the_sweep_whole(resumed, tmp_path):
    """KubeRay puts the entrypoint into a shell command as it is; ``ray job submit`` quotes its words for another shell."""
    entrypoint = JOB["spec"]["entrypoint"].strip().replace("/shared", str(tmp_path))
    submitted = subprocess.run(
        ["bash", "-c", rf"printf '%s\0' {entrypoint} ;"], capture_output=True, text=True, check=True
    )
    words = submitted.stdout.split("\0")[:-1]
    (tmp_path / "uedp-ray").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    (tmp_path / "uedp-ray").chmod(0o755)
    if resumed:  # after the submitter's shell had its turn, which does not see the volume
        (tmp_path / "sweeps" / "notes").mkdir(parents=True)
        (tmp_path / "sweeps" / "notes" / "sweep.yaml").write_text("")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "-c", shlex.join(words)], env={"PATH": path}, capture_output=True, text=True, check=True
    )
    options = parse(ran.stdout.split("\0")[:-1])
    assert (options["resume"], options["address"]) == (resumed, "auto")
    assert str(options["out"]).startswith(str(tmp_path))
