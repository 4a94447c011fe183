"""What the trials of a sweep share: prepared corpora and public models, made and checked before the first trial.

Which trials fail must not reveal the private text, so what could fail in one of them because of it fails here, for all.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from uedp_ray.config import RunConfig, dump_config, load_config
from uedp_ray.corpus.bounds import Bounded, apply_bounds
from uedp_ray.corpus.readers.pseudo_users import check_length
from uedp_ray.corpus.store import Corpus, open_corpus
from uedp_ray.corpus.textsize import sampled_size, tell_cut
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import within
from uedp_ray.reporting import Reporter
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.proxies import cautions, named, naming, setting_of, unread
from uedp_ray.search.remote import Beside
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.search.sync import prepared
from uedp_ray.search.trial import pretrained
from uedp_ray.storage.files import replacing
from uedp_ray.training.guard import (
    check_other,
    check_owners,
    check_public_text,
    check_unseen,
    check_warm_start,
    owner_cautions,
    public_sketch,
)
from uedp_ray.training.paths import for_use
from uedp_ray.training.run_vocabulary import make_vocabulary


class _Texts(NamedTuple):
    """The text that the answer is trained and scored on."""

    private: Corpus
    evaluation: Corpus


def prepare_shared(
    config: SweepConfig, bases: Mapping[str, RunConfig], folder: SweepDir, beside: Beside, reporter: Reporter
) -> None:
    """Prepares what trials share, and the public model of each base.

    It reports what trials will lose, by the bounds and as ``<unk>``: what is read off private text says so.
    Raises: InputError if public text is the private text, or a category of the space is not in the corpus.
    """
    reporter.say("preparing the corpora")
    texts = None
    if folder.storage.is_copy and folder.has_bases(bases):  # the text need not be on this machine
        folder.fetch()
        bases = {proxy: load_config(folder.trial_base(proxy)) for proxy in bases}
    else:
        written = bases
        if config.search.proxies and not folder.has_bases(bases):  # else the text may no longer be here
            _check_lengths(bases)
        bases = {proxy: _prepared(config, proxy, base, folder, reporter) for proxy, base in bases.items()}
        texts = _own_texts(config, bases, written, folder, reporter)
        check_owners(texts.private)
        for caution in owner_cautions(texts.private, config.budget.unit, config.base.corpus.categories):
            reporter.say(f"caution: {caution}")
        if config.base.corpus.transform.kind == "replace_words" and config.search.rule != "public":
            reporter.say(_DRAWN_ANEW)
        for proxy, base in bases.items():
            with replacing(folder.trial_base(proxy), private=True) as new:
                dump_config(base, new)
            folder.storage.put(folder.trial_base(proxy))
    starts = dict[tuple[Path, str], str]()
    for base in bases.values():
        key = _public_model(base, folder)
        if key not in starts:
            starts[key] = _start(config, base, folder, texts, beside, reporter)
    words: Vocabulary | None = None
    for proxy, base in bases.items():
        text, start = for_use(base).corpus, starts[_public_model(base, folder)]
        found: list[str] = []
        if proxy in config.search.proxies:
            found += cautions(config, proxy, open_corpus(text.source.path), public_sketch(start))
        words = _words(base, start) if texts is not None else None  # a first start, with the text at hand, said it
        if words is not None and text.evaluation is not None:
            found.append(unread(config, proxy, open_corpus(text.evaluation.path), words))
        for caution in filter(None, found):
            reporter.say(f"caution: {caution}")
    if words is not None and texts is not None:
        said = itertools.chain.from_iterable(each for _, each in texts.private.texts())
        longest = config.base.model.max_length
        tell_cut(sampled_size(said, words, longest).cut_share, longest, reporter, "private: read off the text")


_DRAWN_ANEW = (
    "caution: each trial replaces the words anew, which costs the epsilon of a word again, and nothing here adds that up: "
    "what is stated of words is of one run (search.selection: public trains one model on private text)"
)


def _check_lengths(bases: Mapping[str, RunConfig]) -> None:
    """Raises: InputError for a text to search on that is too short, before minutes are spent on the others."""
    for proxy, base in bases.items():
        corpus = for_use(base).corpus
        for part, source in (("source", corpus.source), ("evaluation", corpus.evaluation)):
            with naming(proxy), within(f"corpus.{part}"):
                if source is not None:
                    check_length(source)


def _words(base: RunConfig, start: str) -> Vocabulary | None:
    """The vocabulary of trials by the base's own settings; None if it is to be released from the private text."""
    if start:
        return Vocabulary.load(start)
    return None if base.words.kind == "noisy-threshold" else make_vocabulary(for_use(base))


def _prepared(config: SweepConfig, proxy: str, base: RunConfig, folder: SweepDir, reporter: Reporter) -> RunConfig:
    """Returns the base of the trials on one text with that text prepared and checked."""
    with naming(proxy) if config.search.proxies else nullcontext():
        base = prepared(base, folder, folder.corpora(proxy))
        bounded = _check_text(config, base)
    if lost := bounded.told(base.bounds, public=bool(config.search.proxies)):
        reporter.say(f"caution: of {named(proxy)}, {lost}" if config.search.proxies else lost)
    return base


def _public_model(base: RunConfig, folder: SweepDir) -> tuple[Path, str]:
    """What bases with the same public model and words have in common: texts to search on usually share them."""
    return folder.pretrained(base), base.model.warm_start


def _start(
    config: SweepConfig, base: RunConfig, folder: SweepDir, texts: _Texts | None, beside: Beside, reporter: Reporter
) -> str:
    """Pre-trains the public model of a base, if it has one, and returns the model that its trials start from.

    Raises: InputError if the model, or its words, were made of the answer's texts, which are None where they were checked
    before.
    """
    start, made = base.model.warm_start, (folder.pretrained(base) / "model").exists()
    if texts is not None and not (base.pretrain.text and made):
        own = dataclasses.replace(base, corpus=config.base.corpus)  # as the user named it
        check_public_text(own, texts.private.text_sketch, texts.evaluation.text_sketch)
    if base.pretrain.text:
        if not made:
            reporter.say("pre-training on public text")
        beside.run(pretrained, base, folder, reporter=reporter)
        start = str(folder.pretrained(base) / "model")
    if texts is not None:
        assert config.base.corpus.evaluation is not None  # check_comparable refuses it
        for model in {start, *config.choices("model.warm_start")}:
            check_warm_start(texts.private, model)
            check_unseen(texts.evaluation.text_sketch, config.base.corpus.evaluation, model)
    return start


def _check_text(config: SweepConfig, run: RunConfig) -> Bounded:
    """Checks for all trials at once that the corpus has the categories of the space, and keeps what is declared of it.

    A trial that was refused for this would reveal something of the private text, and nothing charges for that.
    Returns: what the bounds of ``run`` did. Raises: InputError, including ``TextError``.
    """
    bounded = [
        apply_bounds(
            open_corpus(for_use(run).corpus.source.path, categories), run.bounds, run.corpus.declared_num_users
        )
        for categories in (run.corpus.categories, *config.choices("corpus.categories"))
    ]
    return bounded[0]


def _own_texts(
    config: SweepConfig,
    bases: Mapping[str, RunConfig],
    written: Mapping[str, RunConfig],
    folder: SweepDir,
    reporter: Reporter,
) -> _Texts:
    """Opens the text of the answer. Under rule ``public``, where only the winner may read the private text, it is compared
    with what the search reads; ``written`` is the latter as the user named it.

    Raises: InputError naming ``search.public`` if the search would train on private text, or be scored on it.
    """
    if config.search.rule != "public":
        return _opened(bases[""])
    winner = prepared(config.base, folder, folder.private / "winner")
    if lost := _check_text(config, winner).told(winner.bounds):
        reporter.say(lost)
    texts = _opened(winner)
    remedy = "rule public searches on other text than the winner's, so that choosing costs nothing"
    for proxy in bases:
        read, source = for_use(bases[proxy]).corpus, written[proxy].corpus
        assert read.evaluation is not None  # prepare_corpora refuses it
        assert source.evaluation is not None
        for key, one, other in (
            ("source", read.source, source.source),
            ("evaluation", read.evaluation, source.evaluation),
        ):
            check_other(texts.private, open_corpus(one.path), f"{setting_of(proxy)}.corpus.{key}", other, remedy)
    return texts


def _opened(base: RunConfig) -> _Texts:
    used = for_use(base).corpus
    assert used.evaluation is not None  # prepare_corpora refuses it
    return _Texts(open_corpus(used.source.path), open_corpus(used.evaluation.path))
