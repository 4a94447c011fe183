"""Making a run directory ready: keys, paths, and what the corpus says of itself."""

from __future__ import annotations

import io
import json
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.crashes.commands import Sweep
from tests.search.sweeps import sweep_config, sweep_tree, write_sweep
from tests.told import Told
from tests.training.runs import TREE, Crash, crash, events, run_config
from uedp_ray import export
from uedp_ray.config import SourceConfig, dump_config
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError, TextError
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.selection_cost import fix_terms
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import load_sweep_config
from uedp_ray.storage import base
from uedp_ray.storage.files import make_folder, write_json
from uedp_ray.storage.locks import folder_locked
from uedp_ray.storage.open import open_storage
from uedp_ray.training import prepared, rundir, setup
from uedp_ray.training.compare import Comparison, compare
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import pretrain
from uedp_ray.training.rundir import RunDir
from uedp_ray.training.setup import prepare_run
from uedp_ray.training.texts import prepare_corpora


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
    assert said[0].startswith("caution: ")
    assert caution in said[0]
    assert "reading the corpus" in said[1:]


def content(folder):
    """Every file below, and what was written to it last."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _told(start, args, kwargs):
    """In another process: what the error, or the terminal, says."""
    base._FOLDER_WAIT = 0.0
    with redirect_stderr(io.StringIO()) as screen, redirect_stdout(io.StringIO()):
        try:
            start(*args, **kwargs)
        except InputError as error:
            return str(error)
    return screen.getvalue()


@pytest.fixture(scope="module")
def refused():
    """refused(start, …): a start in another process ends, and says that the folder is somebody's."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.runs", "uedp_ray.search.sweep", "uedp_ray.training.compare"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:

        def start(start, *args, **kwargs):
            told = pool.submit(_told, start, args, kwargs).result(120)
            assert "another process is at work in this folder" in told

        yield start


@pytest.mark.parametrize("rounds", [5, 9], ids=["same config", "another"])
def test_a_live_run_is_not_touched_by_another_start_at_any_time(corpora, tmp_path, monkeypatch, refused, rounds):
    out, met = tmp_path / "run", []
    other = run_config(corpora, training={**TREE["training"], "num_rounds": rounds})

    def start_again(moment):
        before = content(out)
        for resume in (False, True):
            refused(train, other, out, workers=0, resume=resume)
        assert content(out) == before
        met.append(moment)

    def before(where, name):
        original = getattr(where, name)

        def called(*args, **kwargs):
            if name not in met:
                start_again(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(where, name, called)

    before(setup, "claim")
    before(Ledger, "append")
    before(RunDriver, "finish")
    result = train(
        run_config(corpora),
        out,
        workers=0,
        reporter=Told(say=start_again, evaluated=lambda row: start_again(f"round {row['round']}")),
    )
    assert result["rounds"] == 5
    assert met[:3] == ["solving the noise multiplier", "claim", "reading the corpus"]
    assert [moment for moment in met[3:] if "%" not in moment] == [
        *("building the vocabulary", "tokenising"),
        "trying the network on made-up sentences of up to 12 tokens (model.max_length)",
        *("round 0", "append", "round 2", "round 4", "round 5", "finish"),
    ], "with a ledger that holds its first line only, and so on"
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "the lock is gone"


def test_two_starts_of_pretrain_prepare_and_compare(corpora, tmp_path, refused):
    text = [{"format": "synthetic", "num_users": 8, "part": "public"}]
    config = run_config(corpora, pretrain={"text": text, "num_steps": 2, "batch_size": 4}, training={"num_rounds": 1})
    comparison = Comparison(config, {"with": ("uedp", {})})
    source, met = SourceConfig(format="synthetic", num_users=9), set()
    starts = {
        "pretrained": (pretrain, (config,), {}, "step"),
        "prepared": (prepare, (source,), {}, "prepared"),
        "compared": (compare, (comparison,), {"workers": 0, "resume": True}, "say"),
    }
    for name, (start, args, kwargs, observer) in starts.items():

        def again(*_, name=name, start=start, args=args, kwargs=kwargs):
            before = content(tmp_path)
            refused(start, *args, tmp_path / name, **kwargs)
            assert content(tmp_path) == before
            met.add(name)

        start(*args, tmp_path / name, **kwargs, reporter=Told(**{observer: again}))
    assert met == set(starts)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(starts)


def test_a_sweep_that_is_running_is_not_run_twice(tmp_path, monkeypatch, refused):
    command, met = Sweep(tmp_path), []
    command.set_up()

    def again(*args):
        before = content(command.work)
        refused(command.call)
        assert content(command.work) == before
        met.append("fixing the terms")
        fix_terms(*args)

    monkeypatch.setattr("uedp_ray.search.sweep.fix_terms", again)
    assert command.call() == 0
    assert met


def test_nor_by_one_who_does_not_see_the_lock_beside_it(tmp_path, monkeypatch, capsys):
    command = Sweep(tmp_path)
    command.set_up()
    monkeypatch.setattr("uedp_ray.search.layout._WAIT", 0.0)
    make_folder(command.out / "private", private=True)
    with SweepDir(command.out).driving():
        assert command.call() == 2
    assert "another process is searching here" in capsys.readouterr().err
    assert [path.name for path in command.out.rglob("*")] == ["private"]
    assert command.call() == 0


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


@pytest.mark.parametrize("why", ["a volume", "read-only"])
def test_where_nothing_can_be_made_beside_it_a_folder_is_locked_inside(tmp_path, monkeypatch, why):
    """Beside a volume is each container's own disk: another container would not see it."""
    (folder := tmp_path / "mounted").mkdir()
    if why == "a volume":
        monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == folder)
    else:
        monkeypatch.setattr("os.access", lambda path, how: Path(path) != tmp_path)
    busy = InputError("--out", "mounted", "busy")
    with folder_locked(folder, wait=0, busy=busy):
        assert [path.name for path in folder.iterdir()] == [".lock"]
        with pytest.raises(InputError, match="busy"), folder_locked(folder, wait=0, busy=busy):
            pass
    assert not list(folder.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["mounted"]


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


def test_a_line_that_a_killed_start_is_still_writing_is_not_cut_off(private_run, corpora, tmp_path, monkeypatch):
    shutil.copytree(private_run.out, tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes() + b'{"half a li')
    before = ledger.read_bytes()
    monkeypatch.setattr("uedp_ray.training.rundir.DRIVER_WAIT", 0.0)
    with RunDir(tmp_path / "run").driving(), pytest.raises(InputError, match="another process is training this run"):
        train(run_config(corpora), tmp_path / "run", workers=0, resume=True)
    assert ledger.read_bytes() == before


@pytest.mark.parametrize("kept", ["checkpoint", "model", "rounds.parquet", "result.json", "private/setup.json"])
def test_what_a_lost_ledger_paid_for_is_kept_and_no_other_takes_its_place(private_run, corpora, tmp_path, kept):
    out = tmp_path / "run"
    shutil.copytree(private_run.out, out)
    (out / "ledger.jsonl").unlink()
    for name in {"checkpoint", "model", "rounds.parquet", "result.json", "private/setup.json"} - {kept}:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    before = content(out)
    for rounds, resume, message in ((9, False, "holds a run already"), (9, True, "its config"), (5, True, "is gone")):
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
    with pytest.raises(InputError, match=r"corpus.evaluation.path = .*UEDP_HERE is not set"):
        train(run.load_config(), tmp_path / "run", workers=0, resume=True)


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
        }
    assert train(run_config(corpora, corpus=text), tmp_path, workers=0)["rounds"]


@pytest.fixture
def notes(tmp_path):
    """(config, write) of a run whose text lies in files; write(NAME, users, words) makes one."""

    def write(name, users, words="the patient was in the hospital today"):
        rows = [json.dumps({"user": user, "text": f"{words} {user} {n}"}) for user in users for n in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))

    write("notes", [f"u{n}" for n in range(12)])
    write("held-out", ["v0", "v1"], "a nurse has seen the doctor")
    source, evaluation = (
        {"format": "jsonl", "path": str(tmp_path / f"{name}.jsonl")} for name in ("notes", "held-out")
    )
    return run_config(tmp_path, corpus={"source": source, "evaluation": evaluation, "declared_num_users": 12}), write


def trained_users(out):
    return open_corpus(open_storage(out).root / "private" / "corpus").num_users


@pytest.mark.parametrize("place", ["a folder", "a URL"])
@pytest.mark.parametrize("ended", ["refused", "before the setup", "before a round"])
def test_text_that_changed_before_anything_was_charged_is_read_again(notes, node, url, tmp_path, ended, place):
    config, write = notes
    out = url if place == "a URL" else tmp_path / "run"
    if ended == "refused":
        write("held-out", ["u1", "v1"])
        with pytest.raises(InputError, match="some of its users are in"):
            train(config, out, workers=0)
        write("held-out", ["v0", "v1"], "a nurse has seen the doctor")
    elif ended == "before the setup":
        with mock.patch("uedp_ray.training.setup.text_size", side_effect=Crash), pytest.raises(Crash):
            train(config, out, workers=0)
    else:
        with mock.patch.object(RunDriver, "admit", side_effect=Crash), pytest.raises(Crash):
            train(config, out, workers=0)
    assert trained_users(out) == 12
    write("notes", [f"u{n}" for n in range(11)])
    train(config, out, workers=0, resume=True)
    assert trained_users(out) == 11


@pytest.mark.parametrize("fixed", [False, True])
def test_a_copy_that_several_runs_share_follows_the_text_until_one_was_trained(notes, tmp_path, fixed):
    config, write = notes
    prepare_corpora(config, tmp_path / "corpora", fixed=False)
    made = (tmp_path / "corpora" / "evaluation" / "corpus.json").stat().st_mtime_ns
    write("notes", [f"u{n}" for n in range(11)])
    prepare_corpora(config, tmp_path / "corpora", fixed=fixed)
    assert open_corpus(tmp_path / "corpora" / "private").num_users == (12 if fixed else 11)
    assert (tmp_path / "corpora" / "evaluation" / "corpus.json").stat().st_mtime_ns == made, "its text is as it was"


def test_text_that_changed_after_a_round_was_charged_is_said_and_the_copy_stays(notes, tmp_path):
    config, write = notes
    crash(config, tmp_path / "run", charges=2)
    said = []
    write("notes", [f"u{n}" for n in range(11)])
    train(config, tmp_path / "run", workers=0, resume=True, reporter=Told(say=said.append))
    assert trained_users(tmp_path / "run") == 12
    assert [line for line in said if "the text has changed" in line] != []


def test_a_setup_made_anew_after_a_charge_is_of_the_text_that_was_charged_for(notes, tmp_path):
    config, write = notes
    run = RunDir(tmp_path / "run")
    crash(config, run.root, charges=2)
    write("notes", [f"u{n}" for n in range(11)])
    run.setup.unlink()
    shutil.rmtree(run.private / "corpus")
    with pytest.raises(InputError, match=r"corpus.source = .*put it back, and delete .*private/corpus"):
        train(config, run.root, workers=0, resume=True)
    write("notes", [f"u{n}" for n in range(12)])
    shutil.rmtree(run.private / "corpus")
    with mock.patch.object(RunDriver, "admit", side_effect=Crash), pytest.raises(Crash):
        train(config, run.root, workers=0, resume=True)
    write("notes", [f"u{n}" for n in range(11)])
    run.setup.unlink()
    train(config, run.root, workers=0, resume=True)
    assert trained_users(run.root) == 12


def test_a_setup_made_anew_after_a_charge_takes_no_other_prepared_corpus(tmp_path):
    prepare(SourceConfig(format="synthetic", num_users=8), tmp_path / "text", num_shards=2)
    source = {"path": str(tmp_path / "text"), "format": "prepared"}
    held_out = {"format": "synthetic", "num_users": 3, "part": "held_out"}
    config = run_config(tmp_path, corpus={"source": source, "evaluation": held_out, "declared_num_users": 9})
    crash(config, tmp_path / "run", charges=1)
    (tmp_path / "run" / "private" / "setup.json").unlink()
    prepare(SourceConfig(format="synthetic", num_users=8, seed=1), tmp_path / "text", num_shards=2)
    with pytest.raises(InputError, match=r"corpus\.source = .*has changed since training on it began: put it back$"):
        train(config, tmp_path / "run", workers=0, resume=True)
    (tmp_path / "run" / "private" / "text.json").unlink()
    with pytest.raises(InputError, match=r"text\.json = .*is missing: put it back"):
        train(config, tmp_path / "run", workers=0, resume=True)


@pytest.mark.parametrize("part", ["private", "held_out"])
def test_variants_of_a_comparison_are_of_one_text(tmp_path, part):
    def prepared(name, seed=0):
        source = SourceConfig(format="synthetic", num_users=8, part=name, seed=seed)
        prepare(source, tmp_path / name, num_shards=2)
        return {"path": str(tmp_path / name), "format": "prepared"}

    corpus = {"source": prepared("private"), "evaluation": prepared("held_out"), "declared_num_users": 9}
    pretraining = {"text": [{"format": "synthetic", "num_users": 8, "part": "public"}], "num_steps": 2}
    base = run_config(tmp_path, corpus=corpus, pretrain=pretraining)
    comparison = Comparison(base, {"one": ("uedp", {}), "other": ("uedp", {"training.seed": 1})})
    real = train

    def trained(config, *arguments, **settings):
        result = real(config, *arguments, **settings)
        prepared(part, seed=1)
        return result

    field = {"private": "source", "held_out": "evaluation"}[part]
    with (
        mock.patch("uedp_ray.training.compare.train", trained),
        pytest.raises(InputError, match=rf"corpus\.{field} = .*has changed since training on it began"),
    ):
        compare(comparison, tmp_path / "out", workers=0)
    with pytest.raises(InputError, match=rf"corpus\.{field} = .*has changed since training on it began"):
        compare(comparison, tmp_path / "out", workers=0, resume=True)


def test_a_folder_of_the_name_of_the_lock_is_told(tmp_path):
    (tmp_path / ".run.lock").mkdir()
    held = folder_locked(tmp_path / "run", wait=0, busy=InputError("", "", "busy"))
    with pytest.raises(InputError, match="is a folder where the lock goes: rename"), held:
        pass


def test_a_second_start_that_does_not_see_the_lock_beside_it_touches_nothing(private_run, corpora, monkeypatch):
    monkeypatch.setattr("uedp_ray.training.rundir.DRIVER_WAIT", 0.0)
    run = RunDir(private_run.out)
    (writing := run.root / ".rounds.parquet.uedp_ray.new").write_text("half")
    with run.driving():
        before = content(run.root)
        with pytest.raises(InputError, match="another process is training this run"):
            train(run_config(corpora), run.root, workers=0, resume=True)
        assert content(run.root) == before
    writing.unlink()


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
