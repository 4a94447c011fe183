"""What a run leaves behind: its files, who may read them, and that nothing private is in those that are public."""

from __future__ import annotations

import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.told import Told
from tests.training.runs import NUM_USERS, TEST_NOISE, TREE, crash, events, parameters, run_config
from uedp_ray.config import load_config
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError
from uedp_ray.models.saved import load_model
from uedp_ray.privacy.ledger import Ledger, read_ledger
from uedp_ray.privacy.noise import GaussianNoise
from uedp_ray.training import run_vocabulary, worker
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.host import tell_cautions, train
from uedp_ray.training.rundir import RunDir, sampling_key

PUBLIC = {
    "config.yaml",
    "ledger.jsonl",
    "rounds.parquet",
    "checkpoint",
    "model",
    "vocabulary",
    "privacy.md",
    "result.json",
}
NOISY_WORDS = {
    "kind": "noisy-threshold", "noise_multiplier": 0.05, "threshold_delta": 1e-5, "max_words_per_user": 50,
    "public_text": [],
}  # fmt: skip


def public_bytes(run):
    """Every public file's name and content, Parquet and safetensors decoded too."""
    files = [p for p in run.rglob("*") if p.is_file() and run / "private" not in p.parents]
    content = {str(p.relative_to(run)): p.read_bytes() for p in files}
    content["rounds decoded"] = json.dumps(pq.read_table(run / "rounds.parquet").to_pylist()).encode()
    assert len(content) > 8
    return content


def test_exactly_the_files_that_are_documented(private_run):
    assert {path.name for path in private_run.out.iterdir()} == PUBLIC | {"private"}


@pytest.mark.parametrize("umask", [0o000, 0o077], ids=oct)
def test_private_files_are_the_owners_alone_whatever_the_umask(corpora, tmp_path, umask):
    source = {"source": {"format": "synthetic", "num_users": 9}}
    before = os.umask(umask)
    try:
        train(run_config(corpora, corpus=source, training={"num_rounds": 1}), tmp_path / "run", workers=0)
    finally:
        os.umask(before)
    private = tmp_path / "run" / "private"
    for path in (private, *private.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "run" / "result.json").stat().st_mode) == 0o666 & ~umask


def test_the_resolved_config_is_complete_and_loads(private_run, corpora):
    assert load_config(private_run.out / "config.yaml") == run_config(corpora)
    assert "adam_betas" in (private_run.out / "config.yaml").read_text(), "defaults are written out"


def test_the_key_is_in_no_public_file_and_differs_between_runs(private_run, corpora, tmp_path):
    key = (private_run.out / "private" / "sampling.key").read_text()
    assert len(bytes.fromhex(key)) == 32
    assert sampling_key(RunDir(private_run.out), load_config(private_run.out / "config.yaml")) == bytes.fromhex(key)
    for name, content in public_bytes(private_run.out).items():
        assert key.encode() not in content, name
        assert bytes.fromhex(key) not in content, name
    train(run_config(corpora, training={"num_rounds": 1}), tmp_path / "run", workers=0)
    assert (tmp_path / "run" / "private" / "sampling.key").read_text() != key


def private_strings(corpus):
    """Texts, user ids and entities that the public part of the generator does not also make."""
    table = corpus.entity_table().to_pydict()
    entities = {
        form for form, holders in zip(table["form"], table["holders"], strict=True) if len(form) > 5 and holders
    }
    sentences = [sentence for _, each in corpus.sentences() for sentence in each]
    return {s.user for s in sentences}, {s.text for s in sentences}, entities


def test_no_text_user_or_entity_is_in_a_public_file(private_run, corpora):
    users, texts, entities = private_strings(open_corpus(corpora / "private"))
    assert len(users) == NUM_USERS
    assert len(entities) > 20
    for name, content in public_bytes(private_run.out).items():
        lowered = content.lower()
        for kind, strings in (("user", users), ("text", texts), ("entity", entities)):
            assert not [s for s in strings if s.lower().encode() in lowered], f"a {kind} is in {name}"


def test_nothing_private_is_said_while_running(corpora, tmp_path, capfd):
    users, texts, entities = private_strings(open_corpus(corpora / "private"))
    said, rows = [], []
    train(run_config(corpora), tmp_path / "run", workers=0, reporter=Told(say=said.append, round=rows.append))
    printed = "".join(capfd.readouterr()) + "".join(said) + json.dumps(rows)
    assert any("% of the tokens are beyond model.max_length = 12" in line for line in said)
    assert not [s for s in users | texts | entities if s.lower() in printed.lower()]


def test_rounds_hold_public_quantities_only(private_run):
    rows = pq.read_table(private_run.out / "rounds.parquet").to_pylist()
    assert set(rows[0]) == {
        "round", "perplexity", "bits_per_byte", "unk_share", "noise_std", "epsilon_user-entity", "epsilon_user",
        "epsilon_entity",
    }  # fmt: skip
    assert [row["round"] for row in rows] == [0, 2, 4, 5]
    for unit, epsilon in private_run.result["epsilon"].items():
        assert {row[f"epsilon_{unit}"] for row in rows} == {epsilon}, "every row is of the planned end"
    assert len({row["noise_std"] for row in rows}) == 1


def test_the_speed_is_that_of_training(corpora, tmp_path, monkeypatch):
    """A plan took the time of two evaluations for that of three rounds, and told of days. By a clock of the test's own."""
    now = [0.0]
    admit, score = RunDriver.admit, worker.score

    def after(seconds, call):
        def later(*args, **kwargs):
            now[0] += seconds
            return call(*args, **kwargs)

        return later

    monkeypatch.setattr("uedp_ray.training.driver.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(RunDriver, "admit", after(2.0, admit))
    monkeypatch.setattr(worker, "score", after(100.0, score))
    config = run_config(corpora)
    found = train(config, tmp_path / "run", workers=0)["tokens_per_second"]
    assert found == pytest.approx(config.corpus.declared_num_tokens * config.share_of_users / 2.0)


def test_the_result_agrees_with_ledger_and_rounds(private_run):
    result, rows = private_run.result, pq.read_table(private_run.out / "rounds.parquet").to_pylist()
    owners = {"run_dir": str(private_run.out), **{key: result[key] for key in ("tokens_per_second", "retention")}}
    assert json.loads((private_run.out / "result.json").read_text()) | owners == result
    assert result["perplexity"] == rows[-1]["perplexity"]
    assert result["initial_perplexity"] == rows[0]["perplexity"]
    assert result["initial_bits_per_byte"] == rows[0]["bits_per_byte"] != result["bits_per_byte"]
    assert result["epsilon"] == {name: rows[-1][f"epsilon_{name}"] for name in ("user-entity", "user", "entity")}
    assert 0 < result["epsilon"]["user"] < result["epsilon"]["user-entity"]
    assert (result["rounds"], result["private"], result["unit"]) == (5, True, "user-entity")
    assert {each["unit"]: each["epsilon"] for each in result["guarantees"]} == result["epsilon"]
    assert all(each["sound"] and each["trust"] == "central" for each in result["guarantees"])
    assert result["tokens_per_second"] > 0
    assert [(e["round"], e["attempt"]) for e in events(private_run.out)] == [(t, 0) for t in range(5)]
    assert read_ledger(private_run.out / "ledger.jsonl")[0]["header"]["private"] is True


def hand_perplexity(model, tokenizer, corpora, max_length, begin=None):
    """exp of the mean negative log-likelihood of words and sentence ends, one sentence at a time, by transformers alone.

    ``begin``: the token that a sentence is read from; None: its end.
    """
    end, total, count = tokenizer.eos_token_id, 0.0, 0
    begin = end if begin is None else begin
    for _, texts in open_corpus(corpora / "held_out").texts():
        for text in texts:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            sequence = torch.tensor([[begin, *ids, end][: max_length + 1]])
            with torch.no_grad():
                logp = model(sequence[:, :-1]).logits.double().log_softmax(-1)
            total -= float(logp[0].gather(1, sequence[0, 1:, None]).sum())
            count += sequence.shape[1] - 1
    return float(torch.tensor(total / count).exp())


def test_the_model_loads_with_transformers_and_has_the_reported_perplexity(private_run, corpora):
    model = AutoModelForCausalLM.from_pretrained(private_run.out / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(private_run.out / "model")
    found = hand_perplexity(model, tokenizer, corpora, TREE["model"]["max_length"])
    assert found == pytest.approx(private_run.result["perplexity"], rel=1e-5)


@pytest.mark.parametrize(("after", "shown"), [(1105.9047686776019, "1105.9"), (None, "not finite")])
def test_a_model_that_training_made_worse_is_told_with_both_figures_alike(private_run, corpora, tmp_path, after, shown):
    shutil.copytree(private_run.out, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    result |= {"initial_perplexity": 614.1234, "perplexity": after}
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    told = []
    config, reporter = run_config(corpora), Told(say=told.append)
    tell_cautions(config, train(config, tmp_path / "run", workers=0, resume=True, reporter=reporter), reporter)
    assert f"(perplexity 614.1, now {shown})" in told[-2]
    assert told[-1].startswith("what may help: a lower training.server_learning_rate")


def test_a_result_of_an_earlier_version_lacks_bits_per_byte_before_training(private_run, corpora, tmp_path):
    shutil.copytree(private_run.out, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    del result["initial_bits_per_byte"]
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    assert train(run_config(corpora), tmp_path / "run", workers=0, resume=True)["perplexity"] == result["perplexity"]
    (tmp_path / "run" / "result.json").write_text(json.dumps(result | {"initial_bits_per_byte": "5.5"}))
    with pytest.raises(InputError, match=r"is damaged \(initial_bits_per_byte is not a number from 0\)"):
        train(run_config(corpora), tmp_path / "run", workers=0, resume=True)


@pytest.mark.parametrize(("share", "words"), [(0.561, "56% of the words of the evaluation text are <unk>"), (0.1, "")])
def test_much_that_is_unknown_is_said_at_the_end(private_run, corpora, tmp_path, share, words):
    shutil.copytree(private_run.out, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    (tmp_path / "run" / "result.json").write_text(json.dumps(result | {"unk_share": share}))
    told = []
    config, reporter = run_config(corpora), Told(say=told.append)
    tell_cautions(config, train(config, tmp_path / "run", workers=0, resume=True, reporter=reporter), reporter)
    assert bool(words) == any("<unk>" in line for line in told)
    assert words in "".join(told)


def test_the_checkpoint_is_the_exported_model(private_run):
    model = load_model(private_run.out / "model")
    named = dict(model.named_parameters())
    assert torch.equal(torch.cat([named[n].detach().flatten() for n in sorted(named)]), parameters(private_run.out))


@pytest.mark.parametrize("model", [{"architecture": "awd_lstm", "embedding_size": 8, "dropout_hidden": 0.2},
                                   {"trainable": "lora", "lora_rank": 2}, {"trainable": "bias_norm"}])  # fmt: skip
def test_other_networks_train_and_export(corpora, tmp_path, model):
    tree = {**TREE["model"], **model}
    result = train(run_config(corpora, model=tree, training={"num_rounds": 2}), tmp_path / "run", workers=0)
    assert result["rounds"] == 2
    load_model(tmp_path / "run" / "model")


@pytest.mark.parametrize(
    ("fixed", "differ"), [(["noise"], True), (["sampling"], True), (["noise", "sampling"], False)], ids=str
)
def test_noise_and_sampling_are_each_secret_and_nothing_else_of_a_private_run_is(
    corpora, tmp_path, monkeypatch, fixed, differ
):
    if "noise" in fixed:
        monkeypatch.setattr("secrets.randbits", lambda bits: 5)
    if "sampling" in fixed:
        monkeypatch.setattr("secrets.token_hex", lambda size: "5" * 2 * size)
    for name in ("one", "two"):
        train(run_config(corpora, training={"num_rounds": 1}), tmp_path / name, workers=0)
    assert torch.equal(parameters(tmp_path / "one"), parameters(tmp_path / "two")) != differ


def test_two_runs_with_a_test_seed_are_the_same(corpora, tmp_path):
    fixed = run_config(corpora, privacy={**TREE["privacy"], **TEST_NOISE}, training={"num_rounds": 2})
    results = [train(fixed, tmp_path / name, workers=0) for name in ("one", "two")]
    assert torch.equal(parameters(tmp_path / "one"), parameters(tmp_path / "two"))
    assert {each["unit"] for result in results for each in result["guarantees"]} == {"none"}


@pytest.mark.parametrize("module", ["training.driver", "privacy.noise"])  # the rounds', and the vocabulary's
def test_what_claims_to_be_private_is_neither_charged_nor_released_with_noise_that_is_not(
    corpora, tmp_path, monkeypatch, module
):
    monkeypatch.setattr(f"uedp_ray.{module}.GaussianNoise", lambda seed: GaussianNoise(0))
    config = run_config(corpora, vocabulary=NOISY_WORDS, training={"num_rounds": 1})
    with pytest.raises(ValueError, match="a test seed fixes this noise"):
        train(config, tmp_path / "run", workers=0)
    kinds = [event["kind"] for event in read_ledger(tmp_path / "run" / "ledger.jsonl")]
    assert kinds == {"training.driver": ["open", "vocabulary"], "privacy.noise": ["open"]}[module]


def test_the_noise_of_a_private_vocabulary_is_secret(corpora, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        run_vocabulary, "build_vocabulary", lambda *args, noise, **kwargs: drawn.append(noise(8, 1.0).tolist())
    )
    for _ in range(2):
        run_vocabulary.draw_vocabulary(
            run_config(corpora, vocabulary=NOISY_WORDS), open_corpus(corpora / "private"), np.ones(1)
        )
    assert drawn[0] != drawn[1]


def test_public_training_starts_from_the_warm_start(pretrained, corpora, tmp_path):
    warm = {**TREE["model"], "warm_start": str(pretrained.out / "model")}
    result = train(run_config(corpora, model=warm, training={"num_rounds": 1}), tmp_path / "run", workers=0)
    cold = train(run_config(corpora, training={"num_rounds": 1}), tmp_path / "cold", workers=0)
    assert result["initial_perplexity"] < 0.7 * cold["initial_perplexity"]


@pytest.mark.parametrize("again", ["public", "private"])
def test_a_run_goes_on_from_the_model_that_it_began_from(pretrained, corpora, tmp_path, again):
    """Weights that are not trained are loaded at every start, and whether they are public was asked at the first."""
    start = shutil.copytree(pretrained.out / "model", tmp_path / "public" / "model")
    config = run_config(corpora, model={**TREE["model"], "warm_start": str(start), "trainable": "lora", "lora_rank": 2})
    out = tmp_path / "run"
    crash(config, out, charges=3)
    shutil.copytree(start, tmp_path / "kept")
    if again == "public":
        weights = start / "model.safetensors"
        tensors = load_file(weights)
        save_file({name: 2 * tensor for name, tensor in tensors.items()}, weights, {"format": "pt"})
        remedy = "model.warm_start = .*has changed since the run began"
    else:
        private = np.unique(np.asarray(open_corpus(corpora / "private").text_sketch))
        np.save(start / "text_sketch.npy", private)
        remedy = "model.warm_start = .*shares .* of its running text"
    before = events(out)
    with pytest.raises(InputError, match=remedy):
        train(config, out, workers=0, resume=True)
    assert events(out) == before
    shutil.rmtree(start)
    shutil.copytree(tmp_path / "kept", start)
    assert train(config, out, workers=0, resume=True)["rounds"] == 4


def test_runs_in_threads_of_one_process_wait_for_each_other(corpora, tmp_path):
    """A sentence's dropout masks come from the process's generator."""
    model = {**TREE["model"], "dropout_hidden": 0.3, "dropout_output": 0.3}
    config = run_config(corpora, model=model, privacy={**TREE["privacy"], "test_noise_seed": 3})
    alone = train(config, tmp_path / "alone", workers=0)
    with ThreadPoolExecutor(2) as pool:
        outs = [tmp_path / "one", tmp_path / "two"]
        found = list(pool.map(lambda out: train(config, out, workers=0), outs))
    assert [each["perplexity"] for each in found] == [alone["perplexity"]] * 2


def test_whoever_is_told_of_a_round_may_train_too(corpora, tmp_path):
    done = []

    def train_another(row):
        if not done:
            done.append(train(run_config(corpora, training={"num_rounds": 1}), tmp_path / "another", workers=0))

    train(run_config(corpora), tmp_path / "run", workers=0, reporter=Told(evaluated=train_another))
    assert done[0]["rounds"] == 1


def test_a_noisy_vocabulary_is_in_the_ledger_before_it_is_used(corpora, tmp_path):
    config = run_config(corpora, vocabulary=NOISY_WORDS, training={"num_rounds": 1})
    result = train(config, tmp_path / "run", workers=0)
    kinds = [event["kind"] for event in Ledger.open(tmp_path / "run" / "ledger.jsonl").events]
    assert kinds == ["open", "vocabulary", "round"]
    without = train(run_config(corpora, training={"num_rounds": 1}), tmp_path / "without", workers=0)
    assert result["epsilon"]["user"] > 5 * without["epsilon"]["user"]


def test_a_vocabulary_without_a_word_is_an_answer_that_is_asked_for_once(corpora, tmp_path):
    """To draw again until a word passes is to play a release again because of what it released."""
    config = run_config(corpora, vocabulary={**NOISY_WORDS, "noise_multiplier": 1e4}, training={"num_rounds": 1})
    for resume in (False, True, True):
        with pytest.raises(
            InputError, match=r"no word passed the threshold, and the attempt was charged: in another folder"
        ):
            train(config, tmp_path / "run", workers=0, resume=resume)
        assert [event["kind"] for event in read_ledger(tmp_path / "run" / "ledger.jsonl")] == ["open", "vocabulary"]


def test_without_evaluation_text_there_is_no_perplexity(corpora, tmp_path):
    config = run_config(corpora, corpus={"evaluation": None}, training={"num_rounds": 1})
    assert train(config, tmp_path / "run", workers=0)["perplexity"] is None
