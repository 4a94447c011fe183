"""Where a refused start leaves a copy of private text, it says so."""

from __future__ import annotations

import pytest

from tests.told import Told
from tests.training.runs import run_config
from uedp_ray.errors import InputError
from uedp_ray.training.host import train


def test_a_refused_start_says_where_a_copy_of_private_text_stays(corpora, tmp_path):
    told = []
    config = run_config(
        corpora,
        corpus={"source": {"format": "synthetic", "num_users": 9}},
        bounds={"mode": "declared", "max_holders": 1},
    )
    with pytest.raises(InputError, match="max_sentences_per_entity"):
        train(config, tmp_path / "run", workers=0, reporter=Told(say=told.append))
    assert str(tmp_path / "run" / "private") in told[-1]


def test_a_copy_of_evaluation_text_alone_is_none_of_private_text(corpora, tmp_path):
    told = []
    evaluation = {"format": "synthetic", "num_users": 9}  # users of the private text
    with pytest.raises(InputError, match=r"corpus\.evaluation"):
        train(
            run_config(corpora, corpus={"evaluation": evaluation}),
            tmp_path / "run",
            workers=0,
            reporter=Told(say=told.append),
        )
    assert (tmp_path / "run" / "private" / "evaluation").exists()
    assert not any("holds a copy" in line for line in told)


@pytest.mark.parametrize(
    ("refuses", "first_round"), [("worker.make_model", True), ("driver.RunDriver.after_round", False)]
)
def test_a_refusal_after_setting_up_says_so_too_until_a_round_was_trained(
    corpora, tmp_path, monkeypatch, refuses, first_round
):
    def refuse(*_, **__):
        raise InputError("model.warm_start", "warm", "its shapes differ")

    monkeypatch.setattr(f"uedp_ray.training.{refuses}", refuse)
    told = []
    config = run_config(corpora, corpus={"source": {"format": "synthetic", "num_users": 9}})
    with pytest.raises(InputError, match="its shapes differ"):
        train(config, tmp_path / "run", workers=0, reporter=Told(say=told.append))
    assert (tmp_path / "run" / "private" / "setup.json").exists()
    copies = [line for line in told if f"{tmp_path / 'run' / 'private'} holds a copy of the private text" in line]
    assert len(copies) == first_round
