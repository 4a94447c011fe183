"""The copies of text that runs train on and are scored on: made once, and fixed from the first charge on.

Example:

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from uedp_ray.config import RunConfig, from_dict
    >>> from uedp_ray.corpus.store import open_corpus
    >>> from uedp_ray.training.texts import prepare_corpora
    >>> source, evaluation = ({"format": "synthetic", "num_users": 9, "part": part} for part in ("private", "held_out"))
    >>> corpus = {"declared_num_users": 100, "source": source, "evaluation": evaluation}
    >>> folder = TemporaryDirectory()
    >>> out = Path(folder.name)
    >>> config = from_dict(RunConfig, {"corpus": corpus, "privacy": {"noise_multiplier": 1.0}})
    >>> config = prepare_corpora(config, out / "corpora")
    >>> sorted(path.name for path in (out / "corpora").iterdir())
    ['evaluation', 'evaluation.source.json', 'private', 'private.source.json', 'text.json']
    >>> config.corpus.source.format, open_corpus(config.corpus.source.path).num_users
    ('prepared', 9)
    >>> folder.cleanup()
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from uedp_ray.config import RunConfig, SourceConfig
from uedp_ray.corpus.detectors import build_detectors, file_of
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.readers import source_files
from uedp_ray.corpus.store import MADE, Corpus, of_earlier_version, open_corpus
from uedp_ray.errors import InputError, within
from uedp_ray.fields import anything, string
from uedp_ray.reporting import Reporter
from uedp_ray.storage.files import beneath, make_folder, read_json, settle, write_json
from uedp_ray.storage.locks import lock_beside
from uedp_ray.training.guard import check_evaluation, check_labels
from uedp_ray.training.paths import TEXT, for_use

EARLIER = (
    "an earlier version made this run, and this one can neither resume nor export it: use that version "
    "(`uedp-ray epsilon --ledger` and `uedp-ray predict` still read the run)"
)


@contextmanager
def copies_told(folder: Path, reporter: Reporter, *names: str, unless: Callable[[], bool]) -> Iterator[None]:
    """Reports that ``folder`` holds a copy of private text, if the block is refused.

    ``names``: the copies of private text in ``folder``. ``unless``: whether something was trained on them by then.
    """
    try:
        yield
    except InputError:
        if any((folder / name).exists() for name in names) and not unless():
            reporter.say(
                f"refused; {folder} holds a copy of the private text for the next start: delete it if you do not start again"
            )
        raise


def prepare_corpora(config: RunConfig, folder: Path, *, fixed: bool = False) -> RunConfig:
    """The config with its private and evaluation text prepared under ``folder``, unless they already are.

    ``fixed``: as in ``prepared_source``. ``TEXT`` in ``folder`` records which text it is, for all runs that train on it.
    Raises: InputError if there is no evaluation text, it is the private text, or the latter lacks a protected category.
    """
    corpus = for_use(config).corpus
    if corpus.evaluation is None:
        raise InputError("corpus.evaluation", None, "name text to compare models on")
    make_folder(folder, private=True)
    settle(folder)  # a complete copy is not prepared again, so nothing else settles it
    with within("corpus.source"):
        private = prepared_source(corpus.source, folder / "private", fixed=fixed)
    with within("corpus.evaluation"):
        held_out = prepared_source(corpus.evaluation, folder / "evaluation", protected=False, fixed=fixed)
    assert config.corpus.evaluation is not None
    one, other = open_corpus(private, corpus.categories), open_corpus(held_out)
    check_evaluation(one, other, config.corpus.evaluation)
    check_labels(one, config.task, "corpus.source")
    check_labels(other, config.task, "corpus.evaluation")
    keep_text(folder / TEXT, one, other, fixed=fixed)
    source, evaluation = _named(config.corpus.source, private), _named(config.corpus.evaluation, held_out)
    return dataclasses.replace(config, corpus=dataclasses.replace(corpus, source=source, evaluation=evaluation))


def _named(written: SourceConfig, folder: Path) -> SourceConfig:
    """A prepared folder as configs name it: with ``$NAME`` if the user wrote it."""
    kept = written.format == "prepared" and "$" in written.path
    return SourceConfig(path=written.path if kept else str(folder))


def prepared_source(source: SourceConfig, folder: Path, *, protected: bool = True, fixed: bool = False) -> Path:
    """The prepared folder of a source: the one it names, or ``folder``, a copy, which is made if missing or outdated.

    ``fixed``: something was trained on the copy, which then stays, whatever happened to the source.
    Raises: InputError if it is fixed, and an earlier version made it: what it was trained on cannot be opened.
    """
    if source.format == "prepared":
        open_corpus(source.path)
        return Path(source.path).resolve()
    earlier = of_earlier_version(folder)
    if earlier and fixed:
        raise InputError("path", str(folder), EARLIER)
    if not (folder / "corpus.json").exists() or earlier or (not fixed and outdated(source, folder)):
        found, known = _files_of(source), made_of(folder)
        known.unlink(missing_ok=True)
        prepare(source, folder, protected=protected)
        write_json(known, {"files": found}, private=True)
    return folder.resolve()


def check_source(field: str, source: SourceConfig) -> None:
    """Raises InputError if the text or what its detectors need is missing. ``field``: the setting that names it, if any."""
    with within(field) if field else nullcontext():
        if source.format == "prepared":
            open_corpus(source.path)
            return
        for file in source_files(source):
            try:
                with open(file, "rb") as opened:
                    opened.read(1)
            except OSError as error:
                raise InputError("path", source.path, f"cannot be read: {error.strerror}") from None
        build_detectors(source.detector)


def outdated(source: SourceConfig, folder: Path) -> bool:
    """Whether files of a source changed since its copy in ``folder`` was made, as far as that is known. A source that
    cannot be read counts as unchanged."""
    if source.format == "prepared" or not (folder / "corpus.json").exists():
        return False
    found, known = _files_of(source), made_of(folder)
    if found is None:
        return False
    anew = "delete it, and the copy of the text beside it is rebuilt"
    return not known.exists() or read_json(known, {"files": anything}, anew)["files"] != found


def made_of(copy: Path) -> Path:
    """The file that records which files a copy was made from."""
    return copy.with_name(f"{copy.name}.source.json")


def copy_of(name: str) -> str:
    """A regular expression, as for ``find_other``, of what ``prepared_source`` makes for a folder of that name."""
    copy = Path(name)
    return "|".join((beneath(name, MADE), *(re.escape(path.name) for path in (made_of(copy), lock_beside(copy)))))


CORPORA = "|".join((copy_of("private"), copy_of("evaluation"), re.escape(TEXT)))
"""A regular expression, as for ``find_other``, of what ``prepare_corpora`` makes."""


def _files_of(source: SourceConfig) -> list[list[str | int]] | None:
    """(Path, bytes, time of change) of every file of a source and of its entity lists; None if one cannot be read."""
    lists = [file for file in map(file_of, source.detector) if file is not None]
    try:
        files = [*source_files(source), *lists]
        return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    except (InputError, OSError):
        return None


def keep_text(path: Path, corpus: Corpus, evaluation: Corpus | None, *, fixed: bool) -> None:
    """Records in ``path`` which text is trained and scored on; if that is ``fixed``, refuses any other.

    Raises: InputError.
    """
    digests = {"corpus": corpus.digest, "evaluation": evaluation and evaluation.digest}
    if not fixed:
        write_json(path, digests, private=True)
        return
    remedy = "put it back, or train in another folder"
    known = read_json(path, {"corpus": string(), "evaluation": string(nothing=True)}, remedy)
    for field, name, found in (("source", "corpus", corpus), ("evaluation", "evaluation", evaluation)):
        if known[name] != digests[name]:
            where = None if found is None else found.path
            copied = where is not None and where.resolve().parent == path.resolve().parent
            remedy = "has changed since training on it began: put it back" + (f", and delete {where}" if copied else "")
            raise InputError(f"corpus.{field}", where and str(where), remedy)
