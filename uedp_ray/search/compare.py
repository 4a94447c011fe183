"""From text to a table of what privacy costs on this corpus, in one command.

    answer = compare(Comparison.load(Path("compare.yaml"), []), Path("runs/compared"), workers=0)
    answer["rows"][-1]["guarantee"]["unit"]        # "none": that of a row without noise
    answer["totals"][0]["unit"]                    # "user-entity"

The corpora are prepared once, the model is pre-trained once, and every run starts from it. Runs are trials of Ray Tune, as
many at once as the machine or cluster holds; ``workers=0`` trains one after another in this process, without Ray. All that
counts is in the runs' own directories, so a comparison that was cut off at any moment goes on where it was.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from uedp_ray.config import RunConfig, dump_config, load_config
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.transform_checks import check_transform
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError, within
from uedp_ray.fields import Check, Later, flag, list_of, number, record, string
from uedp_ray.privacy.guarantee import hides_anybody
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.search.compared import public, row_of, totals, write_csv
from uedp_ray.search.comparison import MADE, Comparison
from uedp_ray.search.preflight import PREFLIGHT
from uedp_ray.search.side_by_side import train_side_by_side
from uedp_ray.storage.base import Storage
from uedp_ray.storage.files import make_folder, read_json, replacing, settle, write_json
from uedp_ray.storage.locks import INSIDE
from uedp_ray.storage.open import folder_only
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.checks import check_comparable, check_device, check_model, check_pretraining
from uedp_ray.training.evaluate import public_row
from uedp_ray.training.guard import check_public_text, check_unseen, check_warm_start
from uedp_ray.training.host import check_gpus, tell_cautions, train
from uedp_ray.training.paths import TEXT, for_use, with_absolute_paths
from uedp_ray.training.placement import check_workers
from uedp_ray.training.pretrain import warm_started
from uedp_ray.training.rundir import RunDir
from uedp_ray.training.session import connected, ray_session
from uedp_ray.training.texts import copies_told, prepare_corpora


def compare(
    comparison: Comparison,
    out: Path,
    *,
    workers: int | None = None,
    resume: bool = False,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Trains every row into ``out/<row>/`` and writes ``out/table.json`` and ``table.csv``, the rows without run_dir, and
    without retention where every row has a guarantee.

    A variant, or the grid, may protect other categories (``corpus.categories``) of the one prepared corpus.

    Args:
      workers: Ray Train workers of each run, for as many runs at once as fit; 0: one run after another in this process,
        without Ray; None: ``training.num_workers`` of the base.
      resume: continue the comparison in ``out``; no run is trained twice.

    Returns: ``{"rows": […], "totals": […], "grid": […], "seeds": n, "out": …}``. A row holds name, variant, method, settings
      (of the grid), the scores (means over seeds), scores (of each), interval, epsilon by unit (None: no guarantee),
      guarantee (that of its own unit), as_published (``AsPublished.price``, which guarantees nothing; None: not asked for),
      delta, transform, retention (a mean as well; ``corpus.retention``; None: no mention), rounds and run_dir (of the first
      seed). ``totals``: as ``compared.totals``.
    Raises: InputError for what the user can fix; KeyboardInterrupt on Ctrl-C, after which ``resume`` continues.
    """
    storage = Storage(folder_only(out).resolve())
    num_workers = comparison.base.training.num_workers if workers is None else workers
    check_workers("--workers", num_workers)
    with storage.exclusive(), connected(num_workers):
        return _compare(comparison, storage.root, num_workers, resume, reporter)


def _compare(
    comparison: Comparison,
    out: Path,
    num_workers: int,
    resume: bool,
    reporter: Reporter,
) -> dict[str, Any]:
    settle(out, {*MADE, PREFLIGHT} - {""})
    found = {path.name for path in out.iterdir()} - {INSIDE} if out.exists() else set()
    if found and not resume:
        raise InputError("--out", str(out), "is not empty: add --resume, or name another folder")
    if found and "base.yaml" not in found:
        raise InputError("--resume", str(out), "holds no comparison: name another folder")
    if not (out / "base.yaml").exists():
        with within("base"):
            check_comparable(comparison.base, reporter)
            check_pretraining(comparison.base)
        for note in comparison.notes:
            reporter.say(f"note: {note}")
        tried = set[str]()
        for row in comparison.rows:
            with within(f"variants.{row.variant}"):
                config = for_use(row.config(comparison.base))
                check_device(config)
                check_gpus(config, num_workers)
                check_model(config)
                if row.variant not in tried:  # at its other points of the grid, when these are trained
                    check_transform(config.corpus.transform)
                tried.add(row.variant)
    _same_base(comparison.base, out / "base.yaml")
    folders = [folder for row in comparison.rows for folder in row.folders(comparison.seeds)]
    _refuse_lost(comparison, out)
    runs = [RunDir(out / folder) for folder in folders]
    with copies_told(out / "corpora", reporter, "private", unless=lambda: any(run.played for run in runs)):
        config, models = _start(comparison, out, any(run.played for run in runs), reporter)
        for folder in folders:
            make_folder(out / folder)
        fixed = _plan(comparison, out)
        with ray_session(num_workers) if num_workers else nullcontext():
            if num_workers:
                # A trial's process has another working directory than this one, which trains none, and resumes all.
                side_by_side = {folder: with_absolute_paths(run) for folder, run in comparison.runs(config)}
                train_side_by_side(side_by_side, out, workers=num_workers, reporter=reporter)
            rows = _train_all(comparison, config, out, num_workers, reporter)
    return _written(comparison, models, rows, out, fixed)


def _start(
    comparison: Comparison, out: Path, fixed: bool, reporter: Reporter
) -> tuple[RunConfig, list[dict[str, Any]]]:
    """Prepares the text and the public model; returns the base of all runs, and the rows of models that never saw the
    private text. ``fixed``: as in ``prepare_corpora``."""
    reporter.say("preparing the corpora")
    untrained = prepare_corpora(comparison.base, out / "corpora", fixed=fixed)
    used, source = for_use(untrained).corpus, comparison.base.corpus.evaluation
    configs = [row.config(untrained) for row in comparison.rows]
    for config in configs:  # before hours of work
        open_corpus(used.source.path, config.corpus.categories)
    assert used.evaluation is not None  # prepare_corpora refuses it
    assert source is not None
    private = open_corpus(used.source.path) if any(config.guarded for config in configs) else None
    evaluation = open_corpus(used.evaluation.path).text_sketch
    if not (out / "pretrained" / "model").exists():
        check_public_text(comparison.base, None if private is None else private.text_sketch, evaluation)
    reporter.say("pre-training on public text")
    config = warm_started(untrained, out / "pretrained", sharing=configs, reporter=reporter)
    start = config.model.warm_start
    check_unseen(evaluation, source, start)
    if private is not None:
        check_warm_start(private, start)
    words, metric = Vocabulary.load(start), metric_of(config)
    models = {"untrained": untrained, "public-only": config}
    return config, [public(public_row(name, model, words), metric) for name, model in models.items()]


def _train_all(
    comparison: Comparison, config: RunConfig, out: Path, num_workers: int, reporter: Reporter
) -> list[dict[str, Any]]:
    """Trains what is not trained yet, one run after another, and returns the rows of all."""
    rows, cautions = [], _Once(reporter)
    for row in comparison.rows:
        results: list[dict[str, Any]] = []
        for folder, run in comparison.runs_of(row, config):
            if not RunDir(out / folder).result.exists():
                reporter.say(f"training: {row.name}{f', seed {len(results)}' if comparison.seeds > 1 else ''}")
            result = train(
                run,
                out / folder,
                workers=num_workers,
                resume=RunDir(out / folder).config.exists(),
                text=out / "corpora" / TEXT,
                part_of="comparison",
                reporter=reporter,
            )
            tell_cautions(run, result, cautions)
            results.append(result)
        rows.append(row_of(row, config, results))
    return rows


class _Once(Reporter):
    """Says once what several runs are cautioned of, whatever the figures in it."""

    def __init__(self, reporter: Reporter):
        self._reporter, self._said = reporter, set[str]()

    def say(self, line: str) -> None:
        kind = re.sub(r"\b\d[\d.]*", "", line)
        if kind not in self._said:
            self._said.add(kind)
            self._reporter.say(line)


def _written(
    comparison: Comparison, models: list[dict[str, Any]], rows: list[dict[str, Any]], out: Path, fixed: bool
) -> dict[str, Any]:
    runs = {row.name: [out / folder for folder in row.folders(comparison.seeds)] for row in comparison.rows}
    published = comparison.published and comparison.published.to_dict()
    table: dict[str, Any] = {
        "rows": [*models, *rows],
        "totals": totals(rows, runs, comparison.base, fixed=fixed),
        "grid": list(comparison.grid),
        "seeds": comparison.seeds,
        "published": published,
    }
    private = not all(map(hides_anybody, rows))
    unwritten = {"run_dir"} if private else {"run_dir", "retention"}  # which no epsilon of the rows covers
    kept = [{key: row[key] for key in row if key not in unwritten} for row in table["rows"]]
    write_json(out / "table.json", table | {"rows": kept}, private=private)
    write_csv(kept, comparison.grid, metric_of(comparison.base), out / "table.csv", private=private)
    return table | {"out": str(out)}


_STARTED = "started.json"
"""The file that names the folders of runs that may have been started (one that is gone was lost), the digest of each run's
settings, and whether they were all fixed beforehand."""


def _started(out: Path) -> dict[str, Any]:
    path = out / _STARTED
    folder = string(r"[a-z0-9-]+", "the name of a folder here")
    fields: dict[str, Check] = {"variants": list_of(folder), "runs": Later(record({})), "fixed": Later(flag)}
    return read_json(path, fields, "restore it") if path.exists() else {"variants": []}


def finished_runs(out: Path) -> list[Path]:
    """The run directories of a comparison that have a result; none if ``out`` is no comparison's folder."""
    return [run for run in (out / name for name in _started(out)["variants"]) if RunDir(run).result.is_file()]


def _refuse_lost(comparison: Comparison, out: Path) -> None:
    """Raises: InputError if a run that was started is gone, or what tells of it: training it again would release another
    model uncharged."""
    known = {*_started(out)["variants"]}
    table: dict[str, Any] = {"rows": [], "seeds": 0}
    if (out / "table.json").exists():
        fields = {"rows": list_of(record({"name": string()})), "seeds": number(1, whole=True)}
        table = read_json(out / "table.json", fields, "restore it")
    named = {row["name"] for row in table["rows"]}
    done = [folder for row in comparison.rows if row.name in named for folder in row.folders(table["seeds"])]
    lost = [name for name in sorted(known) if not (out / name).is_dir()]
    lost += [name for name in done if not RunDir(out / name).ledger.exists()]
    if lost:
        remedy = "is missing, and what it released still counts: put it back, or compare in another folder"
        raise InputError("--resume", str(out / lost[0]), remedy)
    if untold := sorted({path.parent.name for path in out.glob("*/ledger.jsonl")} - known):
        remedy = f"does not name {untold[0]}, which was trained here: restore it, or compare in another folder"
        raise InputError("--resume", str(out / _STARTED), remedy)


def _plan(comparison: Comparison, out: Path) -> bool:
    """Records the runs before any of them starts; returns whether none was added, changed or dropped since the first was
    trained. Its total is that of runs fixed beforehand."""
    known, planned = _started(out), {folder: run.digest() for folder, run in comparison.runs(comparison.base)}
    earlier = known.get("runs", planned)
    same = earlier == planned or not any(RunDir(out / name).played for name in known["variants"])
    fixed = bool(known.get("fixed", True)) and same
    write_json(out / _STARTED, {"variants": sorted({*known["variants"], *planned}), "runs": planned, "fixed": fixed})
    return fixed


def _same_base(base: RunConfig, path: Path) -> None:
    """Refuses another base: what is prepared and pre-trained under ``out`` is shared."""
    if not path.exists():
        make_folder(path.parent)
        with replacing(path) as new:
            dump_config(base, new)
    elif load_config(path).digest() != base.digest():
        raise InputError("--resume", str(path), "the comparison's base has changed: name another folder")
