"""One of each kind is added as CONTRIBUTING.md says, a file and a line; what it does not say of itself is read as unsafe.

One file above 400 lines: all seams are read together, and share the two helpers that add a name.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import numpy as np
import optuna
import pyarrow.parquet as pq
import pytest
import torch

from tests.search.sweeps import search_here, sweep_config, sweep_tree, write_sweep
from tests.told import Told
from tests.training.runs import NUM_USERS, TEST_NOISE, TREE, run_config
from tests.training.runs import events as events_of
from tests.updates.tiny import CPU
from tests.updates.worker import LOCAL_SGD, Worker, make, sentences
from uedp_ray import export, methods
from uedp_ray.analysis.frames import load_sweep, rank
from uedp_ray.analysis.report import report
from uedp_ray.config import (
    ModelConfig,
    RunConfig,
    SourceConfig,
    TaskConfig,
    TrainingConfig,
    TransformConfig,
    from_dict,
    limits,
    sections,
    texts,
)
from uedp_ray.config.choices import GENERATED, SourceFormat
from uedp_ray.console import print_sweep
from uedp_ray.corpus import word_mechanisms
from uedp_ray.corpus.detectors import DETECTORS, build_detectors, list_file
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.readers import numbered, read, reader_of, source_bytes, source_files
from uedp_ray.corpus.readers.base import Reader, of_files
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.transforms.base import Transform, Transformed, transform_of
from uedp_ray.corpus.vectors import Vectors
from uedp_ray.corpus.word_mechanisms import WordMechanism, mechanism_of
from uedp_ray.errors import InputError
from uedp_ray.models import architecture as architectures
from uedp_ray.models.architecture import Architecture, architecture
from uedp_ray.models.saved import check_saveable
from uedp_ray.plan import Plan
from uedp_ray.search.feasibility import alone, judge
from uedp_ray.search.samplers import sampler_of
from uedp_ray.search.study import Study
from uedp_ray.search.sweep_config import load_sweep_config
from uedp_ray.tasks.base import IGNORED, forward_logits, task_of
from uedp_ray.tasks.metric import Metric
from uedp_ray.tasks.metrics import METRICS, metric_of
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.training.checks import ignored
from uedp_ray.training.guard import check_owners
from uedp_ray.training.host import train
from uedp_ray.training.optimizers import OPTIMIZERS, ServerOptimizer, kept_by, server_optimizer
from uedp_ray.training.predict import predict
from uedp_ray.training.texts import outdated, prepared_source
from uedp_ray.updates import gradient
from uedp_ray.updates.base import LocalUpdate, local_update, update_class
from uedp_ray.updates.shapes import rows_are_apart


@pytest.fixture
def file(monkeypatch):
    """file(name, …): a module of that name, which is the one file."""

    def add(name: str, **content: Any) -> None:
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)

    return add


def named(section: Any, **settings: Any) -> Any:
    """A section in which names stand that its ``Literal``, which is the one line, does not have yet."""
    copy = dataclasses.replace(section)
    for name, value in settings.items():
        object.__setattr__(copy, name, value)
    return copy


def test_a_reader(file, tmp_path):
    (tmp_path / "mail").write_text("ann: we met in Oslo\nben: so we did\n")

    def read_mail(path):
        for line in path.read_text().splitlines():
            user, _, text = line.partition(": ")
            yield Sentence(user, text)

    file("uedp_ray.corpus.readers.mail", READER=of_files(read_mail))
    source = named(SourceConfig(path=str(tmp_path / "mail"), format="text"), format="mail")
    assert [(sentence.user, sentence.text) for sentence in read(source)] == [
        ("ann", "we met in Oslo"),
        ("ben", "so we did"),
    ]
    assert numbered(source) is None, "users of a reader that says nothing of them are compared with those of other text"
    prepare(source, tmp_path / "corpus")
    with pytest.raises(InputError, match=r"its format \(mail\) does not state that its users are whole"):
        check_owners(open_corpus(tmp_path / "corpus"))


def test_a_reader_that_generates_text(file, monkeypatch, tmp_path):
    def count(source):
        return (Sentence(f"u{number}", "we met in Oslo") for number in range(source.num_users))

    file("uedp_ray.corpus.readers.counted", READER=Reader(count, generated_bytes=lambda source: source.num_users * 14))
    source = named(SourceConfig(path="x"), format="counted", path="", num_users=3)
    assert (source_files(source), source_bytes(source)) == ([], 42)
    generated = {
        name for name in typing.get_args(SourceFormat) if reader_of(SourceConfig(path="x", format=name)).generated_bytes
    }
    assert generated == GENERATED, "a format that is not listed needs a path"


def _forget_choices() -> None:
    limits.type_hints.cache_clear()
    limits._choices.cache_clear()


def test_a_transform(file, monkeypatch, corpora, tmp_path):
    class Reversed(Transform):
        def text_of(self, sentence, generators):
            return " ".join(reversed(sentence.text.split()))

    file("uedp_ray.corpus.transforms.reversed", TRANSFORM=Reversed)
    monkeypatch.setattr(texts, "TransformKind", Literal["none", "reversed"])
    _forget_choices()
    try:
        config = run_config(corpora, corpus={"transform": {"kind": "reversed"}})
        assert train(config, tmp_path / "run", workers=0)["private"]
    finally:
        monkeypatch.undo()
        _forget_choices()
    corpus = open_corpus(corpora / "private")
    keys = (b"of one run", b"of another")
    assert len({Transformed(corpus, Reversed(TransformConfig()), key).digest for key in keys}) == 2, "it may draw"


def test_a_word_mechanism_that_states_nothing_hides_no_word(monkeypatch, tmp_path):
    class Same(WordMechanism):
        def sample(self, words, generator):
            return words

        def channel(self, words, generator):
            return np.eye(len(self.vectors.words))[words]

    monkeypatch.setitem(word_mechanisms._MECHANISMS, "custext", Same)
    (tmp_path / "toy.txt").write_text("oslo 1 2\nrome 3 4\n")
    transform = transform_of(TransformConfig(kind="replace_words", vectors=str(tmp_path / "toy.txt")))
    assert transform is not None
    assert transform.claim() is None


def test_a_detector(file, monkeypatch):
    class Towns:
        fingerprint, cacheable, reads, categories = "towns-1", False, "sentences", frozenset({"gpe"})

        def find(self, sentences):
            return [
                tuple(Mention("gpe", s.text.index("Oslo"), s.text.index("Oslo") + 4) for _ in range("Oslo" in s.text))
                for s in sentences
            ]

    file("uedp_ray.corpus.detectors.towns", build=lambda spec, argument: Towns())
    monkeypatch.setitem(DETECTORS, "towns", "towns")
    (detector,) = build_detectors(("towns",))
    assert detector.find([Sentence("ann", "we met in Oslo")]) == [(Mention("gpe", 10, 14),)]


@pytest.mark.parametrize(
    ("stated", "refused"),
    [
        ({}, "Towns, the detector of towns, does not state reads, categories"),
        (
            {"reads": "paragraphs", "categories": frozenset({"gpe"})},
            "Towns reads 'paragraphs': choose one of marks, rows, sentences",
        ),
        (
            {"reads": "marks", "categories": frozenset({"gpe"})},
            "Towns reads marks, whose categories are the text's own: its categories must be AtLeast",
        ),
    ],
)
def test_a_detector_that_leaves_something_out_or_reads_what_there_is_not(file, monkeypatch, stated, refused):
    find = {"find": lambda self, sentences: [() for _ in sentences]}
    towns = type("Towns", (), {"fingerprint": "towns-1", "cacheable": False, **find, **stated})
    file("uedp_ray.corpus.detectors.towns", build=lambda spec, argument: towns())
    monkeypatch.setitem(DETECTORS, "towns", "towns")
    with pytest.raises(TypeError, match=refused):
        build_detectors(("towns",))


def test_a_detector_by_a_file(file, monkeypatch, tmp_path):
    """It is watched, and should match something, as ``list:FILE``."""
    (tmp_path / "words").write_text("Oslo")
    (tmp_path / "text").write_text("we met in Oslo")
    file("uedp_ray.corpus.detectors.glossary_file", build=list_file.build)
    monkeypatch.setitem(DETECTORS, "glossary", "glossary:FILE")
    source = SourceConfig(path=str(tmp_path / "text"), format="text", detector=(f"glossary:{tmp_path / 'words'}",))
    prepared_source(source, tmp_path / "copy", fixed=False)
    assert not outdated(source, tmp_path / "copy")
    (tmp_path / "words").write_text("Bergen, Norway")
    assert outdated(source, tmp_path / "copy")
    with pytest.raises(InputError, match="matches nothing"):
        prepare(source, tmp_path / "again")


@pytest.fixture
def task(file, monkeypatch):
    """The share of words that are predicted right: of this, more is better."""
    metric = Metric(
        name="hit_rate",
        title="hit rate",
        explained="held-out hit rate",
        phrase="hit rate {}",
        format=".1%",
        goal="max",
    )

    class Hits(NextWord):
        @torch.no_grad()
        def sums(self, model, batch):
            right = forward_logits(model, batch).argmax(-1) == batch.targets
            return float(right.sum()), int((batch.targets != IGNORED).sum())

        def scores(self, sums, size):
            return {"hit_rate": sums[0] / sums[1]}

    file("uedp_ray.tasks.hits", TASK=Hits)
    monkeypatch.setitem(METRICS, "hits", metric)  # type: ignore[arg-type]
    monkeypatch.setattr(sections, "TaskKind", Literal["next_word", "hits"])
    _forget_choices()
    yield metric
    monkeypatch.undo()
    _forget_choices()


def test_a_task(task, corpora, tmp_path):
    settings = {"server_learning_rate": 0.1, "evaluate_every": 2}
    config = run_config(corpora, task={"kind": "hits"}, training={**TREE["training"], **settings})
    assert config.digest() != run_config(corpora, training={**TREE["training"], **settings}).digest()
    result = train(config, tmp_path / "run", workers=0)
    assert 0.0 <= result["hit_rate"] <= 1.0
    assert set(result) >= {"hit_rate", "initial_hit_rate"}
    assert "perplexity" not in result
    assert pq.read_table(tmp_path / "run" / "rounds.parquet").column_names[:2] == ["round", "hit_rate"]
    export(tmp_path / "run", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "A language model (gpt2) for the task hits, trained" in card
    assert not [word for word in ("next word", "generat", "python") if word in card]
    assert f"| Held-out hit rate | {task.show(result['hit_rate'])} |" in card
    assert "erplexity" not in card + (tmp_path / "out" / "privacy.md").read_text()
    for folder in ("run", "out"):
        assert len(predict(tmp_path / folder, ["she"])[0]["next"]) == 5, "it predicts words, as what it is made of"


def test_much_that_is_unknown_is_said_of_a_task_without_advice_that_it_cannot_follow(task, corpora, tmp_path):
    told = []
    vocabulary = TREE["vocabulary"] | {"max_size": 20}
    train(
        run_config(corpora, task={"kind": "hits"}, vocabulary=vocabulary),
        tmp_path / "run",
        workers=0,
        reporter=Told(say=told.append),
    )
    (said,) = (line for line in told if "<unk>" in line)
    assert "vocabulary.kind: public-subwords" in said
    assert "bits" not in said


def test_a_search_for_the_best_at_a_task(task, corpora, tmp_path, capsys):
    tree = sweep_tree(corpora, search={"searcher": "random", "trials": 3, "selection": "composition"})
    tree["base"] |= {"task": {"kind": "hits"}}
    sweep = load_sweep_config(write_sweep(tree, tmp_path))
    answer = search_here(sweep, tmp_path / "sweep")
    rates = [row["hit_rate"] for row in answer["trials"]]
    assert answer["best"]["hit_rate"] == max(rates) > min(rates)
    print_sweep(answer)
    shown = capsys.readouterr().out
    assert "Held-out hit rate" in shown
    assert task.say(max(rates)) in shown
    loaded = load_sweep(tmp_path / "sweep")
    assert (loaded.metric, rank([loaded])["hit_rate"].iloc[0]) == (task, max(rates))
    result = json.loads((tmp_path / "sweep" / "result.json").read_text())
    for initial in (0.0, 1.0):  # in points: nothing is divided by a start of 0
        result["best"]["initial_hit_rate"] = initial
        (tmp_path / "sweep" / "result.json").write_text(json.dumps(result))
        page = report([tmp_path / "sweep"], tmp_path / "report.html").read_text()
        gain = f"{task.show(abs(max(rates) - initial))}{' lost' if initial else ''}"
        assert f"{gain} over the public model ({task.show(initial)})" in page
    assert f"with hit rate {task.show(max(rates))}" in page
    assert "hit rate (higher is better)" in page
    assert "erplexity" not in page
    found = Study.open(sweep, tmp_path / "study.journal")
    assert found._study.direction == optuna.study.StudyDirection.MAXIMIZE
    with pytest.raises(InputError, match="cannot be searched: trials are compared by its metric"):
        sweep_config(corpora, tmp_path, space={"task.kind": {"choice": ["next_word"]}})


def test_an_architecture(file, monkeypatch):
    class Bigrams(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.embedding = torch.nn.Embedding(size, size)

    file("uedp_ray.models.bigrams", ARCHITECTURE=Architecture(build=lambda config, tokens: Bigrams(tokens.size)))
    monkeypatch.setattr(architectures, "NAMES", (*architectures.NAMES, "bigrams"))
    added = architecture("bigrams")
    network = added.build(ModelConfig(), architectures.Tokens(7, 0, 0))
    assert network.embedding.num_embeddings == 7
    assert not rows_are_apart(network), "sentences of a network that says nothing of it pass alone"
    assert (added.own, added.uses) == (None, frozenset())
    with pytest.raises(TypeError, match=r"Bigrams cannot be saved: it needs config_dict\(\)"):
        check_saveable(network)
    network.config_dict = lambda: {"model_type": "bigrams"}
    with pytest.raises(
        TypeError, match=r"Bigrams could not be read again: .* names no architecture with an OwnNetwork"
    ):
        check_saveable(network)


def test_a_network_that_cannot_be_saved_costs_nothing(monkeypatch, corpora, tmp_path):
    """All rounds were charged, and then there was no model."""
    monkeypatch.delattr("uedp_ray.models.awd_lstm.AWDLSTM.config_dict")
    model = {"architecture": "awd_lstm", "num_layers": 1, "hidden_size": 8, "embedding_size": 8, "max_length": 12}
    with pytest.raises(TypeError, match="cannot be saved"):
        train(run_config(corpora, model=model), tmp_path / "run", workers=0)
    assert events_of(tmp_path / "run") == []


def test_a_local_update(file):
    @dataclasses.dataclass
    class Constant(LocalUpdate):
        """As long as a user's sentences are many."""

        def update_of(self, parameters, selection, round_index):
            with torch.no_grad():
                self.params.tensors[0].add_(1.0)  # what it leaves in the network is nobody else's
            change = float((self.params.get() - parameters).abs().max())
            return torch.full_like(parameters, change * len(selection.sentences), dtype=torch.float64)

    file("uedp_ray.updates.constant", Update=Constant)
    worker = Worker(make("gpt2"), sentences())
    config = worker.plan.config
    config = dataclasses.replace(
        config,
        bounds=dataclasses.replace(config.bounds, entity_bound="truncate", holder_bound="truncate"),
        privacy=dataclasses.replace(config.privacy, sentence_clip_norm=None),
    )
    config = named(config, training=named(config.training, local_update="constant"))
    plan = Plan.of(config)
    assert plan.mechanism is not None
    assert plan.mechanism.entity_clip == 2.0, "an entity may move all of a user's update"
    update = local_update(plan, worker.model, worker.params, worker.update().task, lambda number: np.array([1]), CPU)
    total = update.sum_updates(worker.parameters, worker.selections.values(), 0)
    norm = plan.grid.step * float(total.double().norm())
    assert norm <= config.privacy.l2_clip_norm * len(worker.selections), "whatever it computes is clipped"
    selections = list(worker.selections.values())
    alone = [update.sum_updates(worker.parameters, [each], 0) for each in selections]
    assert torch.equal(sum(alone), total), "a user's update is its own, whoever comes before"


@dataclasses.dataclass
class Ones(LocalUpdate):
    """The least that an update may be."""

    def update_of(self, parameters, selection, round_index):
        return torch.ones_like(parameters, dtype=torch.float64)


def summed(file, update, **training):
    """What ``update`` sums over a tiny cohort, as ``training.local_update`` finds it."""
    file("uedp_ray.updates.ones", Update=update)
    worker = Worker(make("gpt2"), sentences())
    config = named(worker.plan.config, training=named(worker.plan.config.training, local_update="ones", **training))
    found = local_update(Plan.of(config), worker.model, worker.params, worker.update().task, lambda number: None, CPU)
    return found.sum_updates(worker.parameters, worker.selections.values(), 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [None, (1,), ()])
def test_a_local_update_of_another_type_or_shape_is_refused(file, dtype, shape):
    """Scaled in half precision, a user moved the sum by 129,527 clip norms; one value was added to all."""

    class Odd(Ones):
        def update_of(self, parameters, selection, round_index):
            return torch.ones(
                parameters.shape if shape is None else shape, dtype=torch.float64 if shape is not None else dtype
            )

    with pytest.raises(TypeError, match="float64 Tensor, not"):
        summed(file, Odd)


def test_a_local_update_that_yields_a_user_twice(file):
    class BySentence(Ones):
        keeps_users_apart = True

        def each_update(self, parameters, selections, round_index):
            for selection in selections:
                for _ in selection.sentences:
                    yield selection, torch.ones_like(parameters, dtype=torch.float64)

    with pytest.raises(RuntimeError, match="BySentence adds a user twice"):
        summed(file, BySentence)


@pytest.mark.parametrize("method", ["each_update", "sum_updates", "probe", "isolated"])
def test_a_local_update_that_says_nothing_of_keeping_users_apart(method):
    with pytest.raises(TypeError, match=r"Eager (yields updates|sums updates|tries itself out|isolates passes) itself"):
        type("Eager", (Ones,), {method: lambda self, parameters, selections, round_index: None})


@pytest.mark.parametrize("method", ["each_update", "sum_updates"])
def test_nor_does_one_that_inherits_it_from_elsewhere(method):
    """A class beside ``LocalUpdate`` passed: seven users moved the sum by 2,053 clip norms."""
    fast = type("Fast", (), {method: lambda self, parameters, selections, round_index: None})
    with pytest.raises(TypeError, match=r"Eager (yields updates by the each_update of Fast|sums updates itself)"):
        type("Eager", (fast, Ones), {})


def test_a_user_that_is_given_another_weight_is_none_that_was_drawn(file):
    class Heavy(Ones):
        keeps_users_apart = True

        def each_update(self, parameters, selections, round_index):
            for selection in selections:
                yield selection._replace(weight=100.0), torch.ones_like(parameters, dtype=torch.float64)

    with pytest.raises(RuntimeError, match="Heavy adds a user twice, or one that was not drawn"):
        summed(file, Heavy)


KEPT_IN = [
    *("an attribute", "a tensor", "a dictionary", "an array", "an optimizer", "the round's parameters"),
    *("the parameters' object", "the task", "a list in the task", "the network", "the plan", "the plan's config"),
    *("the network, as it is made", "the network, as it goes"),
]


@pytest.mark.parametrize("kept_in", KEPT_IN)
def test_what_a_local_update_keeps_of_a_user_reaches_no_other(file, kept_in):
    class Keeps(Ones):
        def __post_init__(self):
            super().__post_init__()
            self.last, self.tensor, self.counts, self.array = 0.0, torch.zeros(1), {}, np.zeros(1)
            self.optimizer = torch.optim.SGD(self.params.tensors, lr=1.0, momentum=0.9)
            self.model.made = getattr(self.model, "made", 0.0) + 1

        def __del__(self):
            self.model.gone = getattr(self.model, "gone", 0.0) + 1

        def update_of(self, parameters, selection, round_index):
            size = float(len(selection.sentences))
            if kept_in == "an optimizer":
                for tensor in self.params.tensors:
                    tensor.grad = torch.full_like(tensor, size)
                self.optimizer.step()
                return (self.params.get() - parameters).double()
            if kept_in == "the round's parameters":  # as FedAvg is often written
                return parameters.neg_().add_(self.params.get()).add_(size).double()
            self.last, self.counts["last"] = self.last + size, self.counts.get("last", 0.0) + size
            self.tensor.data += size
            self.array += size
            for shared in (self.params, self.task, self.model):
                shared.last = getattr(shared, "last", 0.0) + size
            self.task.lengths.append(size)
            vars(self.plan)["last"] = vars(self.plan).get("last", 0.0) + size
            kept = {"an attribute": self.last, "a tensor": float(self.tensor), "an array": float(self.array[0])}
            kept |= {"the parameters' object": self.params.last, "the task": self.task.last}
            kept |= {"a list in the task": sum(self.task.lengths), "the network": self.model.last}
            kept |= {"the plan": vars(self.plan)["last"], "the plan's config": config_of(self.plan, size)}
            kept |= {"the network, as it is made": self.model.made}
            kept |= {"the network, as it goes": 1 + getattr(self.model, "gone", 0.0)}
            return torch.full_like(parameters, 1e-3 * kept.get(kept_in, self.counts["last"]), dtype=torch.float64)

    shows_no_other_user(file, Keeps)


def config_of(plan, size):
    """What is kept in a configuration, which is not to be changed, and is shared."""
    kept = vars(plan.config.training)
    kept["last"] = kept.get("last", 0.0) + size
    return kept["last"]


def shows_no_other_user(file, update_class):
    """Asserts that the sum over users is that of their sums alone, in any order."""
    file("uedp_ray.updates.ones", Update=update_class)
    worker = Worker(make("gpt2"), sentences())
    config = named(worker.plan.config, training=named(worker.plan.config.training, local_update="ones"))
    plan = Plan.of(config)
    real = worker.update().task
    task = SimpleNamespace(lengths=[], made_up=real.made_up, length=real.length, collate=real.collate)
    update = local_update(plan, worker.model, worker.params, task, lambda number: None, CPU)
    selections, before = list(worker.selections.values()), worker.parameters.clone()
    whole = update.sum_updates(worker.parameters, selections, 0)
    assert torch.equal(worker.parameters, before), "they are released next"
    alone = [update.sum_updates(worker.parameters, [each], 0) for each in selections]
    assert whole.any()
    assert torch.equal(sum(alone), whole)
    assert torch.equal(update.sum_updates(worker.parameters, selections[::-1], 0), whole)


def attribute(parameter, size):
    parameter.last = getattr(parameter, "last", 0.0) + size
    return parameter.last


def kept_gradient(parameter, size):
    (size * parameter.sum()).backward()
    return float(parameter.grad.flatten()[0])


def hook(parameter, size):
    parameter.register_hook(lambda gradient: gradient * size)
    return float(torch.autograd.grad(parameter.sum(), parameter)[0].flatten()[0])


def hook_after(parameter, size):
    def enlarge(accumulated):
        accumulated.grad.mul_(size)

    parameter.register_post_accumulate_grad_hook(enlarge)
    parameter.grad = None
    parameter.sum().backward()
    return float(parameter.grad.flatten()[0])


def frozen(parameter, size):
    found = parameter.requires_grad
    parameter.requires_grad_(False)
    return size + found


def memory(parameter, size):
    found = parameter.dtype == torch.float64
    parameter.data = parameter.data.double()
    return size + found


@pytest.mark.parametrize("keep", [attribute, kept_gradient, hook, hook_after, frozen, memory])
def test_nor_does_what_it_keeps_on_a_parameter(file, keep):
    """A hook that was left there moved the sum by six clip norms, an attribute by ten."""

    class Keeps(Ones):
        def update_of(self, parameters, selection, round_index):
            kept = keep(self.params.tensors[0], float(len(selection.sentences)))
            return torch.full_like(parameters, 1e-3 * kept, dtype=torch.float64)

    shows_no_other_user(file, Keeps)


def test_a_local_update_gets_no_text_of_others(file):
    """One that read it moved the sum by six clip norms."""

    class Reads(Ones):
        def update_of(self, parameters, selection, round_index):
            others = [self.sentence(number) for number in range(4)]
            return torch.full_like(parameters, float(len(others)), dtype=torch.float64)

    with pytest.raises(KeyError):
        summed(file, Reads)


def test_nor_by_what_its_users_text_is_a_view_of(file):
    """Sentences are views of the whole corpus: ``.base`` had all 905 tokens of a store, where 12 were the user's."""
    everything = np.arange(6)

    class Reads(Ones):
        def update_of(self, parameters, selection, round_index):
            texts = [self.sentence(int(number)) for number in selection.sentences]
            assert all(text.base is None for text in texts)
            return torch.full_like(parameters, float(len(texts)), dtype=torch.float64)

    file("uedp_ray.updates.ones", Update=Reads)
    worker = Worker(make("gpt2"), sentences())
    config = named(worker.plan.config, training=named(worker.plan.config.training, local_update="ones"))
    task, plan = worker.update().task, Plan.of(config)
    update = local_update(plan, worker.model, worker.params, task, lambda number: everything[number : number + 1], CPU)
    assert update.sum_updates(worker.parameters, [worker.selections[0]], 0).any()


def test_a_base_that_stands_first_hides_nothing(file):
    class Registers:
        def __init_subclass__(cls):
            """Calls nobody."""

    class Mixed(Registers, Ones):
        def each_update(self, parameters, selections, round_index):
            for selection in selections:
                yield selection, torch.ones_like(parameters, dtype=torch.float64)

    file("uedp_ray.updates.ones", Update=Mixed)
    with pytest.raises(TypeError, match="Mixed yields updates itself, and does not state that it keeps_users_apart"):
        update_class("ones")


def test_an_object_cannot_replace_what_isolates_it(file):
    class Alone(Ones):
        def __post_init__(self):
            super().__post_init__()
            self.isolated = None

    with pytest.raises(AttributeError):
        summed(file, Alone)


def test_an_update_says_nothing_of_its_own_length(file):
    """Its ``sqrt`` answered with a small number, and the sum was moved by 37 clip norms."""

    class Short(torch.Tensor):
        pass

    class Lies(Ones):
        def update_of(self, parameters, selection, round_index):
            return torch.ones_like(parameters, dtype=torch.float64).as_subclass(Short)

    with pytest.raises(TypeError, match=r"float64 Tensor, not .* Short"):
        summed(file, Lies)


HEARD = []
"""Where nothing is restored."""


@pytest.mark.parametrize("what", ["update", "task"])
def test_what_is_kept_where_nothing_is_restored_shows_on_made_up_users(file, what):
    HEARD.clear()

    class Counts(Ones):
        def update_of(self, parameters, selection, round_index):
            HEARD.extend(selection.sentences)
            return torch.full_like(parameters, 1e-3 * len(HEARD), dtype=torch.float64)

    def shaped(model, batch):
        HEARD.append(len(batch))
        return NextWord.losses(task, model, batch) * len(HEARD)

    worker = Worker(make("gpt2", training=LOCAL_SGD), sentences())
    task = worker.update().task
    if what == "update":
        with pytest.raises(InputError, match=r"training\.local_update = 'ones': .* look for what it keeps"):
            summed(file, Counts)
        return
    same = {name: getattr(task, name) for name in ("made_up", "length", "collate", "takes_packed")}
    counting = SimpleNamespace(**same, losses=shaped)
    update = local_update(worker.plan, worker.model, worker.params, counting, worker.texts.__getitem__, CPU)
    with pytest.raises(InputError, match=r"not the same in each pass.*task\.kind \(next_word\)"):
        update.sum_updates(worker.parameters, worker.selections.values(), 0)


def test_an_order_that_is_drawn_where_nothing_is_restored_shows_whatever_the_batch_size(file):
    """Of a single sentence, or two, there is hardly an order to see."""
    generator = np.random.default_rng(0)

    class Shuffles(Ones):
        def update_of(self, parameters, selection, round_index):
            first = generator.permutation(selection.sentences)[0]
            return torch.full_like(parameters, 1e-3 * (1 + first), dtype=torch.float64)

    with pytest.raises(InputError, match="not the same in each pass"):
        summed(file, Shuffles, local_batch_size=1)


def test_an_object_that_hides_the_sum_is_not_asked(monkeypatch, corpora, tmp_path):
    prepared = gradient.Update.__post_init__

    def hides(self):
        prepared(self)
        self.sum_updates, self.probe = (lambda *_: pytest.fail("a sum of its own")), lambda: None

    config = run_config(corpora, privacy=TEST_NOISE)
    expected = train(config, tmp_path / "expected", workers=0)["perplexity"]
    monkeypatch.setattr(gradient.Update, "__post_init__", hides)
    assert train(config, tmp_path / "run", workers=0)["perplexity"] == expected


def test_one_that_takes_over_and_writes_into_the_rounds_parameters_is_refused(file):
    class Writes(Ones):
        keeps_users_apart = True

        def each_update(self, parameters, selections, round_index):
            for selection in selections:
                yield selection, torch.ones_like(parameters, dtype=torch.float64)
            parameters.data += 1.0

    with pytest.raises(RuntimeError, match="Writes writes into the round's parameters"):
        summed(file, Writes)


def test_a_class_that_only_looks_like_a_local_update_is_refused(file):
    """It would state nothing, and nothing of it would be read as unsafe."""
    file("uedp_ray.updates.ones", Update=type("Update", (), {"each_update": lambda self, *_: iter(())}))
    with pytest.raises(TypeError, match=r"the Update of updates\.ones is no LocalUpdate"):
        update_class("ones")


def test_a_server_optimizer(monkeypatch):
    rmsprop = ServerOptimizer(lambda parameters, config: torch.optim.RMSprop([parameters]))
    monkeypatch.setitem(OPTIMIZERS, "rmsprop", rmsprop)  # type: ignore[arg-type]
    settings = named(TrainingConfig(server_momentum=0.5), server_optimizer="rmsprop")
    found = server_optimizer(torch.zeros(3), settings)
    assert isinstance(found, torch.optim.RMSprop)
    base = from_dict(RunConfig, {"corpus": {"declared_num_users": NUM_USERS}})
    assert list(ignored(named(base, training=settings))) == [], "it may use what it does not state"


def test_a_server_optimizer_that_needs_the_loss_is_refused(monkeypatch):
    lbfgs = ServerOptimizer(lambda parameters, config: torch.optim.LBFGS([parameters]))
    monkeypatch.setitem(OPTIMIZERS, "lbfgs", lbfgs)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="evaluates the loss within its step"):
        kept_by(named(TrainingConfig(), server_optimizer="lbfgs"))


class Counting(torch.optim.SGD):
    def __init__(self, parameters, keeps):
        super().__init__(parameters, lr=0.1)
        self.keeps, self.counted = keeps, 0

    def step(self, closure=None):
        super().step(closure)
        (parameters,) = self.param_groups[0]["params"]
        if self.keeps == "a group":
            self.param_groups[0]["lr"] *= 0.9
        elif self.keeps == "an attribute":
            self.counted += 1
        elif self.keeps == "another type":
            self.state[parameters]["wide"] = torch.zeros(2, dtype=torch.float64)
        elif self.keeps == "a count of another type":
            self.state[parameters]["seen"] = torch.zeros((), dtype=torch.int64)
        else:
            state = self.state[parameters]
            state["steps"] = state.get("steps", torch.zeros(())) + 1
            if state["steps"] > 2:
                state["late"] = torch.zeros(2)


@pytest.mark.parametrize(
    "keeps", ["a group", "an attribute", "a later state", "another type", "a count of another type"]
)
def test_a_server_optimizer_that_keeps_what_no_checkpoint_holds_is_refused(monkeypatch, keeps):
    counting = ServerOptimizer(lambda parameters, config: Counting([parameters], keeps))
    monkeypatch.setitem(OPTIMIZERS, "counting", counting)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="keeps what no checkpoint holds"):
        kept_by(named(TrainingConfig(), server_optimizer="counting"))


class Coupled(torch.optim.SGD):
    def __init__(self, parameters, by):
        super().__init__(parameters, lr=0.1)
        self.by = by

    def step(self, closure=None):
        (parameters,) = self.param_groups[0]["params"]
        if self.by == "length":
            parameters.grad /= parameters.grad.norm()
        elif self.by == "limit":
            parameters.grad *= min(1.0, 100.0 / float(parameters.grad.norm() + 1e-6))
        else:
            for block in parameters.grad.split(128):
                block /= block.abs().max() + 1e-6
        super().step(closure)


@pytest.mark.parametrize("by", ["length", "limit", "block"])
def test_a_server_optimizer_that_is_not_elementwise_as_stated_is_refused(monkeypatch, by):
    for stated in (False, True):
        entry = ServerOptimizer(lambda parameters, config: Coupled([parameters], by), elementwise=stated)
        monkeypatch.setitem(OPTIMIZERS, "lars", entry)  # type: ignore[arg-type]
        settings = named(TrainingConfig(), server_optimizer="lars")
        if stated:
            with pytest.raises(InputError, match="is stated to be elementwise, and steps a parameter by what others"):
                kept_by(settings)
        else:
            assert kept_by(settings) == {}


FOUND_BY_NAME = {
    "a reader": lambda: reader_of(named(SourceConfig(path="x", format="text"), format="mail-box")),
    "a transform": lambda: transform_of(named(TransformConfig(), kind="reversed")),
    "a word mechanism": lambda: mechanism_of(
        named(TransformConfig(), mechanism="swapped"), Vectors(("a", "b"), np.eye(2))
    ),
    "a local update": lambda: update_class("constant"),
    "a task": lambda: task_of("hits"),
    "a metric": lambda: metric_of(
        named(from_dict(RunConfig, {"corpus": {"declared_num_users": 9}}), task=named(TaskConfig(), kind="hits"))
    ),
    "an architecture": lambda: architecture("bigrams"),
    "a searcher": lambda: sampler_of("cma"),
    "a server optimizer": lambda: server_optimizer(torch.zeros(3), named(TrainingConfig(), server_optimizer="rmsprop")),
}


@pytest.mark.parametrize("kind", FOUND_BY_NAME)
def test_a_name_that_nothing_stands_behind(kind):
    """It ended in a KeyError, or in the traceback of an import."""
    with pytest.raises(TypeError, match=r"is listed as a choice, and (there is no module|has no entry in) "):
        FOUND_BY_NAME[kind]()


def test_a_module_without_what_the_name_stands_for(file):
    file("uedp_ray.updates.constant")
    with pytest.raises(TypeError, match=r"constant is listed as a choice, and uedp_ray.updates.constant has no Update"):
        update_class("constant")


def test_a_module_that_lacks_one_of_its_own_is_no_missing_module(monkeypatch, tmp_path):
    (tmp_path / "needs_more.py").write_text("import not_installed")
    monkeypatch.setattr("uedp_ray.updates.__path__", [str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="not_installed"):
        update_class("needs_more")


def test_a_method(monkeypatch):
    monkeypatch.setitem(methods.METHODS, "quiet", methods.Method({"privacy.l2_clip_norm": 0.5}, "bare"))  # type: ignore[arg-type]
    base = from_dict(RunConfig, {"corpus": {"declared_num_users": NUM_USERS}})
    found = methods.apply(base, "quiet")
    assert (methods.METHODS["quiet"].unit, methods.METHODS["quiet"].sound) == ("none", False)
    assert found.privacy.l2_clip_norm == 0.5
    assert found.privacy.unit == base.privacy.unit, "it has the privacy that its settings have"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"privacy.delta": 1e-3}, "privacy.delta"),
        ({"privacy.test_noise_seed": 3}, "privacy.test_noise_seed"),
        ({"privacy.target_epsilon": 80.0}, "privacy.target_epsilon"),
        ({"corpus.categories": ["email"]}, "corpus.categories"),  # the total was said to be of all entities
        ({"corpus.declared_num_users": 10_000}, "corpus.declared_num_users"),
        ({"vocabulary.max_size": 50}, "vocabulary.max_size"),
        ({"pretrain.max_words": 50}, "pretrain.max_words"),
        ({"bounds.mode": "declared"}, "bounds.mode"),
        ({"model.warm_start": "elsewhere"}, "model.warm_start"),
    ],
)
def test_a_method_of_a_sweep_stays_within_its_budget(monkeypatch, corpora, tmp_path, settings, field):
    monkeypatch.setitem(methods.METHODS, "loud", methods.Method(settings, "bare"))  # type: ignore[arg-type]
    sweep = sweep_config(corpora, tmp_path, space={"method": {"choice": ["uedp", "loud"]}})
    good, bad = (judge(sweep, {"method": name}, alone(sweep)) for name in ("uedp", "loud"))
    assert good.config is not None
    assert bad.config is None
    assert bad.reason.startswith(f"{field} = ")
    assert "leave it out of method loud" in bad.reason
