"""The files for ``ray up`` fit the schema of the installed Ray, and start closed clusters with shared storage."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml

CLUSTER = Path(__file__).parents[2] / "cluster"
SCHEMA = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
NAMES = ["aws", "gcp"]


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((CLUSTER / f"{name}.yaml").read_text())


def is_spot(node: dict[str, Any]) -> bool:
    config = node["node_config"]
    market, scheduling = config.get("InstanceMarketOptions", {}), config.get("scheduling", {})
    return market.get("MarketType") == "spot" or scheduling.get("provisioningModel") == "SPOT"


@pytest.mark.parametrize("name", NAMES)
def test_it_fits_the_schema(name):
    jsonschema.validate(load(name), SCHEMA)
    for wrong in ({"max_worker": 1}, {"setup_commands": "pip"}, {"provider": {}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**copy.deepcopy(load(name)), **wrong}, SCHEMA)


@pytest.mark.parametrize("name", NAMES)
def test_a_head_without_work_and_two_groups_of_gpu_nodes(name):
    config = load(name)
    types = dict(config["available_node_types"])
    head = types.pop(config["head_node_type"])
    assert head["resources"] == {"CPU": 0}
    assert not is_spot(head)
    assert sorted(is_spot(node) for node in types.values()) == [False, True]
    # The preflight of a sweep counts nodes that are there, so nothing is left to the autoscaler.
    assert all(node["min_workers"] == node["max_workers"] > 0 for node in types.values())
    assert sum(node["max_workers"] for node in types.values()) == config["max_workers"]


@pytest.mark.parametrize("name", NAMES)
def test_every_node_mounts_the_storage_and_asks_for_a_token(name):
    config = load(name)
    (mount,) = [line for line in config["setup_commands"] if "mount -t" in line]
    assert "mountpoint -q /shared ||" in mount
    assert mount.endswith(" /shared)")
    for role in ("head", "worker"):
        (start,) = [line for line in config[f"{role}_start_ray_commands"] if "ray start" in line]
        assert "export" in start.split("ray start")[0]
        assert "RAY_AUTH_MODE=token" in start.split("ray start")[0]
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]


@pytest.mark.parametrize("name", NAMES)
def test_its_commands_are_shell(name):
    config = load(name)
    lines = [line for key, value in config.items() if key.endswith("_commands") for line in value]
    assert len(lines) > 8
    for line in lines:
        assert "\n" not in line.strip()
        subprocess.run(["bash", "-n", "-c", line], check=True)
