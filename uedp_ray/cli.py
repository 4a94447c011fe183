"""``uedp-ray``: parse, call, print. Every command takes ``--json``: one document on stdout, all else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from uedp_ray.config import SourceConfig, from_dict, load_config
from uedp_ray.errors import InputError
from uedp_ray.jsontext import plain, to_json

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Language models with user-entity differential privacy: train, account, sweep.",
)
_err = Console(stderr=True)
_UsageError: Any = typer.BadParameter.__bases__[0]  # Typer exports this subclass only

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Set = Annotated[list[str], typer.Option("--set", help="Override a setting: a.b=value. Repeatable.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.")]
Show = Callable[[int, int | None, str], None]
"""show(done, total, text)"""
_NONE: list[str] = []
_ANNOTATED = ["annotated"]
Workers = Annotated[int | None, typer.Option("--workers", min=0, help="Ray Train workers; 0 runs without Ray.")]
_FORMATS = "conll, ag-news, jsonl, parquet, speeches, text, synthetic, prepared."
SourceFormat = Annotated[str, typer.Option("--format", help=_FORMATS)]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what --out holds.")]


def main() -> None:
    """The console script: exit code 0 on success, 2 on bad input, 1 on failure, 130 on Ctrl-C."""
    try:
        if app(args=sys.argv[1:] or ["--help"], standalone_mode=False) == 130:  # so Typer answers Ctrl-C
            raise KeyboardInterrupt
    except (InputError, _UsageError) as error:
        message = error if isinstance(error, InputError) else error.format_message().replace("\n", " ")
        _err.print(f"error: {message}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        message = "interrupted: what was released stays charged; --resume goes on from the last checkpoint"
        _err.print(message, style="red", soft_wrap=True)
        sys.exit(130)
    except (OSError, RuntimeError) as error:
        _err.print(f"failed: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


Accountant = Annotated[str, typer.Option(help="user-entity, user, entity or published.")]
UserProb = Annotated[float, typer.Option("--q-u", help="User sampling probability.")]
EntityProb = Annotated[float, typer.Option("--q-e", help="Entity sampling probability.")]
ExtendedProb = Annotated[float, typer.Option("--q-s", help="Sampling probability of sentences without an entity.")]
Rounds = Annotated[int, typer.Option(help="Noised releases T.")]
Delta = Annotated[float, typer.Option(help="delta of (epsilon, delta).")]
MaxHolders = Annotated[int, typer.Option(help="K: users that hold one entity.")]
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
MaxUsers = Annotated[int | None, typer.Option(help="Declared number of users, for reweight.")]


@app.command()
def epsilon(
    accountant: Accountant = "user-entity",
    q_u: UserProb = 0.05,
    q_e: EntityProb = 0.5,
    q_s: ExtendedProb = 1.0,
    noise_multiplier: Annotated[float, typer.Option(help="Noise std in the sum, in units of beta.")] = 2.0,
    rounds: Rounds = 50,
    delta: Delta = 1e-5,
    max_holders: MaxHolders = 5,
    entity_clip: EntityClip = 0.2,
    extended_clip: ExtendedClip = None,
    rule: Rule = "all",
    entity_draw: Draw = "global",
    kind: Kind = "both",
    holder_bound: HolderBound = "truncate",
    max_users: MaxUsers = None,
    method: Annotated[str, typer.Option(help="published: uedp, uedp_fe or user_dp.")] = "uedp",
    sensitive_fraction: Annotated[float, typer.Option(help="published: sensitive / all sentences.")] = 1.0,
    max_order: Annotated[int, typer.Option(help="published: largest moment order.")] = 32,
    ledger: Annotated[Path | None, typer.Option(help="Account what a ledger file records instead.")] = None,
    as_json: Json = False,
) -> None:
    """The epsilon of a parameter set, or of a ledger file. No data is touched."""
    from uedp_ray.accountant import ledger_epsilon, parameter_epsilon

    if ledger is not None:
        answer = ledger_epsilon(ledger, accountant=accountant, delta=delta, kind=kind)
    else:
        answer = parameter_epsilon(
            _mechanism(locals()),
            rounds=rounds,
            delta=delta,
            accountant=accountant,
            kind=kind,
            method=method,
            sensitive_fraction=sensitive_fraction,
            max_order=max_order,
        )
    _emit(answer, as_json)


@app.command()
def calibrate(
    target_epsilon: Annotated[float, typer.Option(help="The budget.")],
    accountant: Accountant = "user-entity",
    q_u: UserProb = 0.05,
    q_e: EntityProb = 0.5,
    q_s: ExtendedProb = 1.0,
    rounds: Rounds = 50,
    delta: Delta = 1e-5,
    max_holders: MaxHolders = 5,
    entity_clip: EntityClip = 0.2,
    extended_clip: ExtendedClip = None,
    rule: Rule = "all",
    entity_draw: Draw = "global",
    kind: Kind = "both",
    holder_bound: HolderBound = "truncate",
    max_users: MaxUsers = None,
    as_json: Json = False,
) -> None:
    """The smallest noise multiplier whose epsilon is at most the target."""
    from uedp_ray.accountant import calibrated

    mechanism = _mechanism({**locals(), "noise_multiplier": 1.0})
    answer = calibrated(
        mechanism, target_epsilon=target_epsilon, rounds=rounds, delta=delta, accountant=accountant, kind=kind
    )
    _emit(answer, as_json)


@app.command()
def prepare(
    source: Annotated[str, typer.Argument(help="File or folder of text ('' for --format synthetic).")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the prepared corpus.")],
    format: SourceFormat,  # noqa: A002
    detector: Annotated[
        list[str], typer.Option(help="annotated, regex, spacy:MODEL, list:FILE. Repeatable.")
    ] = _ANNOTATED,
    categories: Annotated[str, typer.Option(help="Protected categories, comma-separated; all if empty.")] = "",
    num_users: Annotated[int, typer.Option(help="synthetic: users to generate.")] = 200,
    seed: Annotated[int, typer.Option(help="synthetic, ag-news: seed.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes that detect entities (Ray tasks above 1).")] = 1,
    as_json: Json = False,
) -> None:
    """Text to a user corpus on disk, with its statistics (which are private)."""
    from uedp_ray.corpus.prepare import prepare as run

    settings = from_dict(
        SourceConfig,
        {
            "path": source,
            "format": format,
            "detector": detector,
            "categories": [name.strip() for name in categories.split(",") if name.strip()],
            "num_users": num_users,
            "seed": seed,
        },
    )
    with _progress_line() as show:
        statistics = run(
            settings,
            out,
            workers=workers,
            progress=lambda stage, done, total: show(
                done, total, f"preparing: {stage} {done}{f'/{total}' if total else ''}"
            ),
        )
    _emit(statistics, as_json)


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
    with _progress_line() as show:
        answer = run(loaded, out or Path("runs") / f"{loaded.name}-pretrained", progress=_pretraining(show))
    _emit(answer, as_json)


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
    with _progress_line() as show:
        answer = run(
            loaded,
            out or Path("runs") / loaded.name,
            workers=workers,
            resume=resume,
            say=_say,
            progress=_rounds(show),
        )
    _emit(answer, as_json)


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
    with _progress_line() as show:
        answer = run(
            loaded,
            out or Path("runs") / loaded.base.name,
            workers=workers,
            resume=resume,
            say=_say,
            progress=_rounds(show),
            pretrain_progress=_pretraining(show),
        )
    if as_json:
        _emit(answer, as_json)
    else:
        _print_comparison(answer)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run directory or its model folder.")],
    text: Annotated[list[str], typer.Option(help="Text to continue. Repeatable.")],
    top: Annotated[int, typer.Option(help="Next words to show.")] = 5,
    as_json: Json = False,
) -> None:
    """The most likely next words after a text."""
    from uedp_ray.training.predict import predict as predict_next

    _emit({"predictions": predict_next(run, text, top=top)}, as_json)


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


def _say(message: str) -> None:
    _err.print(message, style="dim")


@contextmanager
def _progress_line() -> Iterator[Show]:
    """Yields show(done, total, text): a live bar on a terminal, elsewhere a line at every fifth of the way."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=_err, disable=not _err.is_terminal, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        printed = [(0, "")]

        def show(done: int, total: int | None, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text)
            fifth = (done * 5 // total if total else 0, text.split()[0])
            if bar.disable and fifth != printed[0] and fifth[0]:
                printed[0] = fifth
                _err.print(text, markup=False, highlight=False)

        yield show


def _rounds(show: Show) -> Callable[[dict[str, Any]], None]:
    """Shows round, rounds a second, epsilon so far, last perplexity and time left."""

    from uedp_ray.privacy.statement import show_epsilon

    def show_round(row: dict[str, Any]) -> None:
        spent = row["epsilon"]
        parts = [
            f"round {row['round']}/{row['num_rounds']}",
            f"{row['rounds_per_second']:.2f} rounds/s",
            "no guarantee" if spent is None else f"ε {show_epsilon(spent)}",
            "" if row["perplexity"] is None else f"perplexity {row['perplexity']:.1f}",
            f"{row['seconds_left']:.0f} s left",
        ]
        show(row["round"], row["num_rounds"], "  ".join(part for part in parts if part))

    return show_round


def _pretraining(show: Show) -> Callable[[int, int, float], None]:
    return lambda step, steps, loss: show(step, steps, f"pre-training step {step}/{steps}  loss {loss:.3f}")


def _emit(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(to_json(answer))
        return
    for key, value in plain(answer).items():
        value = "no guarantee" if key == "epsilon" and value is None else value
        typer.echo(f"{key}: {json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value}")


def _print_comparison(answer: dict[str, Any]) -> None:
    from uedp_ray.privacy.statement import show_epsilon

    table = Table(title="Held-out perplexity, and ε paid for it")
    for name in ("model", "perplexity", "ε user-entity", "ε user", "ε entity"):
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=name == "model")
    for row in answer["rows"]:
        epsilon_by = row["epsilon"]
        table.add_row(
            row["name"],
            f"{row['perplexity']:.1f}",
            *(show_epsilon(epsilon_by[unit], "∞") for unit in ("user-entity", "user", "entity")),
        )
    Console().print(table)
    typer.echo(
        f"ε (∞: no guarantee) at δ = {answer['rows'][-1]['delta']:g}: sound accountant of each unit, "
        "zero-out neighbours, Poisson sampling; "
        "each row is one run, not a choice among runs.\n"
        f"Run directories: {answer['out']}"
    )
