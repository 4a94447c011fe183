"""Next words of a trained model: those of highest probability, computed again by hand."""

from __future__ import annotations

import os

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from uedp_ray.errors import InputError
from uedp_ray.training.predict import predict


def test_the_best_next_words_with_their_probabilities(pretrained):
    model = AutoModelForCausalLM.from_pretrained(pretrained.out / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(pretrained.out / "model")
    texts = ["please call the", ""]
    found = predict(pretrained.out, texts, top=4)
    assert [each["text"] for each in found] == texts
    for each in found:
        ids = [tokenizer.eos_token_id, *tokenizer(each["text"], add_special_tokens=False)["input_ids"]]
        with torch.no_grad():
            probabilities = model(torch.tensor([ids])).logits[0, -1].softmax(-1)
        best = probabilities.topk(4)
        assert [e["probability"] for e in each["next"]] == pytest.approx(best.values.tolist(), abs=1e-6)
        assert [e["token"] for e in each["next"]] == [tokenizer.decode([i]) for i in best.indices.tolist()]
    assert found[0]["next"] != found[1]["next"]


def test_a_run_or_its_model_folder_will_do(pretrained):
    assert predict(pretrained.out, ["the"]) == predict(pretrained.out / "model", ["the"])


def test_more_words_than_there_are_is_all_of_them(pretrained):
    (found,) = predict(pretrained.out, ["the"], top=10_000)
    assert sum(each["probability"] for each in found["next"]) == pytest.approx(1, abs=1e-3)


def test_a_text_longer_than_the_model_reads_is_continued_from_its_end(pretrained):
    short, long = (predict(pretrained.out, ["the " * n + "patient"])[0]["next"] for n in (30, 60))
    assert short == long, "only the last words fit"


def test_that_a_text_is_cut_is_said_once(pretrained, command):
    texts = [f"--text={'the ' * n}" for n in (11, 12, 30)]
    code, _, err = command("predict", pretrained.out, *texts)
    assert (code, err) == (
        0,
        "note: 2 of 3 texts are longer than the 11 tokens that the model reads: the beginning is left out\n",
    )
    assert command("predict", pretrained.out, texts[0])[2] == ""
    assert "note: the text is longer than the 11 tokens" in command("predict", pretrained.out, texts[1])[2]


def test_a_folder_without_a_model_and_no_words_at_all_are_refused(pretrained, tmp_path):
    with pytest.raises(InputError, match="finished run"):
        predict(tmp_path, ["the"])
    with pytest.raises(InputError, match="--top"):
        predict(pretrained.out, ["the"], top=0)


def test_a_sweep_is_answered_with_its_best_run(tmp_path):
    (tmp_path / "sweep.yaml").touch()
    with pytest.raises(InputError, match=r"is a sweep: name one of its finished runs in .*trials"):
        predict(tmp_path, ["the"])
    (tmp_path / "result.json").write_text('{"best": {"run_dir": "trials/0003"}}')
    with pytest.raises(InputError, match=r"is a sweep: name its best run, .*trials/0003"):
        predict(tmp_path, ["the"])


def test_a_pipe_in_the_place_of_a_sweeps_result_is_not_waited_for(tmp_path):
    (tmp_path / "sweep.yaml").touch()
    os.mkfifo(tmp_path / "result.json")
    with pytest.raises(InputError, match="is a sweep: name one of its finished runs"):
        predict(tmp_path, ["a"])
