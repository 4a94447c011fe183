"""The commonest mistakes: each is answered in one line, with the setting as it was typed, before any text is read."""
# ruff: noqa: E501 (a table of mistakes)

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
import yaml

from tests.models.helpers import tiny_llama
from tests.search.sweeps import sweep_tree
from tests.told import Told
from tests.training.runs import run_tree
from uedp_ray.interrupts import handlers_kept
from uedp_ray.models.saved import save_model
from uedp_ray.search.checks import check_sweep
from uedp_ray.search.sweep_config import load_sweep_config

PUBLIC = [{"format": "synthetic", "num_users": 5, "part": "public"}]


@pytest.fixture
def files(corpora, pretrained, tmp_path, monkeypatch):
    """A folder to work in, with a run, a sweep and a comparison file that are sound, and text that must not be read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    Path("notes.jsonl").write_text('{"user": "u", "text": "Zanzibar is far"}\n')
    base = run_tree(corpora, pretrain={"text": PUBLIC, "num_steps": 2})
    base["corpus"]["source"] = {"path": "notes.jsonl", "format": "jsonl"}
    save_model(tiny_llama(), "llama")
    Path("warm").symlink_to(pretrained.out / "model")
    shutil.copytree("llama", "adapted")
    Path("adapted/adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "someone/base"}')
    shutil.copytree("warm", "chatty")
    chat = {"chat_template": [{"name": "../../x", "template": ""}, {"name": "default", "template": ""}]}
    Path("chatty/tokenizer_config.json").write_text(
        json.dumps(json.loads(Path("warm/tokenizer_config.json").read_text()) | chat)
    )
    written = {
        "run.yaml": base,
        "sweep.yaml": {**sweep_tree(corpora), "base": {**base, "privacy": {"user_sampling_prob": 0.3}}},
        "compare.yaml": {"base": base, "variants": {"a": {"method": "uedp"}}},
    }
    for name, tree in written.items():
        Path(name).write_text(yaml.safe_dump(tree))

    def read(*_, **__):
        pytest.fail("the text was read")

    for where in (
        "corpus.readers.read",
        "corpus.prepare.read_rows",
        "training.texts.prepare",
        "training.run_vocabulary.readers.read",
    ):
        monkeypatch.setattr(f"uedp_ray.{where}", read)
    return tmp_path


def mistake(line, *settings):
    return [*line.split(), *(flag for setting in settings for flag in ("--set", setting))]


TRAIN, COMPARE, SWEEP = "train run.yaml --workers 0", "compare compare.yaml --workers 0", "sweep sweep.yaml"
EPSILON = "epsilon --q-u 0.1 --noise-multiplier 1 --rounds 1"
NOISY = "vocabulary={kind: noisy-threshold, noise_multiplier: 9, threshold_delta: 0.00001}"
WARM = "model.warm_start=warm"
LLAMA = ("model={architecture: pretrained, path: llama, max_length: 12}",)
MISTAKES = {
    "no such run file": (mistake("train rum.yaml"), "config = 'rum.yaml': no such file"),
    "a folder as run file": (mistake("train ."), "config = '.': is a folder"),
    "a sweep file given to train": (mistake("train sweep.yaml"), "config = 'sweep.yaml': is a sweep file: use uedp-ray sweep"),
    "a comparison given to train": (mistake("train compare.yaml"), "config = 'compare.yaml': is a comparison file: use uedp-ray compare"),
    "a run file given to sweep": (mistake("sweep run.yaml"), "base = None: a sweep file needs the mapping base: this is a run file"),
    "a run file given to compare": (mistake("compare run.yaml"), "config = 'run.yaml': a comparison file has"),
    "a misspelt key": (mistake(TRAIN, "privacy.epsilon=8"), "privacy.epsilon = 8: unknown key: did you mean target_epsilon"),
    "a text for a number": (mistake(TRAIN, "training.num_rounds=fifty"), "training.num_rounds = 'fifty': expected a whole number"),
    "a percentage": (mistake(TRAIN, "privacy.user_sampling_prob=10"), r"privacy.user_sampling_prob = 10.0: .*\[0, 1\]"),
    "a rate beyond all floats": (mistake(TRAIN, "training.server_learning_rate=1e300"),
                                 r"training.server_learning_rate = 1e\+300: must be 1e30 or less"),
    "both budgets": (mistake(TRAIN, "privacy.target_epsilon=8"), "privacy.target_epsilon / privacy.noise_multiplier"),
    "users not declared": (mistake(TRAIN, "corpus.declared_num_users=null"), "corpus.declared_num_users = None: declare"),
    "K above the users": (mistake(TRAIN, "bounds.max_holders=31"), "bounds.max_holders = 31: .*declared_num_users = 30"),
    "no such text": (mistake(TRAIN, "corpus.source.path=note.jsonl"), "corpus.source.path = 'note.jsonl': no such"),
    "the format forgotten": (mistake(TRAIN, "corpus.source={path: notes.jsonl}"),
                             "corpus.source.path = .*notes.jsonl': .*uedp-ray prepare"),
    "no such format": (mistake(TRAIN, "corpus.source.format=csv"), "corpus.source.format = 'csv': choose one of .* as jsonl, a line .*user.*text"),
    "a clip too large to reweight": (mistake(TRAIN, "bounds.max_sentences_per_entity=3", "privacy.sentence_clip_norm=0.7"),
                                     "privacy.sentence_clip_norm = 0.7: bounds.entity_bound = reweight .*"
                                     "bounds.max_sentences_per_entity = 3 .*privacy.l2_clip_norm = 1\\b"),
    "no such evaluation": (mistake(TRAIN, "corpus.evaluation={path: held.jsonl, format: jsonl}"),
                           "corpus.evaluation.path = 'held.jsonl': no such file"),
    "the text itself as evaluation": (mistake(TRAIN, "corpus.evaluation={path: ./notes.jsonl, format: jsonl}"),
                                      "corpus.evaluation = .*/notes.jsonl': it is the text of corpus.source"),
    "no such spaCy model": (mistake(TRAIN, "corpus.source.detector=[spacy:en_none]"),
                            "corpus.source.detector = 'spacy:en_none': .*spacy download"),
    "no such entity list": (mistake(TRAIN, "corpus.source.detector=[list:names.txt]"),
                            "corpus.source.detector = 'list:names.txt': no such file"),
    "a variable not set": (mistake(TRAIN, "corpus.source.path=$NOWHERE/x"), "corpus.source.path = .*NOWHERE is not set"),
    "no public text": (mistake(TRAIN, "vocabulary.public_text=[]", "pretrain.text=[]"),
                       r"vocabulary.public_text = \[\]: name public text"),
    "no public text for pieces of words": (mistake(TRAIN, "vocabulary={kind: public-subwords}", "pretrain.text=[]"),
                                           r"vocabulary.public_text = \[\]: name public text"),
    "no such public text": (mistake(TRAIN, "vocabulary.public_text=[{path: wiki.txt, format: text}]"),
                            r"vocabulary.public_text\[0\].path = 'wiki.txt': no such file"),
    "no such warm start": (mistake(TRAIN, "model.warm_start=runs/public"), "model.warm_start = 'runs/public': holds no model"),
    "fewer layers than the warm start": (mistake(TRAIN, WARM, "model.num_layers=2"), "error: model.num_layers = 2: model.warm_start has 1"),
    "other heads than the warm start": (mistake(TRAIN, WARM, "model.num_heads=1"), "model.num_heads = 1: model.warm_start has 2"),
    "another network than the warm start": (mistake(TRAIN, WARM, "model.architecture=awd_lstm"),
                                            "model.architecture = 'awd_lstm': .* model.warm_start is gpt2"),
    "compare from another shape": (mistake(COMPARE, WARM, "model.max_length=9"), "base.model.max_length = 9: model.warm_start has 12"),
    "sweep from another shape": (mistake(SWEEP, f"base.{WARM}", "base.model.hidden_size=16"), "base.model.hidden_size = 16: .* has 8"),
    "searching shapes that the warm start has not": (
        mistake(SWEEP, "base.pretrain.text=[]", f"base.{WARM}", "space={model.num_layers: {integer: [1, 3]}}"),
        "space.model.num_layers = 3: .*model.warm_start has 1"),
    "searching warm starts of another shape": (
        mistake(SWEEP, "base.pretrain.text=[]", "base.model.num_layers=2", "space={model.warm_start: {choice: [warm]}}"),
        "space.model.warm_start = 'warm': model.num_layers = 2: model.warm_start has 1"),
    "private words for a comparison, which pre-trains": (
        mistake(COMPARE, NOISY), "base.vocabulary.kind = 'noisy-threshold': pre-training reads no private text"),
    "private words for a sweep that pre-trains": (
        mistake(SWEEP, f"base.{NOISY}"), "base.vocabulary.kind = 'noisy-threshold': the model trained on base.pretrain.text"),
    "no such model": (mistake(TRAIN, "model={architecture: pretrained, path: ./gpt3}", "vocabulary={}"), "model.path = './gpt3'"),
    "a model without a tokenizer": (mistake(TRAIN, *LLAMA, "vocabulary={}"), "model.path = .*no tokenizer beside it"),
    "a model that reads less": (mistake(TRAIN, *LLAMA, "model.max_length=99", "vocabulary.kind=public-words",
                                        "vocabulary.replace_embeddings=true"), "model.max_length = 99: .*16 tokens"),
    "a layer that the network has not": (
        mistake(TRAIN, "model.trainable=lora", "model.lora_targets=[c_attn,query]"),
        r"model.lora_targets = .*no linear layer of this network has the name query: choose among c_attn, c_fc, c_proj, lm_head$"),
    "a layer that a pretrained network has not": (
        mistake(TRAIN, *LLAMA, "vocabulary.kind=public-words", "vocabulary.replace_embeddings=true", "model.trainable=lora",
                "model.lora_targets=[c_attn]"),
        "model.lora_targets = .*has the name c_attn: choose among down_proj, .*v_proj$"),
    "searching a layer that the network has not": (
        mistake(SWEEP, "base.model.trainable=lora", "space={model.lora_targets: {choice: [[c_attn], [query]]}}"),
        "model.lora_targets = .*query: choose among c_attn"),
    "planning with a layer that a pretrained network has not": (
        mistake("plan run.yaml", *LLAMA, "vocabulary={kind: tokenizer, path: warm}", "model.trainable=lora", "model.lora_targets=[c_attn]"),
        "model.lora_targets = .*has the name c_attn: choose among"),
    "planning for a model that reads less": (
        mistake("plan run.yaml", *LLAMA, "model.max_length=99", "vocabulary={kind: tokenizer, path: warm}"),
        "model.max_length = 99: .*16 tokens"),
    "words for a model of its own": (mistake(TRAIN, *LLAMA, "vocabulary.kind=public-words"), "vocabulary.kind = 'public-words'"),
    "a model with an adapter": (mistake(TRAIN, LLAMA[0].replace("llama", "adapted"), "vocabulary={}"),
                                "model.path = .*adapter_config.json adds an adapter.*merge_and_unload"),
    "a tokenizer that cannot be saved": (mistake(TRAIN, "vocabulary={kind: tokenizer, path: chatty}"),
                                         r"vocabulary.path = .*not saved \(Invalid chat template name"),
    "a warm start whose tokenizer cannot be saved": (mistake(TRAIN, "model.warm_start=chatty"),
                                                     "model.warm_start = .*not saved"),
    "no GPU": (mistake(TRAIN, "training.device=cuda"), "training.device = 'cuda': no GPU"),
    "searching a GPU where none is": (mistake(SWEEP, "base.pretrain.text=[]", "space={training.device: {choice: [cpu, cuda]}}"),
                                      "space.training.device = 'cuda': training.device = cuda: no GPU"),
    "too many workers": (mistake("train run.yaml --workers 10000"), "--workers = 10000: this machine has"),
    "a file as --out": (mistake(f"{TRAIN} --out run.yaml"), "--out = 'run.yaml': is a file"),
    "a name that is not UTF-8": (mistake(f"{TRAIN} --out run\udcff"), r"--out = 'run\\udcff': is not one line of printable UTF-8"),
    "control characters": (mistake(f"{SWEEP} --out x\x1b[31m"), r"--out = 'x\\x1b\[31m': is not one line"),
    "a URL that is not UTF-8": (mistake(f"{TRAIN} --out file:///tmp/run\udcff"), r"--out = 'file:/.*udcff': is not one line"),
    "an export to a name that is not UTF-8": (mistake("export x --out y\udcff"), r"--out = 'y\\udcff': is not one line"),
    "a name with no room beside it": (mistake(f"{TRAIN} --out {'é' * 121}"), "--out = 'é.*is 1 bytes too long with what.*: choose a"),
    "a name that no folder has": (mistake(f"{SWEEP} --out out/{'x' * 256}/y"), "--out = 'out/x.*is 1 bytes too long"),
    "a corpus of a long name": (mistake(f"prepare notes.jsonl --format jsonl --out {'x' * 255}"), "--out = 'x.*is 14 bytes too long"),
    "an export to a long name": (mistake(f"export x --out {'x' * 242}"), "--out = 'x.*is 1 bytes too long"),
    "below a file": (mistake(f"{TRAIN} --out run.yaml/x"), "--out = 'run.yaml/x': .*run.yaml is a file"),
    "the root": (mistake(f"{TRAIN} --out /"), "--out = '/': is the root"),
    "a dangling link": (mistake(f"{TRAIN} --out dangling"), "--out = 'dangling': is a dangling symbolic link"),
    "an unwritable place": (mistake(f"{TRAIN} --out /proc/nowhere/run"), "--out = '/proc/nowhere/run': cannot be written"),
    "a variant of another text": (mistake(COMPARE, "bounds.max_holders=31"), "base.bounds.max_holders = 31"),
    "compare without evaluation": (mistake(COMPARE, "corpus.evaluation=null"), "base.corpus.evaluation = None: name text"),
    "compare without public text": (mistake(COMPARE, "pretrain.text=[]"), r"base.pretrain.text = \[\]: name public text"),
    "compare with text missing": (mistake(COMPARE, "corpus.source.path=x"), "base.corpus.source.path = 'x': no such"),
    "sweep with text missing": (mistake(SWEEP, "base.corpus.source.path=x"), "base.corpus.source.path = 'x': no such"),
    "sweep without evaluation": (mistake(SWEEP, "base.corpus.evaluation=null"), "base.corpus.evaluation = None"),
    "no trials": (mistake(f"{SWEEP} --trials 0"), "--trials = 0: must be 1"),
    "fewer trials than none": (mistake(f"{SWEEP} --trials -5"), "--trials = -5: must be 1"),
    "searching what is not there": (mistake(SWEEP, "space={model.depth: {choice: [1]}}"), "space.model.depth = .*unknown setting"),
    "searching missing models": (mistake(SWEEP, "base.pretrain.text=[]", "space={model.warm_start: {choice: [runs/a]}}"),
                                 "space.model.warm_start = 'runs/a': .*holds no model"),
    "searching what has no effect": (mistake(SWEEP, "base.pretrain.text=[]", "space={pretrain.num_steps: {integer: [1, 9]}}"),
                                     "space.pretrain.num_steps = .*no effect"),
    "pretrain without text": (mistake("pretrain run.yaml", "pretrain.text=[]"), r"pretrain.text = \[\]: name public text"),
    "pretrain with text missing": (mistake("pretrain run.yaml", "pretrain.text=[{path: w.txt, format: text}]"),
                                   r"pretrain.text\[0\].path = 'w.txt': no such file"),
    "prepare what is not there": (mistake("prepare note.jsonl --format jsonl --out c"), "SOURCE = 'note.jsonl': no such"),
    "prepare in no format": (mistake("prepare notes.jsonl --format csv --out c"), "--format = 'csv': choose one of"),
    "prepare with no list": (mistake("prepare notes.jsonl --format jsonl --detector list:x --out c"), "--detector = 'list:x': no such"),
    "prepare with 10,000 processes": (mistake("prepare notes.jsonl --format jsonl --workers 10000 --out c"), "--workers = 10000"),
    "digits without end": (mistake("epsilon --q-u 1 --noise-multiplier 1 --rounds " + "9" * 5000), "--rounds"),
    "users fewer than holders": (mistake(f"{EPSILON} --max-holders 5 --holder-bound reweight --max-users 3"), "--max-users = 3"),
    "an epsilon of nothing": (mistake("epsilon --q-u 0.1 --rounds 1"), "--noise-multiplier = None: is missing"),
    "no such rule": (mistake(f"{EPSILON} --rule some"), "--rule = 'some'"),
    "a folder as ledger": (mistake("epsilon --ledger ."), "--ledger = '.': is a folder: name the file ledger.jsonl"),
    "parameters beside a ledger": (mistake("epsilon --ledger x --rounds 9 --q-u 0.1 --delta 1e-6"),
                                   "--ledger = 'x': cannot be combined with --q-u, --rounds: "),
    "a unit beside an export": (mistake("epsilon --export x --unit user"), "--export = 'x': cannot be combined with --unit"),
    "a unit for an accountant": (mistake(f"{EPSILON} --accountant user"), "--accountant = 'user': is a unit: pass it as unit"),
    "no such accountant": (mistake(f"{EPSILON} --accountant gdp"), "--accountant = 'gdp': choose one of pld, renyi"),
    "no such unit": (mistake(f"{EPSILON} --unit record"), "--unit = 'record': choose one of user-entity, user, entity"),
    "the paper's figures to calibrate to": (
        mistake("calibrate --target-epsilon 8 --q-u 0.1 --rounds 9 --accountant published"), "no guarantee to calibrate to"),
    "a ledger beside an export": (mistake("epsilon --export x --ledger y"), "--export = 'x': cannot be combined with --ledger"),
    "entities drawn one way or the other": (
        mistake(f"{EPSILON} --q-e 0.5 --max-holders 3 --rule all"), "--entity-draw = None: is missing: it matters for rule all"),
    "a chance of two": (mistake("epsilon --noise-multiplier 1 --rounds 1 --q-u 2"), "--q-u = 2.0: a probability"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_answered_in_one_line_and_leaves_nothing_behind(command, files, case):
    arguments, answer = MISTAKES[case]
    (files / "dangling").symlink_to("nowhere")
    before = sorted(files.rglob("*"))
    code, out, err = command(*arguments)
    told = [line for line in err.splitlines() if line != "solving the noise multiplier"]
    assert (code, out, len(told)) == (2, "", 1), err
    assert told[0].startswith("error: ")
    assert len(told[0]) < 1000
    assert re.search(answer, told[0]), told[0]
    assert sorted(files.rglob("*")) == before


def test_nothing_to_resume_is_told_before_the_noise_is_solved(command, files):
    code, _, err = command(*mistake(f"{TRAIN} --out nothing --resume"))
    assert code == 2
    assert re.fullmatch("error: --out = .*nothing': holds no run to resume.*\n", err)
    assert not Path("nothing").exists()


def test_a_warm_start_beside_which_shapes_are_searched_is_left_to_the_points(files):
    space = "space={model.warm_start: {choice: [warm]}, model.num_layers: {choice: [1, 2]}}"
    sweep = load_sweep_config(files / "sweep.yaml", ["base.pretrain.text=[]", "base.model.num_layers=2", space])
    check_sweep(sweep, {"": sweep.base}, Told(say=pytest.fail))


def test_settings_that_are_not_used_are_told(command, files, monkeypatch):
    monkeypatch.setattr("uedp_ray.training.setup.claim", lambda *_: sys.exit(7))
    ignored = {
        "model.dropout_weight=0.3": "note: model.dropout_weight is ignored: the architecture is gpt2",
        "model.lora_rank=4": "note: model.lora_rank is ignored: model.trainable is full",
        "training.local_epochs=3": "note: training.local_epochs is ignored: training.local_update is gradient",
        "training.server_momentum=0.5": "note: training.server_momentum is ignored: training.server_optimizer is adam",
        "bounds.mode=declared": None,
        "bounds.holder_bound=reweight": "note: bounds.holder_bound is ignored: bounds.mode is declared",
        "corpus.evaluation_basis=public": None,
    }
    code, _, err = command(*mistake(TRAIN, *ignored))
    assert code == 7
    assert [line for line in err.splitlines() if line.startswith("note")] == [note for note in ignored.values() if note]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize(
    ("line", "stopped", "told"),
    [
        (TRAIN, "training.texts.prepare", "whatever was released stays charged. To continue: uedp-ray {line} --resume"),
        (COMPARE, "search.compare.prepare_corpora", "To continue: uedp-ray {line} --resume"),
        (f"{TRAIN} --out out", "training.setup.check_run", "nothing was released. To run it again: uedp-ray {line}"),
        (f"{TRAIN} --out=out", "training.setup.check_run", "nothing was released. To run it again: uedp-ray {line}"),
        ("pretrain run.yaml", "training.pretrain._split", "nothing was released. To run it again: uedp-ray {line}"),
        ("prepare notes.jsonl --format jsonl --out c", "corpus.prepare.read_rows", "To run it again: uedp-ray {line}"),
    ],
    ids=["train", "compare", "train, at once", "train, at once, by =", "pretrain", "prepare"],
)
def test_a_signal_ends_a_command_as_ctrl_c_does(command, files, monkeypatch, number, line, stopped, told):
    def kill(*_, **__):
        os.kill(os.getpid(), number)
        raise AssertionError("the signal was not taken")

    monkeypatch.setattr(f"uedp_ray.{stopped}", kill)
    if line.startswith("compare"):
        monkeypatch.setattr("uedp_ray.search.compare.prepare_corpora", kill)
    if line.startswith("pretrain"):
        monkeypatch.setattr("uedp_ray.training.run_vocabulary.readers.read", lambda source: iter(()))
        monkeypatch.setattr("uedp_ray.training.pretrain.make_vocabulary", kill)
    code, out, err = command(*line.split())
    assert (code, out) == (130, "")
    assert err.splitlines()[-1].endswith(told.format(line=line))


def test_what_is_ignored_when_a_command_starts_stays_ignored(command, files, monkeypatch):
    """nohup ignores SIGHUP, and is taken at its word; a shell's background jobs ignore SIGINT, and still end on SIGTERM."""
    sent = []

    def kill(*_, **__):
        os.kill(os.getpid(), signal.SIGHUP)
        sent.append("survived")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("uedp_ray.training.texts.prepare", kill)
    with handlers_kept():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code, _, _ = command(*TRAIN.split())
    assert (code, sent) == (130, ["survived"])
