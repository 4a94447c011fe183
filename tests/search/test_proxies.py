"""Several public texts to search on: what a trial trains, what it scores, and whether they agree."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.search.sweeps import search_here, sweep_config
from tests.told import Told
from uedp_ray.analysis import figures
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.analysis.report import report
from uedp_ray.analysis.style import NothingToShow
from uedp_ray.analysis.summary import summary, warnings
from uedp_ray.config import VocabularyConfig
from uedp_ray.console import print_sweep
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.synthetic import generate
from uedp_ray.corpus.vocabulary import build_vocabulary
from uedp_ray.errors import InputError
from uedp_ray.search.export import export
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.proxies import (
    LEAST_TRIALS,
    agreement,
    by_seed,
    cautions,
    of_each,
    score_of,
    searched_bases,
    unlike_gain,
    unread,
)
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import dump_sweep_config, load_sweep_config
from uedp_ray.tasks.metrics import PERPLEXITY

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def proxy(part: str, users: int = 20, seed: int = 1) -> dict[str, Any]:
    source = {"format": "synthetic", "num_users": users, "part": part, "seed": seed}
    held_out = {"format": "synthetic", "num_users": 6, "part": part, "seed": seed + 1}
    return {"corpus.source": source, "corpus.evaluation": held_out, "corpus.evaluation_basis": "public"}


TWO = {"one": proxy("public", seed=5), "other": proxy("proxy")}


POINTS = [
    {"privacy.user_sampling_prob": 0.3, "training.num_rounds": 3, "training.server_learning_rate": rate}
    for rate in (0.01, 0.03)
]


def two_texts(corpora, tmp_path, **search):
    return sweep_config(corpora, tmp_path, search={"trials": 2, "selection": "public", "public": TWO} | search)


@pytest.fixture(scope="module")
def searched(corpora, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two-texts")
    config = two_texts(corpora, folder, seeds_per_trial=2)
    return config, folder / "out", search_here(config, folder / "out", POINTS)


def test_a_trial_trains_on_every_text_once_a_seed(searched):
    config, out, answer = searched
    row = answer["trials"][1]
    assert row["seeds"] == 2, "on each of two texts"
    assert row["run_dirs"] == [f"trials/0001-{name}" for name in ("one-0", "one-1", "other-0", "other-1")]
    digests = [
        json.loads((out / run / "private" / "setup.json").read_text())["corpus_digest"] for run in row["run_dirs"]
    ]
    assert digests[0] == digests[1] != digests[2] == digests[3]
    assert set(SweepDir(out).started_runs()) == {f"000{n}{suffix}" for n in (0, 1) for suffix in config.suffixes}


def test_its_score_is_the_median_over_seeds_of_the_mean_over_texts(searched):
    _, out, answer = searched
    for row in answer["trials"]:
        scores = [json.loads((out / run / "result.json").read_text())["perplexity"] for run in row["run_dirs"]]
        means = [math.sqrt(scores[0] * scores[2]), math.sqrt(scores[1] * scores[3])]
        assert row["scores"] == pytest.approx(means)
        assert row["perplexity"] == pytest.approx(sum(means) / 2)
        assert row["one.perplexity"] == pytest.approx((scores[0] + scores[1]) / 2)
        assert row["other.perplexity"] == pytest.approx((scores[2] + scores[3]) / 2)


def test_the_page_of_a_search_that_is_not_over_claims_no_private_run(searched, tmp_path):
    """It said "trained anew on the private text", with the proxies' score, and took runs on two texts for seeds that tell
    trials apart."""
    _, out, answer = searched
    copy = shutil.copytree(out, tmp_path / "copy")
    (copy / "result.json").unlink()
    shutil.rmtree(copy / "winner")
    found = dict(summary(load_sweep(copy)))["Found"]
    first = min(answer["trials"], key=lambda row: row["perplexity"])
    assert found.startswith(f"Trial {first['trial']} is the best so far, with perplexity {first['perplexity']:.1f} ± ")
    assert "over 2 seeds" in found
    assert "on the search's text" in found
    assert "private" not in found
    loaded = load_sweep(copy)
    untested = dataclasses.replace(loaded, best=loaded.best | {"tied": None})
    assert "close results may differ by chance" in dict(summary(untested))["Found"]
    winner = dict(summary(load_sweep(out)))["Found"]
    score = f"{answer['best']['perplexity']:.1f}"
    assert f"is the best: the model trained anew on the private text by its settings has perplexity {score}" in winner


def test_proxies_that_disagree_are_a_warning(searched, capsys):
    """It was a clause in the middle of a paragraph, below a green box that says what to hand on."""
    _, out, answer = searched
    loaded = load_sweep(out)
    trials = pd.concat([loaded.trials] * 3, ignore_index=True)
    trials["one.perplexity"], trials["other.perplexity"] = range(1, 7), range(6, 0, -1)
    apart = dataclasses.replace(loaded, trials=trials)
    (text,) = (pair["text"] for pair in apart.agreement)
    assert text in warnings(apart)
    assert text not in dict(summary(apart))["Found"]
    assert not [line for line in warnings(loaded) if line.startswith("Agreement")], "of too few trials"
    print_sweep(answer | {"agreement": apart.agreement})
    assert f"Caution: {text}" in capsys.readouterr().out


def test_the_winner_is_trained_once_on_the_private_text(searched, tmp_path):
    _, out, answer = searched
    winner = json.loads((out / "winner" / "result.json").read_text())
    assert answer["best"]["epsilon_with_choice"] == winner["epsilon"]["user-entity"] <= 8
    assert len(list((out / "trials").iterdir())) == 8
    assert export(out, tmp_path / "handed-on")["epsilon"] == answer["best"]["epsilon_with_choice"]
    assert answer["selection"]["text"].startswith("Choosing is not charged: trials were trained on text that the owner")


def test_frames_tables_and_figures_tell_the_texts_apart(searched, capsys):
    _, out, answer = searched
    loaded = load_sweep(out)
    assert loaded.trials["other.perplexity"].tolist() == [row["other.perplexity"] for row in answer["trials"]]
    rounds = loaded.rounds("0000")
    assert set(zip(rounds["proxy"], rounds["seed"], strict=True)) == {(name, s) for name in TWO for s in (0, 1)}
    (drawn,) = (axes.lines for axes in figures.learning_curves(loaded, top=1).axes)
    assert sum(len(line.get_xdata()) > 2 for line in drawn) == 2, "a curve for each seed, not for each text"
    (axes,) = figures.proxies(loaded).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("perplexity on one", "perplexity on other")
    page = report([out]).read_text()
    assert "Do the public texts agree?" in page
    assert "on each of the public texts one, other, whose mean score counts" in page
    print_sweep(answer)
    assert "Agreement of one and other: not known from 2 trials." in capsys.readouterr().out


def test_the_measurement_of_what_proxies_are_worth_compares_like_with_like(searched):
    """``benchmarks/proxies.py``, on a search and a private sweep of the same points, in another order."""
    spec = importlib.util.spec_from_file_location("proxies", ROOT / "benchmarks" / "proxies.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _, out, _ = searched
    loaded = load_sweep(out)
    trials = pd.concat([loaded.trials] * 3, ignore_index=True)
    trials["training.server_learning_rate"] = [0.001 * n for n in range(1, 7)]
    trials["one.perplexity"] = [60.0, 50.0, 40.0, 30.0, 20.0, 10.0]
    trials["other.perplexity"] = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    trials["perplexity"] = [3.0, 1.0, 2.0, 4.0, 5.0, 6.0]
    search = dataclasses.replace(loaded, trials=trials)
    private = trials.assign(perplexity=[106.0, 105.0, 104.0, 103.0, 102.0, 100.0])
    found = module.compared(search, dataclasses.replace(loaded, trials=private.iloc[::-1]))
    assert found["correlation"].tolist()[:2] == pytest.approx([1.0, -1.0])
    assert found["regret"].tolist() == pytest.approx([0.0, 0.06, 0.05, 0.035])
    assert found.index.tolist() == ["one", "other", "mean", "the median setting"]
    assert set(found["settings"]) == {6}


def test_a_sweep_of_one_text_has_nothing_to_compare(corpora, tmp_path):
    config = two_texts(corpora, tmp_path, public=proxy("public", seed=5))
    assert config.suffixes == ("",)
    answer = search_here(config, tmp_path / "out", POINTS)
    assert answer["agreement"] == []
    with pytest.raises(NothingToShow):
        figures.proxies(load_sweep(tmp_path / "out"))
    assert "Do the public texts agree?: The trials have one text" in report([tmp_path / "out"]).read_text()


@pytest.mark.usefixtures("here")
def test_a_search_on_two_texts_ends_and_resumes(corpora, tmp_path):
    two_texts(corpora, tmp_path)
    config = load_sweep_config(tmp_path / "sweep.yaml", ["base.corpus.declared_num_users=90"])
    told: list[str] = []
    answer = sweep(config, tmp_path / "out", reporter=Told(say=told.append))
    assert [row["state"] for row in answer["trials"]] == ["done", "done"]
    assert "caution: proxy one has 20 users, and 90 are declared of the private text" in " ".join(told)
    assert sweep(config, tmp_path / "out", resume=True) == answer
    assert {row["name"] for row in answer["references"]} <= {"public-only", "noiseless"}


def test_the_file_that_is_kept_names_the_same_texts(corpora, tmp_path):
    config = two_texts(corpora, tmp_path)
    dump_sweep_config(config, tmp_path / "kept.yaml")
    kept = load_sweep_config(tmp_path / "kept.yaml")
    assert kept.digest() == config.digest()
    assert kept.proxy_names == ("one", "other")
    renamed = two_texts(corpora, tmp_path, public={"one": TWO["one"], "another": TWO["other"]})
    assert renamed.digest() != config.digest()


@pytest.mark.parametrize(
    ("public", "said"),
    [
        ({"one": TWO["one"], "Big": TWO["other"]}, r"search\.public\.Big"),
        ({"one": TWO["one"], "other-2": TWO["other"]}, r"search\.public\.other-2"),
        ({"one": TWO["one"], "other": "wiki.txt"}, r"search\.public\.other = 'wiki\.txt'"),
        ({"one": {}}, r"search\.public\.one"),
        ({"corpus.source": {"format": "text", "path": "a"}, "other": TWO["other"]}, "other"),
        ({"one": TWO["one"], "other": {"corpus.sauce": 1}}, r"search\.public\.other\.corpus\.sauce"),
        ({"one": TWO["one"], "other": {"corpus.declared_num_users": 9}}, r"search\.public\.other.*give corpus\.source"),
        (
            {"one": TWO["one"], "other": proxy("public", seed=5)},
            r"search\.public\.other = 'synthetic': is the same text as search\.public\.one",
        ),
    ],
)
def test_what_is_no_proxy_is_refused_by_its_name(corpora, tmp_path, public, said):
    with pytest.raises(InputError, match=said):
        searched_bases(two_texts(corpora, tmp_path, public=public))


def cut(text: Path, **settings: Any) -> dict[str, Any]:
    return {"format": "pseudo-users", "path": str(text), "num_users": 20, "sentences_per_user": 2} | settings


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("source", "evaluation", "said"),
    [
        ({}, {"path": "missing.txt"}, r"search\.public\.one\.corpus\.evaluation\.path = '.*missing\.txt'"),
        ({}, {"skip_users": 900}, r"search\.public\.one\.corpus\.evaluation\.num_users.*too short: 900 skipped and 20"),
        (
            {"num_users": 900},
            {"skip_users": 900},
            r"search\.public\.one\.corpus\.source\.num_users.*too short: 900 users",
        ),
        ({}, {"skip_users": 1}, r"search\.public\.one\.corpus\.evaluation = .*trained on it.*\(skip_users\)"),
        ({}, {"skip_users": 1, "min_words": 9}, r"search\.public\.one\.corpus\.evaluation = .*cut both texts alike"),
    ],
)
def test_what_is_wrong_with_the_text_of_a_proxy_names_the_proxy(corpora, tmp_path, source, evaluation, said):
    path = tmp_path / "public.txt"
    path.write_text("\n".join(sentence.text for sentence in generate(60, seed=3, part="public")))
    bad = {"corpus.source": cut(path, **source), "corpus.evaluation": cut(path, **evaluation)}
    config = two_texts(corpora, tmp_path, public={"one": bad | {"corpus.evaluation_basis": "public"}})
    with pytest.raises(InputError, match=said):
        sweep(config, tmp_path / "out")


def test_texts_that_are_too_short_are_refused_at_once_with_their_length(corpora, tmp_path, monkeypatch):
    """Each took half a minute of preparing the others, and none said by how much."""
    path, held_out = tmp_path / "public.txt", tmp_path / "held-out.txt"
    for seed, file in enumerate((path, held_out)):
        file.write_text("\n".join(sentence.text for sentence in generate(60, seed=seed, part="public")))
    short = {
        "corpus.source": cut(path, num_users=900),
        "corpus.evaluation": cut(held_out),
        "corpus.evaluation_basis": "public",
    }
    config = two_texts(corpora, tmp_path, public={"one": proxy("public", seed=5), "other": short})
    monkeypatch.setattr("uedp_ray.search.shared.prepared", None)  # nothing is prepared
    with pytest.raises(
        InputError, match=r"search\.public\.other\.corpus\.source\.num_users.*, of which it has \d+, each"
    ):
        sweep(config, tmp_path / "out")


def test_trials_on_several_texts_are_not_stopped_early(corpora, tmp_path):
    with pytest.raises(InputError, match=r"search\.early_stopping.*one text"):
        two_texts(corpora, tmp_path, early_stopping="median")


def rows(*pairs: tuple[float, float]) -> list[dict[str, Any]]:
    done = [
        {"trial": f"{number:04d}", "state": "done", "one.perplexity": one, "other.perplexity": other}
        for number, (one, other) in enumerate(pairs)
    ]
    return [*done, {"state": "failed", "one.perplexity": None, "other.perplexity": None}]


def test_agreement_is_the_correlation_of_ranks(corpora, tmp_path):
    config = two_texts(corpora, tmp_path)
    (alike,) = agreement(config, rows((1, 10), (2, 30), (3, 40), (4, 900), (5, 901)))
    assert (alike["trials"], alike["proxies"]) == (5, ["one", "other"])
    assert alike["rank_correlation"] == pytest.approx(1.0)
    assert alike["text"] == "Agreement of one and other: rank correlation 1.00 over 5 trials."
    (unlike,) = agreement(config, rows((1, 40), (2, 30), (3, 20), (4, 10), (5, 50)))
    expected = pd.Series([1, 2, 3, 4, 5]).corr(pd.Series([4, 3, 2, 1, 5]), method="spearman")
    assert unlike["rank_correlation"] == pytest.approx(expected)
    assert "they rank settings differently" in unlike["text"]
    assert "best on each (trial 0000 on one, trial 0003 on other)" in unlike["text"]
    (none,) = agreement(config, [])
    assert none["text"] == "Agreement of one and other: not known from 0 trials."
    few = [(float(n), float(n)) for n in range(LEAST_TRIALS - 1)]
    for known in (few, [(1.0, float(n)) for n in range(LEAST_TRIALS)]):
        (unknown,) = agreement(config, rows(*known))
        assert unknown["rank_correlation"] is None
        assert "not known" in unknown["text"]


def test_scores_are_in_the_order_of_the_runs(corpora, tmp_path):
    config = two_texts(corpora, tmp_path, seeds_per_trial=3)
    scores = [4.0, 9.0, 16.0, 1.0, 4.0, 25.0]
    assert by_seed(config, scores) == pytest.approx([2.0, 6.0, 20.0])
    assert score_of(config, scores) == pytest.approx(6.0), "one lucky or unlucky seed decides nothing"
    assert of_each(config, scores) == {"one.perplexity": 9.0, "other.perplexity": 4.0}


def test_a_proxy_unlike_the_private_text_is_told(corpora, tmp_path):
    two_texts(corpora, tmp_path)
    config = load_sweep_config(tmp_path / "sweep.yaml", ["base.corpus.declared_num_users=1000"])
    corpus = open_corpus(corpora / "private")
    (users,) = cautions(config, "one", corpus, None)
    assert users.startswith(f"proxy one has {corpus.num_users} users, and 1,000 are declared of the private text")
    config = load_sweep_config(tmp_path / "sweep.yaml", [f"base.corpus.declared_num_users={corpus.num_users}"])
    assert list(cautions(config, "one", corpus, None)) == []
    (shared,) = cautions(config, "", corpus, corpus.text_sketch)
    assert shared == "the proxy shares 100% of its text with the pre-training text, which has little left to teach"


def test_a_proxy_in_words_that_the_public_model_does_not_know_is_told_before_the_first_trial(corpora, tmp_path):
    two_texts(corpora, tmp_path)
    corpus = open_corpus(corpora / "private")
    config = load_sweep_config(tmp_path / "sweep.yaml", [f"base.corpus.declared_num_users={corpus.num_users}"])
    settings = VocabularyConfig(kind="public-words")
    own = build_vocabulary(settings, public_text=lambda: [text for _, said in corpus.texts() for text in said])
    other = build_vocabulary(settings, public_text=lambda: ["das ist ein anderer Text"])
    assert unread(config, "one", corpus, own) == ""
    told = unread(config, "one", corpus, other)
    assert told.startswith("100% of the words of the evaluation text of proxy one are <unk>")


def test_proxies_that_gain_far_more_than_the_private_text_are_named():
    def row(before, after):
        return {"initial_perplexity": before, "perplexity": after}

    said = unlike_gain(PERPLEXITY, row(238.9, 110.2), row(188.6, 155.1))
    assert said.startswith(
        "The search's text gained more by training (238.9 to 110.2) than the private text (188.6 to 155.1)"
    )
    assert unlike_gain(PERPLEXITY, row(238.9, 110.2), row(188.6, 195.0)), "one that lost by it, too"
    assert unlike_gain(PERPLEXITY, row(188.6, 155.1), row(188.6, 150.0)) is None
    assert unlike_gain(PERPLEXITY, row(188.6, 190.0), row(188.6, 190.0)) is None
    for unknown in (row(None, 110.2), row(238.9, math.inf), {}):
        assert unlike_gain(PERPLEXITY, unknown, row(188.6, 155.1)) is None
