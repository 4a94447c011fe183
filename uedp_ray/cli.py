"""``uedp-ray``: parse, call, print. Every command takes ``--json``: one document on stdout, all else on stderr."""

from __future__ import annotations

import errno
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

import uedp_ray
from uedp_ray.config import SourceConfig, from_dict, load_config
from uedp_ray.console import (
    emit,
    err,
    keep_descriptors,
    on_round,
    on_step,
    print_comparison,
    print_sweep,
    progress_line,
    refuse_short,
    say,
    sweep_screen,
    write_any_text,
)
from uedp_ray.errors import InputError, no_thread_no_blame, one_line, unreadable
from uedp_ray.interrupts import ignore, kept_apart, like_ctrl_c
from uedp_ray.target import check_name, check_target

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Language models with user-entity differential privacy: train, account, sweep.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_UsageError: Any = typer.BadParameter.__bases__[0]  # Typer exports this subclass only

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Set = Annotated[list[str], typer.Option("--set", help="Override a setting: a.b=value. Repeatable.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.")]
_NONE: list[str] = []
_ANNOTATED = ["annotated"]
Workers = Annotated[int | None, typer.Option("--workers", min=0, help="Ray Train workers; 0 runs without Ray.")]
_FORMATS = "conll, ag-news, jsonl, parquet, speeches, text, synthetic, prepared."
SourceFormat = Annotated[str, typer.Option("--format", help=_FORMATS)]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what --out holds.")]


def main() -> None:
    """The console script: exit code 0 on success, 2 on bad input, 1 on failure, 130 on Ctrl-C, SIGTERM or SIGHUP."""
    keep_descriptors()
    write_any_text()
    try:
        like_ctrl_c(_interrupted)
        code = _answered()
        ignore()  # it is done
    except KeyboardInterrupt:
        while True:  # until it has been done: where one came, more come in a burst
            with suppress(KeyboardInterrupt):
                ignore()
                break
        code = _interrupted()
    if code:
        sys.exit(code)


def _interrupted() -> int:
    """Says how to go on. Returns the exit code."""
    resumable = _resumes(sys.argv[1:])
    again = [*sys.argv[1:], *(["--resume"] if resumable and "--resume" not in sys.argv else [])]
    charged = "what was released stays charged. To go on" if resumable else "nothing was released. To run it again"
    _tell(f"interrupted: {charged}: uedp-ray {shlex.join(again)}")
    return 130


def _resumes(words: list[str]) -> bool:
    """Whether a command that was interrupted goes on with ``--resume``: not before there is anything to go on with. A URL,
    and a name that was left out, are not looked at."""
    first = {"train": "private", "compare": "base.yaml", "sweep": "sweep.yaml"}.get(words[0] if words else "")
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--out=") else [word])]
    out = next((value for option, value in pairwise(words) if option == "--out"), "://")
    return first is not None and ("://" in out or (Path(out) / first).exists())


def _answered() -> int:
    """Runs the command and says what went wrong. Returns the exit code; raises KeyboardInterrupt if it was interrupted."""
    try:
        with kept_apart(), no_thread_no_blame():
            if app(args=sys.argv[1:] or ["--help"], standalone_mode=False) == 130:  # so Typer answers Ctrl-C
                raise KeyboardInterrupt
    except (InputError, _UsageError) as error:
        message = str(error) if isinstance(error, InputError) else one_line(error.format_message(), 600)
        _tell(f"error: {message}")
        return 2
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            _tell(f"error: {unreadable(error, '', '')}")
            return 2
        # Typer answers EOFError with an error of no words.
        told = str(error) or type(error.__context__ or error).__name__
        _tell(f"failed: {one_line(told, 3000)}")
        return 1
    except MemoryError:  # of which Arrow's is one
        _tell("failed: this machine ran out of memory: free some, or take less text or a smaller model, and run again")
        return 1
    return 0


def _tell(message: str) -> None:
    err.print(message, style="red", markup=False, highlight=False, soft_wrap=True)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"uedp-ray {uedp_ray.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


@contextmanager
def _as_flags(**names: str) -> Iterator[None]:
    """Errors of the block name the flag that was typed: ``max_users`` becomes ``--max-users``, or what ``names`` says."""
    try:
        yield
    except InputError as error:
        flag = f"--{error.field.replace('_', '-')}" if error.field.isidentifier() else error.field
        raise InputError(names.get(error.field, flag), error.value, error.remedy) from error.__cause__


_PROBABILITIES = {"user_sampling_prob": "--q-u", "entity_sampling_prob": "--q-e", "extended_sampling_prob": "--q-s"}
Accountant = Annotated[str, typer.Option(help="user-entity, user, entity or published.")]
UserProb = Annotated[float | None, typer.Option("--q-u", help="User sampling probability.")]
EntityProb = Annotated[float, typer.Option("--q-e", help="Entity sampling probability.")]
ExtendedProb = Annotated[float, typer.Option("--q-s", help="Sampling probability of sentences without an entity.")]
Rounds = Annotated[int | None, typer.Option(help="Noised releases T.")]
Delta = Annotated[float, typer.Option(help="delta of (epsilon, delta).")]
MaxHolders = Annotated[
    int | None, typer.Option(help="K: users that hold one entity, at most. Left out, entities are not protected.")
]
EntityClip = Annotated[float, typer.Option(help="beta_e in units of beta: how far one entity moves one user's update.")]
ExtendedClip = Annotated[
    float | None, typer.Option(help="One sentence's bound in units of beta; default: --entity-clip.")
]
Rule = Annotated[str, typer.Option(help="Selection rule: all or any.")]
Draw = Annotated[str, typer.Option(help="Entities are drawn once for everyone (global) or by each user (per-user).")]
Kind = Annotated[
    str,
    typer.Option(help="What is removed: entity, extended (a sentence without entities), both (the worse)."),
]
HolderBound = Annotated[str, typer.Option(help="Beyond K holders: truncate (drop) or reweight (by K/H).")]
MaxUsers = Annotated[int | None, typer.Option(help="Declared number of users, for reweight and cautions.")]


def _refuse_others(context: typer.Context, flag: str, value: object, allowed: set[str]) -> None:
    """Refuses options that were typed and that ``flag``, which answers by what a file says, would leave unread."""
    options = {option.name: option.opts[0] for option in context.command.params if option.name not in allowed}
    typed = [
        name for key, name in options.items() if key and str(context.get_parameter_source(key)).endswith("COMMANDLINE")
    ]
    if typed:
        raise InputError(
            flag, str(value), f"does not go with {', '.join(typed)}: it says that itself, drop one of them"
        )


@app.command()
def epsilon(
    context: typer.Context,
    accountant: Accountant = "user-entity",
    q_u: UserProb = None,
    q_e: EntityProb = 1.0,
    q_s: ExtendedProb = 1.0,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise std in the sum, in units of beta.")] = None,
    rounds: Rounds = None,
    delta: Delta = 1e-5,
    max_holders: MaxHolders = None,
    entity_clip: EntityClip = 2.0,
    extended_clip: ExtendedClip = None,
    rule: Rule = "any",
    entity_draw: Draw = "global",
    kind: Kind = "both",
    holder_bound: HolderBound = "truncate",
    max_users: MaxUsers = None,
    method: Annotated[str, typer.Option(help="published: uedp, uedp_fe or user_dp.")] = "uedp",
    sensitive_fraction: Annotated[float, typer.Option(help="published: sensitive / all sentences.")] = 1.0,
    max_order: Annotated[int, typer.Option(help="published: largest moment order.")] = 32,
    ledger: Annotated[Path | None, typer.Option(help="Account what a ledger file records instead.")] = None,
    exported: Annotated[
        Path | None, typer.Option("--export", help="Account a folder of uedp-ray export: training and choosing.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The epsilon of a parameter set, or of a ledger file. No data is touched."""
    from uedp_ray.accountant import export_epsilon, ledger_epsilon, parameter_epsilon

    flags = locals()
    with _as_flags(**_PROBABILITIES, selection_rule="--rule"):
        if exported is not None:
            _refuse_others(context, "--export", exported, {"exported", "as_json"})
            answer = export_epsilon(exported)
        elif ledger is not None:
            _refuse_others(context, "--ledger", ledger, {"ledger", "accountant", "delta", "kind", "as_json"})
            answer = ledger_epsilon(ledger, accountant=accountant, delta=delta, kind=kind)
        else:
            _check_given(flags, "q_u", "noise_multiplier", "rounds")
            answer = parameter_epsilon(
                _mechanism(flags),
                rounds=flags["rounds"],
                delta=delta,
                accountant=accountant,
                kind=kind,
                method=method,
                sensitive_fraction=sensitive_fraction,
                max_order=max_order,
            )
    emit(answer, as_json)


@app.command()
def calibrate(
    target_epsilon: Annotated[float, typer.Option(help="The budget.")],
    accountant: Accountant = "user-entity",
    q_u: UserProb = None,
    q_e: EntityProb = 1.0,
    q_s: ExtendedProb = 1.0,
    rounds: Rounds = None,
    delta: Delta = 1e-5,
    max_holders: MaxHolders = None,
    entity_clip: EntityClip = 2.0,
    extended_clip: ExtendedClip = None,
    rule: Rule = "any",
    entity_draw: Draw = "global",
    kind: Kind = "both",
    holder_bound: HolderBound = "truncate",
    max_users: MaxUsers = None,
    as_json: Json = False,
) -> None:
    """The smallest noise multiplier whose epsilon is at most the target."""
    from uedp_ray.accountant import calibrated

    flags = {**locals(), "noise_multiplier": 1.0}
    with _as_flags(**_PROBABILITIES, selection_rule="--rule"):
        _check_given(flags, "q_u", "rounds")
        answer = calibrated(
            _mechanism(flags),
            target_epsilon=target_epsilon,
            rounds=flags["rounds"],
            delta=delta,
            accountant=accountant,
            kind=kind,
        )
    emit(answer, as_json)


@app.command()
def prepare(
    source: Annotated[str, typer.Argument(help="File or folder of text ('' for --format synthetic).")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the prepared corpus.")],
    format: SourceFormat,  # noqa: A002
    detector: Annotated[
        list[str], typer.Option(help="annotated, regex, spacy:MODEL, list:FILE. Repeatable.")
    ] = _ANNOTATED,
    categories: Annotated[
        list[str], typer.Option(help="Protected categories, comma-separated; all if left out. Repeatable.")
    ] = _NONE,
    max_words: Annotated[int, typer.Option(help="Longer sentences and rows become consecutive pieces.")] = 128,
    num_users: Annotated[int, typer.Option(help="synthetic: users to generate.")] = 200,
    seed: Annotated[int, typer.Option(help="synthetic, ag-news: seed.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes that detect entities (Ray tasks above 1).")] = 1,
    as_json: Json = False,
) -> None:
    """Text to a user corpus on disk, with its statistics (which are private)."""
    from uedp_ray.corpus.prepare import prepare as run
    from uedp_ray.training.checks import check_source, check_workers

    tree = {
        "path": source,
        "format": format,
        "detector": detector,
        "categories": [name.strip() for part in categories for name in part.split(",") if name.strip()],
        "max_words": max_words,
        "num_users": num_users,
        "seed": seed,
    }
    with _as_flags(path="SOURCE"), progress_line() as show:
        settings = from_dict(SourceConfig, tree)
        check_source("", settings)
        check_workers("workers", workers, here=True)
        statistics = run(
            settings,
            check_target(out),
            workers=workers,
            progress=lambda stage, done, total: show(
                done, total, f"preparing: {stage} {done}{f'/{total}' if total else ''}"
            ),
        )
    emit(statistics, as_json)


@app.command()
def pretrain(
    config: Annotated[Path, typer.Argument(help="Run file (YAML).")],
    settings: Set = _NONE,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Ordinary training on public text: the warm start of a private run."""
    from uedp_ray.training.pretrain import pretrain as run

    loaded = load_config(config, settings)
    with progress_line() as show:
        answer = run(loaded, check_target(out or Path("runs") / f"{loaded.name}-pretrained"), progress=on_step(show))
    emit(answer, as_json)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="Run file (YAML).")],
    settings: Set = _NONE,
    workers: Workers = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """One model: text in; checkpoint, ledger and privacy statement out."""
    from uedp_ray.training.host import train as run

    loaded = load_config(config, settings)
    with progress_line() as show:
        answer = run(
            loaded,
            _target(out or Path("runs") / loaded.name),
            workers=workers,
            resume=resume,
            say=say,
            progress=on_round(show),
        )
    emit(answer, as_json)
    refuse_short([answer])


@app.command()
def compare(
    config: Annotated[Path, typer.Argument(help="Comparison file (YAML): base and variants.")],
    settings: Set = _NONE,
    workers: Workers = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Untrained, public-only, private and non-private models side by side."""
    from uedp_ray.training.compare import Comparison
    from uedp_ray.training.compare import compare as run

    loaded = Comparison.load(config, settings)
    with progress_line() as show:
        answer = run(
            loaded,
            check_target(out or Path("runs") / loaded.base.name),
            workers=workers,
            resume=resume,
            say=say,
            progress=on_round(show),
            pretrain_progress=on_step(show),
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
    settings: Set = _NONE,
    address: Annotated[str | None, typer.Option(help="Ray cluster; default: RAY_ADDRESS, or this machine.")] = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """The best model under a privacy budget, and what finding it cost."""
    from uedp_ray.sweep.config import load_sweep_config
    from uedp_ray.sweep.host import sweep as run

    if trials is not None and trials < 1:
        raise InputError("--trials", trials, "must be 1 or more")
    loaded = load_sweep_config(config, [*settings, *([f"search.trials={trials}"] if trials else [])])
    with sweep_screen() as (show, show_status):
        answer = run(
            loaded,
            _target(out or Path("runs") / loaded.base.name),
            address=address,
            resume=resume,
            say=say,
            show=show_status,
            progress=on_round(show),
            pretrain_progress=on_step(show),
        )
    if as_json:
        emit(answer, as_json)
    else:
        print_sweep(answer)
    refuse_short([*([answer["best"]] if answer["best"] else []), *answer["references"]])


@app.command()
def report(
    sweeps: Annotated[list[Path], typer.Argument(help="Sweep directories.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="HTML file; default: report.html of the first sweep.")
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="For others: without paths, error messages and the noiseless reference.")
    ] = False,
    as_json: Json = False,
) -> None:
    """One self-contained HTML page on one or several sweeps, and its figures."""
    from uedp_ray.analysis.report import report as run

    emit({"html": str(run(sweeps, out, publish=publish))}, as_json)


@app.command()
def export(
    source: Annotated[str, typer.Argument(metavar="SWEEP|RUN", help="A sweep or run directory, or its URL.")],
    out: Annotated[Path, typer.Option("--out", help="New folder, to be handed on.")],
    as_json: Json = False,
) -> None:
    """The folder to hand on: model, card, ledger, and a privacy statement with the total first."""
    from uedp_ray.sweep.export import export as run

    emit(run(source, _target(out)), as_json)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run directory or its model folder.")],
    text: Annotated[list[str], typer.Option(help="Text to continue. Repeatable.")],
    top: Annotated[int, typer.Option(help="Next words to show.")] = 5,
    as_json: Json = False,
) -> None:
    """The most likely next words after a text."""
    from uedp_ray.training.predict import predict as predict_next

    emit({"predictions": predict_next(run, text, top=top, say=say)}, as_json)


def _target(out: Path) -> Path:
    """``out``, checked if it is not a URL."""
    from uedp_ray.training.storage import as_url

    return check_name(out) if as_url(out) else check_target(out)


def _check_given(flags: dict[str, Any], *names: str) -> None:
    """Raises: InputError for an option that was left out, of those for which no value is on the safe side."""
    for name in names:
        if flags[name] is None:
            raise InputError(f"--{name.replace('_', '-')}", None, "is missing: no value is safe to assume, name it")


def _mechanism(flags: dict[str, Any]) -> Any:
    from uedp_ray.privacy.mechanism import RoundMechanism

    extended = flags["extended_clip"]
    return RoundMechanism(
        noise_multiplier=flags["noise_multiplier"],
        user_sampling_prob=flags["q_u"],
        entity_sampling_prob=flags["q_e"],
        extended_sampling_prob=flags["q_s"],
        selection_rule=flags["rule"],
        entity_draw=flags["entity_draw"].replace("-", "_"),
        max_holders=flags["max_holders"],
        entity_clip=flags["entity_clip"],
        extended_clip=flags["entity_clip"] if extended is None else extended,
        holder_bound=flags["holder_bound"],
        max_users=flags["max_users"],
    )
