"""Making a run directory ready: keys, paths, and what the corpus says of itself."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.search.sweeps import PRETRAIN, search_here, sweep_config, sweep_tree, write_sweep
from tests.told import Told
from tests.training.runs import TREE, content, crash, events, run_config, run_tree
from uedp_ray import export
from uedp_ray.config import SourceConfig, dump_config
from uedp_ray.corpus.prepare import prepare
from uedp_ray.errors import InputError, TextError
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.search.compare import compare
from uedp_ray.search.comparison import Comparison
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import load_sweep_config
from uedp_ray.storage.files import write_json
from uedp_ray.training import prepared, rundir
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import pretrain
from uedp_ray.training.setup import prepare_run


def test_a_run_whose_ledger_is_gone_draws_with_a_new_key(corpora, tmp_path):
    """With the old key it would draw the same secret samples again, and nothing would charge for them."""
    config = run_config(corpora)
    run = prepare_run(config, tmp_path / "run", resume=False)
    before = run.key.read_text()
    assert prepare_run(config, tmp_path / "run", resume=True).key.read_text() == before
    run.ledger.unlink()
    run.setup.unlink()
    shutil.rmtree(run.vocabulary)
    assert prepare_run(config, tmp_path / "run", resume=True).key.read_text() != before


def test_a_folder_in_which_setting_up_failed_takes_a_mended_config(corpora, tmp_path):
    strict = {"mode": "declared", "max_holders": 1}
    with pytest.raises(InputError, match="max_sentences_per_entity"):
        prepare_run(run_config(corpora, bounds=strict), tmp_path / "run", resume=False)
    mended = run_config(corpora)
    run = prepare_run(mended, tmp_path / "run", resume=False)
    assert run.load_config().digest() == mended.digest()
    with pytest.raises(InputError, match="holds a run already"):
        prepare_run(mended, tmp_path / "run", resume=False)


@pytest.mark.parametrize(
    ("privacy", "caution"),
    [
        ({"target_epsilon": 5.0, "delta": 0.04}, "1 / 30 declared users"),
        ({"target_epsilon": 1e-4}, "nothing can be learnt"),
    ],
)
def test_settings_that_are_of_no_use_are_told_before_any_text_is_read(corpora, tmp_path, privacy, caution):
    said = []
    config = run_config(corpora, privacy={**privacy, "noise_multiplier": None})
    prepare_run(config, tmp_path / "run", resume=False, reporter=Told(say=said.append))
    assert said[0] == "solving the noise multiplier"
    assert said[1].startswith("caution: ")
    assert caution in said[1]
    assert "reading the corpus" in said[2:]


@pytest.mark.parametrize("started", [False, True])
def test_public_text_that_no_model_was_trained_on_is_told(corpora, tmp_path, started):
    said, text = [], [{"format": "text", "path": str(tmp_path / "none.txt")}]
    config = run_config(corpora, pretrain={"text": text}, model={"warm_start": "/no/such/model"} if started else {})
    with suppress(InputError):  # without the model
        prepare_run(config, tmp_path / "run", resume=False, reporter=Told(say=said.append))
    assert any("uedp-ray pretrain" in line for line in said) != started


def test_a_sentence_that_bounds_left_out_stays_out(corpora, tmp_path):
    """A flipped bit makes a weight of 0 one of 2, or one of 1 some other: in range it breaks the bound of a holder."""
    config = run_config(corpora)
    run = prepare_run(config, tmp_path / "run", resume=False)
    weights = np.load(run.sentence_weight)
    weights[0] /= 2
    np.save(run.sentence_weight, weights)
    with pytest.raises(InputError, match=r"sentence_weight.npy.*is damaged: delete private/setup.json"):
        train(config, tmp_path / "run", workers=0, resume=True)
    run.setup.unlink()
    assert train(config, tmp_path / "run", workers=0, resume=True)["rounds"] == config.training.num_rounds


@pytest.mark.parametrize("kept", ["checkpoint", "model", "rounds.parquet", "result.json", "private/setup.json"])
def test_what_a_lost_ledger_paid_for_is_kept_and_no_other_takes_its_place(private_run, corpora, tmp_path, kept):
    out = tmp_path / "run"
    shutil.copytree(private_run.out, out)
    (out / "ledger.jsonl").unlink()
    for name in {"checkpoint", "model", "rounds.parquet", "result.json", "private/setup.json"} - {kept}:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    before = content(out)
    for rounds, resume, message in (
        (9, False, "holds a run already"),
        (9, True, "its config"),
        (5, True, "is missing"),
    ):
        config = run_config(corpora, training={**TREE["training"], "num_rounds": rounds})
        with pytest.raises(InputError, match=message):
            train(config, out, workers=0, resume=resume)
        assert {path: before[path] for path in before if path.name != "sentence_weight.npy"}.items() <= content(
            out
        ).items()


@pytest.mark.parametrize(
    ("part", "remedy"),
    [
        ("sweep", r"one run of a sweep, .* \(uedp-ray sweep … --resume\)"),
        ("comparison", r"uedp-ray compare … --resume"),
    ],
)
def test_a_run_of_several_goes_on_with_them_alone(corpora, tmp_path, part, remedy):
    """What they say of its price would not know of rounds that somebody else has it play."""
    config, out = run_config(corpora), tmp_path / "run"
    other = run_config(corpora, training={**TREE["training"], "num_rounds": 9})
    prepare_run(config, out, resume=False, part_of=part)  # nothing is charged yet: others might take its place
    for charged in (0, 2):
        if charged:
            crash(config, out, charges=charged, resume=True, part_of=part)
        (tmp_path / f"copy-{charged}").mkdir()
        copy = shutil.copytree(out, tmp_path / f"copy-{charged}" / "run")
        before = content(tmp_path)
        for folder in (out, copy):
            for asked, resume, theirs in ((config, True, None), (other, False, None), (config, True, "another")):
                with pytest.raises(InputError, match=remedy):
                    train(asked, folder, workers=0, resume=resume, part_of=theirs)
        assert content(tmp_path) == before
    assert train(config, out, workers=0, resume=True, part_of=part)["rounds"] == 3, (
        "what was charged and not released is not made up for"
    )
    before = content(out)
    with pytest.raises(InputError, match=remedy):
        train(config, out, workers=0, resume=True)
    assert content(out) == before


def test_relative_paths_are_named_from_the_root_for_workers_elsewhere(corpora, pretrained, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(pretrained.out))
    config = run_config(corpora, model={"warm_start": "model"})
    run = prepare_run(config, tmp_path / "run", resume=False)
    assert run.load_config().model.warm_start == str((Path(pretrained.out) / "model").resolve())
    prepare_run(config, tmp_path / "run", resume=True)  # the same run, named the same way


@pytest.mark.parametrize("name", ["Mes\u00a0textes", "famille-\U0001f468\u200d\U0001f469"])
def test_a_name_that_a_config_may_have_is_no_damage_to_the_run(corpora, tmp_path, name):
    shutil.copytree(corpora, tmp_path / name)
    config = run_config(tmp_path / name, training={"num_rounds": 1})
    shared = tmp_path / name / "tokens"
    run = prepare_run(config, tmp_path / "run", resume=False, tokens=shared)
    assert train(config, run.root, workers=0, resume=True, tokens=shared)["rounds"] == 1


def test_a_name_that_no_config_can_have_is_refused_before_anything_is_made(corpora, tmp_path, monkeypatch):
    shutil.copytree(corpora, tmp_path / "a\tb")
    monkeypatch.setenv("UEDP_HERE", str(tmp_path / "a\tb"))
    config = run_config(corpora, corpus={"source": {"path": "$UEDP_HERE/private"}})
    with pytest.raises(InputError, match=r"corpus\.source\.path = .*: a name in this path is not one line"):
        prepare_run(config, tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


def test_what_name_stands_for_is_used_and_not_published(corpora, pretrained, tmp_path, monkeypatch):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model").symlink_to(Path(pretrained.out) / "model")
    shutil.copytree(corpora, tmp_path / "two" / "corpora")
    (tmp_path / "one" / "corpora").symlink_to(corpora)
    monkeypatch.setenv("UEDP_HERE", str(tmp_path / "one"))
    corpus = {"source": {"path": "$UEDP_HERE/corpora/private"}, "evaluation": {"path": "${UEDP_HERE}/corpora/held_out"}}
    config = run_config(corpora, corpus=corpus, model={"warm_start": "$UEDP_HERE/model"}, training={"num_rounds": 1})
    run = prepare_run(config, tmp_path / "run", resume=False)
    monkeypatch.setenv("UEDP_HERE", str(tmp_path / "two"))  # another machine, with the same text elsewhere
    train(run.load_config(), tmp_path / "run", workers=0, resume=True)
    assert "path: $UEDP_HERE/corpora/private" in run.config.read_text()
    published = [path for path in run.root.rglob("*") if path.is_file() and run.private not in path.parents]
    private = [str(tmp_path / "one").encode(), str(corpora).encode()]
    assert not [path for path in published for text in private if text in path.read_bytes()]
    monkeypatch.delenv("UEDP_HERE")
    with pytest.raises(InputError, match=r"corpus.source.path = .*UEDP_HERE is not set"):
        train(run.load_config(), tmp_path / "run", workers=0, resume=True)


def test_nor_by_a_comparison_or_a_sweep(corpora, tmp_path, monkeypatch):
    monkeypatch.setenv("UEDP_HERE", str(corpora))
    corpus = {"source": {"path": "$UEDP_HERE/private"}, "evaluation": {"path": "$UEDP_HERE/held_out"}}
    base = run_config(corpora, corpus=corpus, pretrain=PRETRAIN, training={"num_rounds": 1})
    compare(Comparison(base, {"uedp": ("uedp", {})}), tmp_path / "compared", workers=0)
    recipe = sweep_config(corpora, tmp_path, base={"corpus": {**run_tree(corpora)["corpus"], **corpus}})
    search_here(recipe, tmp_path / "sweep", [{"training.num_rounds": 2, "training.server_learning_rate": 0.01}])
    for run in (tmp_path / "compared" / "uedp", tmp_path / "sweep" / "trials" / "0000"):
        text = (run / "config.yaml").read_text()
        assert "path: $UEDP_HERE/private" in text
        assert str(corpora) not in text


def test_the_statement_names_the_detectors_the_corpus_was_prepared_with(private_run):
    text = (private_run.out / "privacy.md").read_text()
    assert "Entities found by: annotated; categories: all found." in text


def test_there_must_be_a_run_to_resume(corpora, tmp_path):
    with pytest.raises(InputError, match="holds no run to resume"):
        prepare_run(run_config(corpora), tmp_path / "tpyo", resume=True)
    assert not (tmp_path / "tpyo").exists()


def test_a_start_that_fails_after_the_ledger_is_opened_can_be_mended(corpora, tmp_path):
    absent = run_config(corpora, model={"warm_start": str(tmp_path / "absent")})
    with pytest.raises(InputError, match=r"model\.warm_start"):
        prepare_run(absent, tmp_path / "run", resume=False)
    mended = run_config(corpora)
    run = prepare_run(mended, tmp_path / "run", resume=False)
    assert Ledger.open(run.ledger, config_digest=rundir.ledger_digest(run, mended)).header["private"] is True


def test_a_run_that_charged_anything_is_never_cleared(private_run, corpora):
    with pytest.raises(InputError, match="holds a run already"):
        prepare_run(run_config(corpora, training={"num_rounds": 9}), private_run.out, resume=False)
    assert (private_run.out / "result.json").exists()


@pytest.mark.parametrize("copied", [False, True])
def test_a_model_trained_on_private_text_is_no_public_start(private_run, corpora, tmp_path, copied):
    model = private_run.out / "model"
    if copied:
        model = shutil.copytree(model, tmp_path / "elsewhere")
    for settings in ({"warm_start": str(model)}, {"architecture": "pretrained", "path": str(model)}):
        text = [{"format": "synthetic", "num_users": 8, "part": "public"}]
        config = run_config(corpora, model=settings, pretrain={"text": text, "num_steps": 1, "batch_size": 2})
        with pytest.raises(InputError, match="comes from a run on private text"):
            prepare_run(config, tmp_path / "run", resume=False)
    with pytest.raises(InputError, match="comes from a run on private text"):
        pretrain(config, tmp_path / "public")


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("named", ["vocabulary", "vocabulary/tokenizer.json", "model"])
def test_words_that_a_run_took_from_private_text_are_no_public_ones(corpora, tmp_path, copied, named):
    noisy = {"kind": "noisy-threshold", "noise_multiplier": 0.02, "threshold_delta": 1e-5, "public_text": []}
    out = tmp_path / "run"
    train(run_config(corpora, vocabulary=noisy, training={"num_rounds": 1}), out, workers=0)
    if copied:
        out = tmp_path / "elsewhere"
        for part in ("vocabulary", "model"):
            shutil.copytree(tmp_path / "run" / part, out / part)
    text = [{"format": "synthetic", "num_users": 8, "part": "public"}]
    words = {"kind": "tokenizer", "path": str(out / named), "public_text": []}
    config = run_config(corpora, vocabulary=words, pretrain={"text": text, "num_steps": 1, "batch_size": 2})
    for start in (prepare_run, train):
        with pytest.raises(InputError, match=r"vocabulary.path = .*comes from a run on private text"):
            start(config, tmp_path / "another", resume=False)
    with pytest.raises(InputError, match=r"vocabulary.path"):
        pretrain(config, tmp_path / "public")


def test_workers_open_the_text_that_the_run_was_set_up_with_and_no_other(tmp_path):
    """Bounds, guards and the declared number of users were checked on that one."""
    prepare(SourceConfig(format="synthetic", num_users=8), tmp_path / "text", num_shards=2)
    source = {"path": str(tmp_path / "text"), "format": "prepared"}
    held_out = {"format": "synthetic", "num_users": 3, "part": "held_out"}
    config = run_config(tmp_path, corpus={"source": source, "evaluation": held_out, "declared_num_users": 9})
    run = prepare_run(config, tmp_path / "run", resume=False)
    prepare(SourceConfig(format="synthetic", num_users=8, seed=1), tmp_path / "text", num_shards=2)
    with pytest.raises(InputError, match=r"corpus\.source = .*has changed since the run began"):
        prepared.Prepared.open(run)


@pytest.mark.parametrize("command", ["train", "pretrain", "compare", "sweep", "prepare"])
def test_what_a_refused_start_finds_in_a_strangers_folder_stays(corpora, tmp_path, command, monkeypatch):
    home = tmp_path / "home"
    for name in (".thesis.new", ".vault.old", "home"):
        (home / name).mkdir(parents=True)
        (home / name / "chapter").write_text("mine")
    for name in (".bashrc.old", ".home.lock", "bashrc"):
        (home / name).write_text("mine")
    (tmp_path / ".home.lock").write_text("mine")
    before = content(tmp_path)
    text = [{"format": "synthetic", "num_users": 8, "part": "public"}]
    config = run_config(corpora, pretrain={"text": text, "num_steps": 2})
    starts = {
        "train": lambda: train(config, home, workers=0),
        "pretrain": lambda: pretrain(config, home),
        "compare": lambda: compare(Comparison(config, {}), home, workers=0),
        "sweep": lambda: sweep(sweep_config(corpora, tmp_path.parent), home),
        "prepare": lambda: prepare(SourceConfig(format="synthetic", num_users=8), home),
    }
    with pytest.raises(InputError):
        starts[command]()
    assert content(tmp_path) == before


@pytest.mark.parametrize("command", ["train", "sweep"])
@pytest.mark.parametrize("same", [True, False, None], ids=["the settings asked for", "others", "no file of settings"])
@pytest.mark.parametrize("beside", [["private/corpora/mine", "private/notes", "vocabulary/words", "thesis"], []])
def test_a_file_of_a_users_own_that_has_the_name_of_one_of_ours_stays(corpora, tmp_path, command, same, beside):
    """A project with its own config.yaml, and its text in private/, is no run that failed to start."""
    home, tree = tmp_path / "home", sweep_tree(corpora)
    (home / "private").mkdir(parents=True)
    for name in beside:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("mine")
    config = run_config(corpora) if command == "train" else load_sweep_config(write_sweep(tree, home))
    own = home / ("config.yaml" if command == "train" else "sweep.yaml")
    dump_config(config, own) if command == "train" else None
    if same is None and not beside:
        pytest.skip("nothing of the user's")
    own.write_text(f"# mine\n{own.read_text()}" if same else "# mine\nname: another\n" + own.read_text())
    if same is None:  # and beside it private/ alone
        own.unlink()
        for name in {name.partition("/")[0] for name in beside} - {"private"}:
            shutil.rmtree(home / name) if (home / name).is_dir() else (home / name).unlink()
    before = content(home)
    with pytest.raises(InputError, match="is not empty and holds no"):
        train(config, home, workers=0) if command == "train" else sweep(config, home)
    assert content(home) == before


def test_a_run_can_be_mended_more_than_once(corpora, tmp_path):
    """What a mended start takes the place of is gone, copies of text included."""
    text = {"source": {"format": "synthetic", "num_users": 9}, "declared_num_users": 9}
    bounds = {"mode": "declared", "max_sentences_per_entity": 1}
    for holders in (1, 2, 3):
        with pytest.raises(TextError):
            train(run_config(corpora, corpus=text, bounds={**bounds, "max_holders": holders}), tmp_path, workers=0)
        assert {path.name for path in (tmp_path / "private").iterdir()} <= {
            "corpus",
            "corpus.source.json",
            "evaluation",
            "config.yaml",
            "text.json",
            "sampling.key",  # of a start without a ledger: the next one draws another
        }
    assert train(run_config(corpora, corpus=text), tmp_path, workers=0)["rounds"]


@pytest.mark.parametrize("mechanism", [None, {"noise_multiplier": 0.05}])
def test_another_noise_than_the_ledger_was_opened_with_is_never_added(corpora, tmp_path, mechanism):
    config = run_config(corpora)
    run = prepare_run(config, tmp_path / "run", resume=False)
    setup = run.load_setup()
    setup["mechanism"] = mechanism and setup["mechanism"] | mechanism
    write_json(run.setup, setup, private=True)
    with pytest.raises(InputError, match=r"setup\.json = .*is not that of the ledger's first line"):
        train(config, tmp_path / "run", workers=0, resume=True)
    assert events(tmp_path / "run") == []


def test_what_lies_beside_a_folder_that_is_made_stays(private_run, tmp_path):
    for name in (".made.old", ".made.new", ".text.old", ".text.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").write_text("mine")
    before = content(tmp_path)
    export(private_run.out, tmp_path / "made")
    prepare(SourceConfig(format="synthetic", num_users=3), tmp_path / "text")
    assert before.items() <= content(tmp_path).items()
