"""A commented run, sweep or comparison file for one's own text, to edit: what ``uedp-ray init`` writes.

    text = starter("train", Answers(text="notes.jsonl", evaluation="held-out.jsonl", public="public.txt", users=150))

Files are named, and read only to refuse copies: nothing in a configuration may follow from private text.
"""

from __future__ import annotations

import filecmp
import json
import math
import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from uedp_ray.config.limits import at_least, positive
from uedp_ray.errors import InputError
from uedp_ray.fields import UNPRINTABLE

FileKind = Literal["train", "sweep", "compare"]
_PASSES = 10
_HOLDERS = 5
LEAST_COHORT = 20
"""Users in a round; with fewer nothing was measured."""
_FORMATS = {".jsonl": "jsonl", ".parquet": "parquet", ".txt": "text", ".conll": "conll"}


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What only the owner of the text knows."""

    text: str
    """Private text with users: a JSONL or Parquet file, or a folder that ``uedp-ray prepare`` wrote."""
    evaluation: str
    """Text of users outside the protected set, or public text."""
    users: int
    """A public upper bound on the number of users in ``text``, which nothing here compares with it."""
    public: str = ""
    """Public text, for the vocabulary and the warm start; not needed with ``model``."""
    model: str = ""
    """A pretrained model: a folder or a hub name."""
    max_length: int = 64
    """With ``model``: how many tokens of a sentence count, at most what the model can read."""
    epsilon: float = 8.0
    proxies: tuple[str, ...] = ()
    """``sweep``: public texts to search on, each of another source than ``public``."""
    sentences_per_user: int = 15
    words_per_sentence: int = 15
    """About how many ``text`` has, as could be known without it: proxies are cut alike."""


def starter(kind: FileKind, answers: Answers) -> str:
    """Returns the file's text. Raises: InputError for files whose format is not known, or that name no users."""
    at_least("users", answers.users, 1, most=10**10)
    positive("epsilon", answers.epsilon)
    at_least("sentences_per_user", answers.sentences_per_user, 1)
    at_least("words_per_sentence", answers.words_per_sentence, 2, most=1000)
    at_least("max_length", answers.max_length, 1)
    if answers.proxies and kind != "sweep":
        raise InputError("proxy", answers.proxies[0], "is to search settings on: it belongs to a sweep")
    named = [(name, getattr(answers, name)) for name in ("text", "evaluation", "public", "model")]
    for name, value in (*named, *(("proxy", each) for each in answers.proxies)):
        if UNPRINTABLE.search(value):
            raise InputError(name, value, "is not one line of printable UTF-8: rename it")
    if bool(answers.model) == bool(answers.public):
        remedy = (
            "name one of two: public text, for words and a warm start, or a pretrained model (--model), which has both"
        )
        raise InputError("public", answers.public, remedy)
    if _is_one_of(answers.evaluation, answers.text):
        raise InputError("evaluation", answers.evaluation, "is the private text: name text of other users")
    if _is_one_of(answers.public, answers.text):
        raise InputError("public", answers.public, "is the private text: name text that anyone may read")
    if _is_one_of(answers.public, answers.evaluation):
        remedy = "is the public text, and no text can evaluate a model trained on it: name other text"
        raise InputError("evaluation", answers.evaluation, remedy)
    if kind == "train":
        return f"{_STEPS[bool(answers.model)]}# {_PUBLIC}\n{_run(answers, budget=True)}"
    base = textwrap.indent(_run(answers, budget=kind == "compare"), "  ")
    if kind == "compare":
        return f"# Models side by side: uedp-ray compare FILE. {_PUBLIC}\nbase:\n{base}{_VARIANTS}"
    search = _PROXIES.format(proxies="".join(_proxies(answers))) if answers.proxies else _SECRET
    share = _share(answers.users)
    shares = f"{share / 2:g}, {min(1.0, 4 * share):g}"
    space = _SPACE.format(epsilon=_exact(answers.epsilon), delta=_delta(answers.users), search=search, shares=shares)
    return f"# A search: uedp-ray plan FILE, then uedp-ray sweep FILE. {_PUBLIC}\nbase:\n{base}{space}"


def check_format(flag: str, path: str) -> None:
    """Raises: InputError for a file whose format is not known, or for private text that names no users."""
    if _format(flag, path) == "text" and flag == "text":
        remedy = "names no users, and it is users who are protected: write JSONL, a line for each text with its user"
        raise InputError(flag, path, f"{remedy} (docs/your-own-text.md)")


def _run(answers: Answers, *, budget: bool) -> str:
    check_format("text", answers.text)
    private, evaluation = _source("text", answers.text), _source("evaluation", answers.evaluation)
    share = _share(answers.users)
    rounds = round(_PASSES / share)
    if answers.model:
        network = (
            f"model: {{architecture: pretrained, path: {_quoted(answers.model)}, max_length: {answers.max_length}, "
            "trainable: lora, lora_rank: 4}  # its own tokenizer; if it was trained on this text, no epsilon covers that"
        )
        words, rate = "", 0.002
    else:
        network = (
            "model:  # max_length counts tokens, about two a word: beyond some 48 words the rest of a sentence is not "
            "used, as train\n  # tells; corpus.source.max_words: 32 (prepare --max-words 32) divides such sentences\n"
            "  {architecture: gpt2, num_layers: 2, hidden_size: 128, num_heads: 4, max_length: 96, trainable: lora, "
            "lora_rank: 4,\n    lora_targets: [c_attn, c_proj, c_fc, lm_head]}  # the output layer too: it knows how often "
            "words occur"
        )
        words, rate = _WORDS.format(public=_source("public", answers.public)), 0.01
    target = f"\n  target_epsilon: {_exact(answers.epsilon)}\n  delta: {_delta(answers.users)}" if budget else ""
    return _RUN.format(
        private=private,
        users=answers.users,
        evaluation=evaluation,
        basis=_BASIS[_format("evaluation", answers.evaluation) == "text"],
        num_tokens=answers.users * answers.sentences_per_user * answers.words_per_sentence,
        words=words,
        target=f"{target}  # well below 1 / users" if budget else "",
        share=share,
        holders=min(_HOLDERS, answers.users),
        passes=_PASSES,
        evaluate_every=max(1, rounds // 10),
        checkpoint_every=max(1, rounds // 20),
        network=network,
        rate=rate,
    )


def _is_one_of(path: str, *others: str) -> bool:
    """Whether it is the same file as one of them, by whatever name, or a copy of it; empty ones are no files."""
    named = [*filter(None, others)] if path else []
    return os.path.realpath(path) in map(os.path.realpath, named) or any(_copied(path, other) for other in named)


def _copied(path: str, other: str) -> bool:
    """Whether two files hold the same bytes, if both are here: commands that read the texts compare them in full."""
    try:
        return os.path.getsize(path) > 0 and filecmp.cmp(path, other, shallow=False)
    except OSError:
        return False


def _exact(value: float) -> str:
    """A number in few characters, and never another one."""
    return short if float(short := f"{value:g}") == value else repr(value)


def _share(users: int) -> float:
    """The q_u that ``plan`` would choose: many small rounds, of a few dozen users at least."""
    return next((share for share in (0.05, 0.1, 0.25) if share * users >= LEAST_COHORT), 0.5)


def _proxies(answers: Answers) -> Iterator[str]:
    """The settings of each public text to search on, cut into as many users as the private text has."""
    for number, path in enumerate(answers.proxies, 1):
        kind = _format("proxy", path)
        if _is_one_of(path, answers.public, answers.text, answers.evaluation):
            raise InputError("proxy", path, "is named for something else, or a copy of it: name text of another source")
        if _is_one_of(path, *answers.proxies[: number - 1]):
            raise InputError("proxy", path, "is named twice, which says nothing more: name other text, or drop one")
        if kind == "prepared":
            raise InputError("proxy", path, "is prepared, with users of its own: name the file that it was made of")
        words = answers.words_per_sentence
        cut = (
            f"format: pseudo-users, path: {_quoted(path)}, read_as: {kind}, "
            f"sentences_per_user: {answers.sentences_per_user}, "
            f"min_words: {max(1, words * 2 // 3)}, max_words: {max(2, words * 3 // 2)}"
        )
        held_out = max(1, answers.users // 5)
        yield _PROXY.format(number=number, cut=cut, users=answers.users, held_out=held_out)


def _source(flag: str, path: str) -> str:
    kind = _format(flag, path)
    detectors = ", detector: [annotated, regex]" if flag == "text" and kind in ("jsonl", "parquet") else ""
    return f"{{format: {kind}, path: {_quoted(path)}{detectors}}}"


def _format(flag: str, path: str) -> str:
    if Path(path).is_dir():
        return "prepared"
    found = _FORMATS.get(Path(path).suffix.lower())
    if found is None:
        known = f"a file of {', '.join(_FORMATS)} or a prepared folder"
        remedy = f"is not {known}: convert it" if Path(path).exists() else f"does not exist: name {known}"
        raise InputError(flag, path, f"{remedy} (docs/your-own-text.md)")
    return found


def _delta(users: int) -> str:
    """1e-5, or for very many users the power of ten that is a tenth of 1 / users or less."""
    return f"1.0e-{max(5, math.ceil(math.log10(10 * users))):d}"


def _quoted(path: str) -> str:
    return json.dumps(path, ensure_ascii=False)


_STEPS = {
    False: "# A run. uedp-ray plan FILE; uedp-ray pretrain FILE --out runs/public;\n"
    "# uedp-ray train FILE --set model.warm_start=runs/public/model\n",
    True: "# A run. uedp-ray plan FILE; uedp-ray train FILE\n",
}
"""By whether the model is pretrained already."""
_PUBLIC = "Every value is public: nothing here may be read off the private text."
_RUN = """\
name: notes
corpus:
  source: {private}
  declared_num_users: {users}  # an upper bound that could be known without the text
  declared_num_tokens: {num_tokens}  # a guess, for times and speeds alone
  evaluation: {evaluation}  # it must be outside the protected set
  evaluation_basis: {basis}
{words}bounds:  # what one entity (a name, a company, …) may hold; more is weighed down, once, before training
  mode: enforced
  max_sentences_per_entity: 1  # of one user
  max_holders: {holders}  # users; fewer need less noise, and weigh common entities down more
privacy:
  unit: user-entity  # hides that a user took part, and any entity{target}
  l2_clip_norm: 1.0
  sentence_clip_norm: 0.2
  user_sampling_prob: {share}  # of the users, in each round
{network}
training:
  passes: {passes}  # over the text; time grows with it, and models get better
  server_learning_rate: {rate}
  server_schedule: linear
  evaluate_every: {evaluate_every}
  checkpoint_every: {checkpoint_every}
"""
_BASIS = {
    False: "held_out_users  # of users who are in no private text; or public",
    True: "public  # it names no users; held_out_users if none of its authors is in the private text",
}
"""By whether the evaluation text names no users."""
_WORDS = """\
vocabulary:  # pieces of words; perplexities of other vocabularies cannot be compared with theirs, bits per byte can
  {{kind: public-subwords, max_size: 4000, lowercase: true}}  # false: capitals are predicted too
pretrain:  # ordinary training on public text: the more of it, and the more like the private text, the better
  text: [{public}]
  num_steps: 1000
"""
_SPACE = """\
space:
  privacy.user_sampling_prob: {{log_uniform: [{shares}]}}
  privacy.sentence_clip_norm: {{log_uniform: [0.1, 0.4]}}
  training.passes: {{choice: [5, 10, 20]}}
  training.server_learning_rate: {{log_uniform: [0.003, 0.03]}}
budget:  # of the whole answer, the choice included
  target_epsilon: {epsilon}
  delta: {delta}  # well below 1 / users
  unit: user-entity
{search}"""
_SECRET = """\
search:  # the winner of a secret number of trials; with public text like the private one, selection: public costs nothing
  searcher: random
  trials: 8
"""
_PROXIES = """\
search:  # on public text in the place of the private one, which costs nothing; then one run on the private text
  searcher: tpe
  trials: 16
  selection: public
  public:
{proxies}"""
_PROXY = """\
    proxy{number}:  # made into as many users as the private text has at most, of as many sentences, of as many words
      corpus.source: {{{cut}, num_users: {users}, detector: [capitalized, regex]}}
      corpus.evaluation: {{{cut}, num_users: {held_out}, skip_users: {users}}}
      corpus.evaluation_basis: public
"""
_VARIANTS = """\
variants:
  user-entity: {method: uedp}
  users alone: {method: user_dp}
  clip only: {method: clip_only}  # no privacy: its figures are not to be published
  non-private:  # ordinary training: try epochs (too many learn the text by heart) and rates
    {method: ordinary, set: {model.trainable: full, training.passes: 4, training.server_learning_rate: 0.001}}
# grid: {privacy.target_epsilon: [1, 2, 4, 8]}  # every variant that uses it at every value, for uedp-ray report
# seeds: 3  # runs of every row, for means and intervals; each costs its own epsilon
"""
