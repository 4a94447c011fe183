"""``uedp-ray plan``: what it tells, and the files that it writes."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.cli.files import written
from tests.search.sweeps import sweep_tree
from tests.training.runs import run_tree
from uedp_ray.config import load_config
from uedp_ray.training.host import train

pytestmark = pytest.mark.whole


def speed_shown(out):
    """The settings that ``plan`` tells to train with."""
    told = next(line for line in out.splitlines() if line.startswith("Expected time: "))
    return [word for word in shlex.split(told.partition(" with --set ")[2]) if word != "--set"]


def test_plan_tells_how_to_see_the_speed_of_a_sweep_and_of_labels(command, tmp_path, corpora):
    sweep = sweep_tree(corpora)
    tree = sweep["base"]
    code, out, _ = command("plan", written(tmp_path, sweep))
    assert code == 0
    config = load_config(written(tmp_path, tree), speed_shown(out))
    assert (config.corpus.source.format, config.training.num_rounds) == ("synthetic", 9)
    assert config.bounds.mode == "enforced"
    train(config, tmp_path / "run", workers=0)
    tree["bounds"]["mode"] = "declared"  # made-up text does not keep to them
    assert "bounds.mode=enforced" in speed_shown(command("plan", written(tmp_path, sweep))[1])
    tree["bounds"]["mode"] = "enforced"
    tree["corpus"]["declared_num_users"] = 10**6
    code, out, _ = command("plan", written(tmp_path, sweep))
    config = load_config(written(tmp_path, tree), speed_shown(out))
    assert (code, config.corpus.source.num_users, config.privacy.user_sampling_prob) == (0, 1000, 1.0)
    tree["task"] = {"kind": "classify", "labels": ["mine", "yours"]}
    code, out, _ = command("plan", written(tmp_path, sweep))
    assert (code, speed_shown(out)) == (0, []), "made-up text has labels of its own"
    assert "public text that has the same labels" in out


def test_plan_reads_no_text_and_writes_a_file_that_it_plans_again(answer, refused, command, tmp_path, corpora):
    tree = run_tree(corpora)
    tree["corpus"]["source"] = {"format": "text", "path": "/no/such/text"}
    file, written_file = written(tmp_path, tree), tmp_path / "planned.yaml"
    told = answer("plan", file, "--trials", 2, "--write", written_file)
    assert {"rules", "mechanisms", "warnings"} <= told.keys()
    again = answer("plan", written_file, "--trials", 2)
    assert [row["rounds"] for row in again["mechanisms"] if row["asked"]] == [told["choice"]["rounds"]]
    code, out, _ = command("plan", file, "--trials", 2)
    assert (code, out.count("(this file)")) == (0, 1)
    assert "composition" in out
    assert "Expected time: give --tokens-per-second, which train prints at its end" in out
    cohort = tree["privacy"]["user_sampling_prob"] * tree["corpus"]["declared_num_users"]
    config = load_config(file, speed_shown(out))
    made_up = config.corpus.source.num_users * config.privacy.user_sampling_prob
    assert made_up == pytest.approx(cohort, rel=1e-2), "a round as large as the run's"
    code, out, _ = command("plan", file, "--trials", 2, "--tokens-per-second", 1000)
    counted = r"for 5,000 words \(corpus\.declared_num_tokens\); start, public training and evaluations not counted\."
    assert re.search(rf"^Expected time: .*, {counted}$", out, re.M)
    code, out, _ = command("plan", file, "--trials", 300)
    pilots = next(line for line in out.splitlines() if line.startswith("pilots"))
    assert code == 0
    assert pilots.split()[1] == "-"
    assert "300 pilots" in pilots, "the reason why it cannot keep the budget leaves the other columns their room"
    assert re.search(r"^none +\d\.\d{3} ", out, re.M)
    refused("plan", file, "--write", written_file, parts=["--write", "exists"])
    for speed in (-1, 0, 1e-300, "inf", "nan"):
        refused("plan", file, "--tokens-per-second", speed, parts=["--tokens-per-second", "0.001 or more"])
    tree["corpus"] |= {"declared_num_users": 900, "declared_num_tokens": 10**17}
    tree["privacy"]["user_sampling_prob"] = 0.7  # 900 is 630 / 0.7, but for rounding
    code, out, _ = command("plan", written(tmp_path, tree), "--trials", 2)
    assert (code, load_config(file, speed_shown(out)).corpus.source.num_users) == (0, 900)
    code, out, _ = command("plan", written(tmp_path, tree), "--trials", 2, "--tokens-per-second", 0.001)
    assert (code, "Expected time: 999999999 days" in out) == (0, True)
