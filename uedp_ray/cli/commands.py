"""The commands that read text, train, search and report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from uedp_ray.cli.base import Json, app, as_flags
from uedp_ray.config import BoundsConfig, SourceConfig, choices, from_dict, load_config, read_yaml
from uedp_ray.console import Lines, emit, print_audit, print_comparison, print_export, print_sweep, refuse_short
from uedp_ray.corpus.detectors import DETECTORS
from uedp_ray.errors import InputError
from uedp_ray.screens import screen, sweep_screen
from uedp_ray.target import check_name, check_target

Set = Annotated[list[str], typer.Option("--set", help="Override a setting: a.b=value. Repeatable.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder to write to (if left out: runs/NAME, by the file's name).")
]
NONE: list[str] = []
_ANNOTATED = ["annotated"]
Workers = Annotated[int | None, typer.Option("--workers", min=0, help="Ray Train workers; 0 runs without Ray.")]
SourceFormat = Annotated[str, typer.Option("--format", help=f"{', '.join(get_args(choices.SourceFormat))}.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what --out holds.")]


@app.command()
def prepare(
    source: Annotated[str, typer.Argument(help="File or folder of text ('' for --format synthetic).")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the prepared corpus.")],
    format: SourceFormat,  # noqa: A002
    detector: Annotated[list[str], typer.Option(help=f"{', '.join(DETECTORS.values())}. Repeatable.")] = _ANNOTATED,
    categories: Annotated[
        list[str], typer.Option(help="Protected categories, comma-separated; all if left out. Repeatable.")
    ] = NONE,
    max_words: Annotated[int, typer.Option(help="Longer sentences and rows become consecutive pieces.")] = 128,
    num_users: Annotated[int, typer.Option(help="synthetic, pseudo-users: users to make.")] = 200,
    read_as: Annotated[str, typer.Option(help="pseudo-users: the format of the text.")] = "text",
    min_words: Annotated[int, typer.Option(help="pseudo-users: shorter sentences are joined with the next.")] = 1,
    sentences_per_user: Annotated[int, typer.Option(help="pseudo-users: sentences of each.")] = 15,
    skip_users: Annotated[int, typer.Option(help="pseudo-users: users at the beginning to leave out.")] = 0,
    skip_rows: Annotated[int, typer.Option(help="ag-news, sst-2: rows at the beginning to leave out.")] = 0,
    num_rows: Annotated[
        int | None, typer.Option(help="ag-news, sst-2: rows to read at most.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(help="synthetic, ag-news: seed.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes that detect entities (Ray tasks above 1).")] = 1,
    as_json: Json = False,
) -> None:
    """Convert text to a user corpus on disk, with its statistics (which are private)."""
    from uedp_ray.corpus.bounds import apply_bounds
    from uedp_ray.corpus.detectors.regex import nameless
    from uedp_ray.corpus.detectors.spacy_model import of_other_language
    from uedp_ray.corpus.prepare import prepare as run
    from uedp_ray.corpus.store import open_corpus
    from uedp_ray.training.guard import respelled
    from uedp_ray.training.placement import check_workers
    from uedp_ray.training.texts import check_source

    tree = {
        "path": source,
        "format": format,
        "detector": detector,
        "categories": [name.strip() for part in categories for name in part.split(",") if name.strip()],
        "max_words": max_words,
        "num_users": num_users,
        "read_as": read_as,
        "min_words": min_words,
        "sentences_per_user": sentences_per_user,
        "skip_users": skip_users,
        "skip_rows": skip_rows,
        "num_rows": num_rows,
        "seed": seed,
    }
    with as_flags(path="SOURCE"), screen() as reporter:
        settings = from_dict(SourceConfig, tree)
        check_source("", settings)
        check_workers("workers", workers, here=True)
        statistics = run(settings, _folder(out), workers=workers, reporter=reporter)
        named = "" if settings.categories else nameless(statistics["mentions"])
        corpus = open_corpus(out)
        foreign = of_other_language(settings.detector, (text for _, said in corpus.texts() for text in said))
        for caution in filter(None, (named, respelled(corpus), foreign)):
            reporter.say(f"caution: {caution}")
        if corpus.names_users and (lost := apply_bounds(corpus, BoundsConfig(), None).told(BoundsConfig())):
            reporter.say(f"with the bounds that init writes, {lost}")  # before hours of pre-training and training
        if settings.format == "text":
            remedy = "enough for public and evaluation text; private text names its users (docs/your-own-text.md)"
            reporter.say(f"the whole text is one user's: {remedy}")
    emit(statistics, as_json)


@app.command()
def pretrain(
    config: Annotated[Path, typer.Argument(help="Run file (YAML).")],
    settings: Set = NONE,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Ordinary training on public text: the warm start of a private run."""
    loaded = load_config(config, settings)
    from uedp_ray.training.pretrain import pretrain as run

    with screen() as reporter:
        answer = run(loaded, _folder(out or Path("runs") / f"{loaded.name}-pretrained"), reporter=reporter)
        reporter.say("the scores are of sentences of the public text that were held out: of other text they are worse")
    emit(answer, as_json)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="Run file (YAML).")],
    settings: Set = NONE,
    workers: Workers = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """One model: text in; checkpoint, ledger and privacy statement out."""
    loaded = load_config(config, settings)  # a mistake is told before torch is imported, which takes seconds
    from uedp_ray.training.host import tell_cautions
    from uedp_ray.training.host import train as run

    with screen() as reporter:
        answer = run(
            loaded,
            _target(out or Path("runs") / loaded.name),
            workers=workers,
            resume=resume,
            reporter=reporter,
        )
        tell_cautions(loaded, answer, reporter)
    emit(answer, as_json)
    refuse_short([answer])


@app.command()
def compare(
    config: Annotated[Path, typer.Argument(help="Comparison file (YAML): base and variants.")],
    settings: Set = NONE,
    workers: Workers = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Untrained, public-only, private and non-private models side by side."""
    read_yaml(config)  # as in ``train``
    from uedp_ray.search.compare import compare as run
    from uedp_ray.search.comparison import Comparison

    loaded = Comparison.load(config, settings)
    with screen() as reporter:
        answer = run(
            loaded,
            _folder(out or Path("runs") / loaded.base.name),
            workers=workers,
            resume=resume,
            reporter=reporter,
        )
    if as_json:
        emit(answer, as_json)
    else:
        print_comparison(answer)
    refuse_short(answer["rows"])


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(help="Sweep file (YAML).")],
    trials: Annotated[int | None, typer.Option(help="Trials to train; overrides search.trials.")] = None,
    settings: Set = NONE,
    address: Annotated[str | None, typer.Option(help="Ray cluster; default: RAY_ADDRESS, or this machine.")] = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """The best model under a privacy budget, and what finding it cost."""
    from uedp_ray.privacy.selection import TRAINS_ANEW
    from uedp_ray.search.sweep_config import load_sweep_config

    if trials is not None and trials < 1:
        raise InputError("--trials", trials, "must be 1 or more")
    loaded = load_sweep_config(config, [*settings, *([f"search.trials={trials}"] if trials else [])])
    from uedp_ray.search.sweep import sweep as run

    with sweep_screen() as reporter:
        answer = run(
            loaded,
            _target(out or Path("runs") / loaded.base.name),
            address=address,
            resume=resume,
            reporter=reporter,
        )
    if as_json:
        emit(answer, as_json)
    else:
        print_sweep(answer)
    if answer["best"] is None and answer["counts"]["asked"]:  # a random number of trials may be 0
        raise RuntimeError("no trial was trained to its end: the reasons are in trials.parquet")
    best = [answer["best"]] if answer["best"] else []
    if answer["selection"]["rule"] in TRAINS_ANEW:  # the winner is trained anew: its rounds are not the trial's
        best = [row | {"name": "the winner"} for row in best]
    refuse_short([*best, *answer["references"]])


@app.command()
def report(
    sweeps: Annotated[list[Path], typer.Argument(help="Sweep directories, or one of a comparison.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="HTML file; default: report.html of the first sweep.")
    ] = None,
    publish: Annotated[
        bool,
        typer.Option("--publish", help="For others: without paths, times, error messages and the noiseless reference."),
    ] = False,
    as_json: Json = False,
) -> None:
    """One self-contained HTML page on one or several sweeps, or on a comparison, and its figures."""
    from uedp_ray.analysis.report import report as run
    from uedp_ray.search.layout import check_apart

    if out is not None and out.resolve().parent not in {sweep.resolve() for sweep in sweeps}:
        check_apart(out)
    emit({"html": str(run(sweeps, out, publish=publish))}, as_json)


@app.command()
def export(
    source: Annotated[str, typer.Argument(metavar="SWEEP|RUN", help="A sweep or run directory, or its URL.")],
    out: Annotated[Path, typer.Option("--out", help="New folder to hand on.")],
    as_json: Json = False,
) -> None:
    """The folder to hand on: model, card, ledger, and a privacy statement with the total first."""
    from uedp_ray.search.export import export as run

    answer = run(source, _folder(out), reporter=Lines())
    emit(answer, as_json) if as_json else print_export(answer)


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN|COMPARISON", help="A run directory, or one of a comparison.")],
    beam_width: Annotated[int, typer.Option(help="Continuations that the beam search keeps at each step.")] = 10,
    as_json: Json = False,
) -> None:
    """What a model remembers of canaries that were planted in its text (corpus.transform.kind: plant)."""
    from uedp_ray.audit.planted import audit as run_audit
    from uedp_ray.audit.planted import plants
    from uedp_ray.search.compare import finished_runs

    with as_flags(RUN="RUN"), screen() as reporter:
        runs = [each for each in finished_runs(run) if plants(load_config(each / "config.yaml"))]
        answers = [run_audit(each, beam_width=beam_width, reporter=reporter) for each in runs or [run]]
    if as_json:
        emit({"runs": answers}, as_json)
    else:
        print_audit(answers)


@app.command()
def predict(
    run: Annotated[
        Path, typer.Argument(metavar="RUN|SWEEP", help="A run directory, an export, its model, or a sweep.")
    ],
    text: Annotated[list[str], typer.Option(help="Text to answer. Repeatable.")] = NONE,
    source: Annotated[Path | None, typer.Option("--input", help="File of texts: .jsonl or .parquet.")] = None,
    output: Annotated[Path | None, typer.Option(help="File to write the answers to: .jsonl or .parquet.")] = None,
    top: Annotated[int, typer.Option(help="Next words, or labels, of each text.")] = 5,
    workers: Annotated[
        int, typer.Option(min=0, help="Ray Data workers for --input, one CPU each; 0 runs without Ray.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """What a model says of a text: next words, labels, tags or entities, by its task."""
    from uedp_ray.search.export import best_run
    from uedp_ray.search.layout import SweepDir, check_apart
    from uedp_ray.training.predict import predict as answers
    from uedp_ray.training.predict_file import predict_file

    if bool(text) == bool(source) or bool(source) != bool(output):
        raise InputError("--text", text, "give texts by --text, or a file of them by --input, and then --output")
    with as_flags(path="--input", RUN="RUN", model="model"), screen() as reporter:
        best = best_run(run, reporter=reporter) if SweepDir(run).is_sweep else {}
        run = Path(best.get("run_dir", run))
        if source and output:
            check_apart(output, field="--output")
            answer = predict_file(run, source, output, top=top, workers=workers, reporter=reporter)
        else:
            answer = {"predictions": answers(run, text, top=top, reporter=reporter)}
    emit(best | answer, as_json)


def _target(out: Path) -> Path:
    """Returns ``out`` if it is a URL, or a folder that ``_folder`` allows."""
    from uedp_ray.storage.objects import as_url

    return check_name(out) if as_url(out) else _folder(out)


def _folder(out: Path) -> Path:
    """Returns ``out`` if it can be written to, and is not inside a folder of ours."""
    from uedp_ray.search.layout import check_apart
    from uedp_ray.storage.open import folder_only

    return check_apart(check_target(folder_only(out)))
