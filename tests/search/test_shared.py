"""What all trials share is checked once, before the first of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.search.sweeps import PRETRAIN, sweep_config, sweep_tree, write_sweep
from tests.told import Told
from uedp_ray.config import SourceConfig
from uedp_ray.console import print_sweep
from uedp_ray.corpus.prepare import prepare
from uedp_ray.errors import InputError, TextError
from uedp_ray.screens import _status_line
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import load_sweep_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("rule", ["public", "composition"])
def test_what_trials_lose_is_told_before_the_first_and_of_the_answer_at_the_end(corpora, tmp_path, capsys, rule):
    """All that was said, after the last trial, was that 36% of the proxies were <unk>; of the winner's text 56% were."""
    source = {"format": "synthetic", "num_users": 30, "part": "public"}
    held_out = {"format": "synthetic", "num_users": 6, "part": "public", "seed": 3}
    public = {"corpus.source": source, "corpus.evaluation": held_out, "corpus.evaluation_basis": "public"}
    search = {"trials": 1, "selection": rule, **({"public": public} if rule == "public" else {})}
    tree, said = sweep_tree(corpora, search=search), []
    tree["base"]["vocabulary"]["max_size"] = 40
    tree["base"]["bounds"]["max_holders"] = 1
    tree["base"]["pretrain"] = {"text": [source | {"seed": 5, "num_users": 4}], "num_steps": 2, "batch_size": 4}
    config = load_sweep_config(write_sweep(tree, tmp_path))
    answer = sweep(config, tmp_path / "out", reporter=Told(say=said.append))
    before = said[: next(place for place, line in enumerate(said) if line.startswith("searching: "))]
    of = " of the proxy" if rule == "public" else ""
    assert [line for line in before if f"of the words of the evaluation text{of} are <unk>" in line]
    cut = "of the tokens are beyond model.max_length = 12 and not used (private: read off the text)"
    assert len([line for line in before if line.endswith(cut)]) == 1, "train said so, and a search did not"
    lost = [line for line in before if "dropped by bounds: " in line]
    assert len(lost) == (2 if rule == "public" else 1)
    for line in lost:
        assert line.startswith("caution: of the proxy, ") != ("(private: read off the text" in line)
    share = f"{answer['best']['unk_share']:.0%} of the words of the evaluation text are <unk>"
    assert answer["cautions"][0].startswith(share)
    ended = [place for place, line in enumerate(said) if line.startswith("searching: ")][-1]
    assert not {line for line in said[ended:] if "<unk>" in line} - {*said[:ended]}, "the answer says it"
    ran = json.loads((Path(answer["best"]["run_dir"]) / "result.json").read_text())
    first = json.loads((tmp_path / "out" / "trials" / "0000" / "result.json").read_text())
    for key in ("initial_perplexity", "initial_bits_per_byte", "bzip2_bits_per_byte"):
        assert answer["best"][key] == ran[key]
        assert answer["trials"][0][key] == first[key]
    texts = {"corpus.evaluation": ran} | ({"the proxy": first} if rule == "public" else {})
    for text, run in texts.items():  # the public model, in time to stop before hours of search
        figures = f"{run['initial_perplexity']:.1f}, {run['initial_bits_per_byte']:.3f} bits/byte"
        scale = f"bzip2 takes {run['bzip2_bits_per_byte']:.3f} bits/byte of the same text"
        assert f"the public model on {text}: perplexity {figures} ({scale})" in before
    worthless = [line for line in before if line.startswith("caution: bzip2 takes ")]
    assert len(worthless) == (ran["initial_bits_per_byte"] >= ran["bzip2_bits_per_byte"])
    print_sweep(answer)
    shown = capsys.readouterr().out
    assert f"Caution: {share}" in shown
    if rule == "public":
        start = f"{ran['initial_perplexity']:.1f}, {ran['initial_bits_per_byte']:.3f} bits/byte"
        assert f"(from {start}, before that training)" in shown
    worthless = ran["bits_per_byte"] >= ran["bzip2_bits_per_byte"]
    said = "Caution: bzip2 takes" if worthless else "For scale: bzip2 takes"
    assert shown.count(f"{said} {ran['bzip2_bits_per_byte']:.3f} bits/byte of the same text") == 1


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("call me at a.b@example.org", "caution: no name of a person, a company or a place was found, only email"),
        ("nothing here", "caution: no sensitive entity was found in corpus.source"),
    ],
)
def test_that_no_name_is_protected_is_told_before_the_first_trial(corpora, tmp_path, text, told):
    """``train`` said so, and a search of hours did not."""
    written = "".join(json.dumps({"user": f"u{n}", "text": f"{text} {n}"}) + "\n" for n in range(12))
    (tmp_path / "notes.jsonl").write_text(written)
    tree, said = sweep_tree(corpora, search={"trials": 1}), list[str]()
    tree["base"]["corpus"]["source"] = {"format": "jsonl", "path": str(tmp_path / "notes.jsonl"), "detector": ["regex"]}
    sweep(load_sweep_config(write_sweep(tree, tmp_path)), tmp_path / "out", reporter=Told(say=said.append))
    before = said[: next(place for place, line in enumerate(said) if line.startswith("searching: "))]
    assert [line for line in before if line.startswith(told) and line.endswith("(private: read off the text)")]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("rate", [1e-9, 1.0])
def test_that_trials_do_harm_is_told_before_private_text_is_touched(corpora, tmp_path, capsys, rate):
    """The winner's epsilon was spent on settings by which each trial was worse than the public model."""
    source = {"format": "synthetic", "num_users": 30, "part": "public"}
    search = {"trials": 1, "selection": "public", "public": {"corpus.source": source}}
    tree = sweep_tree(corpora, search=search, space={"training.server_learning_rate": {"choice": [rate]}})
    tree["base"] |= {"pretrain": PRETRAIN}
    said: list[str] = []
    shown: list[dict[str, Any]] = []
    answer = sweep(
        load_sweep_config(write_sweep(tree, tmp_path)),
        tmp_path / "out",
        reporter=Told(say=said.append, trials=shown.append),
    )
    print_sweep(answer)
    out, (trial,) = capsys.readouterr().out, answer["trials"]
    harmed = trial["perplexity"] > trial["initial_perplexity"]
    assert harmed >= (rate == 1.0)
    place = said.index("training the winner, by the settings of trial 0000, on private text")
    assert said[place - 1].startswith("caution: the best trial predicts worse than the model did before") == harmed
    of_winner = answer["best"]["perplexity"] > answer["best"]["initial_perplexity"]
    assert ("began from scores better (perplexity" in out) == of_winner >= (rate == 1.0)
    assert out.count("Caution: the public model that training began from scores") == 1, "a rate of 1e-9, too"
    assert ("worse than before training (" in _status_line(shown[-1])) == harmed


@pytest.mark.usefixtures("here")
def test_rule_public_refuses_the_private_text_under_another_spelling(corpora, tmp_path):
    """A search on it would not cost nothing, whatever it says."""
    for name, source in {
        "path": {"path": f"{corpora}/./private"},
        "prepared twice": {"path": str(prepared_again(corpora / "private", tmp_path / "twice"))},
        "another detector": {"format": "synthetic", "num_users": 30, "detector": ["regex"]},
        "a part of it": {"format": "synthetic", "num_users": 9, "categories": ["person"]},
    }.items():
        search = {"trials": 2, "selection": "public", "public": {"corpus.source": source}}
        (tmp_path / name).mkdir()
        with pytest.raises(InputError, match=r"is the text of|of its running text") as caught:
            sweep(sweep_config(corpora, tmp_path / name, search=search), tmp_path / name / "out")
        assert caught.value.field == "search.public.corpus.source", name
        assert not (tmp_path / name / "out" / "trials").exists()


@pytest.mark.usefixtures("here")
def test_a_category_of_the_space_that_the_corpus_does_not_have_is_refused(corpora, tmp_path):
    base = sweep_tree(corpora)["base"]
    base["corpus"]["source"] = {"format": "synthetic", "num_users": 9}
    space, told = {"corpus.categories": {"choice": [["person"], ["iban"]]}}, []
    public = {"corpus.source": {"format": "synthetic", "num_users": 20, "part": "public"}}
    search = {"trials": 2, "selection": "public", "public": public}
    with pytest.raises(InputError, match=r"corpus\.categories = 'iban'"):
        sweep(
            sweep_config(corpora, tmp_path, base=base, space=space, search=search),
            tmp_path / "out",
            reporter=Told(say=told.append),
        )
    assert not (tmp_path / "out" / "trials").exists()
    assert (tmp_path / "out" / "private" / "corpora" / "private").exists()
    assert not any("holds a copy" in line for line in told), "what was copied by then is public text"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("copied", [True, False])
def test_what_stays_of_a_search_on_public_text_is_told_if_it_is_private(corpora, tmp_path, copied):
    base, told = sweep_tree(corpora)["base"], []
    base["pretrain"] = PRETRAIN | {"text": [{"format": "synthetic", "num_users": 9}]}
    base["corpus"]["declared_num_users"] = 30
    if copied:
        base["corpus"]["source"] = {"format": "synthetic", "num_users": 9}
    public = {"corpus.source": {"format": "synthetic", "num_users": 20, "part": "public"}}
    config = sweep_config(corpora, tmp_path, base=base, search={"trials": 2, "selection": "public", "public": public})
    with pytest.raises(TextError):
        sweep(config, tmp_path / "out", reporter=Told(say=told.append))
    line = f"refused; {tmp_path / 'out' / 'private'} holds a copy of the private text"
    assert [each.startswith(line) for each in told if "holds a copy" in each] == [True] * copied


BROKEN = {
    "users": {"corpus": {"declared_num_users": 8}},
    "bounds": {"bounds": {"mode": "declared", "max_holders": 1, "max_sentences_per_entity": 9}},
    "public text": {"vocabulary": {"public_text": [{"format": "synthetic", "num_users": 9}]}},
    "text to pre-train on": {"pretrain": PRETRAIN | {"text": [{"format": "synthetic", "num_users": 9}]}},
    "text to score on": {
        "pretrain": PRETRAIN | {"text": [{"format": "synthetic", "num_users": 9, "part": "held_out"}]}
    },
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", BROKEN)
def test_what_the_text_does_not_allow_refuses_the_sweep_and_no_trial(corpora, tmp_path, monkeypatch, name):
    """Which trials failed for it would tell of the text, exactly and uncharged."""
    monkeypatch.setattr("uedp_ray.training.pretrain.pretrain_into", lambda *_, **__: pytest.fail("pre-trained first"))
    base, told = sweep_tree(corpora)["base"], []
    base["corpus"] |= {"source": {"format": "synthetic", "num_users": 9}, "declared_num_users": 30}
    for section, settings in BROKEN[name].items():
        base[section] = {**base.get(section, {}), **settings}
    with pytest.raises(TextError):
        sweep(sweep_config(corpora, tmp_path, base=base), tmp_path / "out", reporter=Told(say=told.append))
    assert not (tmp_path / "out" / "trials").exists()
    assert "holds a copy of the private text" in told[-1]


def prepared_again(source, out):
    prepare(SourceConfig(path=str(source), categories=("person",)), out)
    return out
