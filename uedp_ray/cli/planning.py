"""``uedp-ray methods``, ``init``, ``plan``, ``vectors``. Nothing that they say, write or plan is read off private text."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from uedp_ray.cli.base import Json, app, as_flags
from uedp_ray.cli.commands import NONE, Set
from uedp_ray.config import RunConfig, dump_config, load_config, read_yaml
from uedp_ray.config.limits import choice
from uedp_ray.console import Lines, emit, print_table
from uedp_ray.errors import InputError, one_line
from uedp_ray.privacy.statement import show_delta, show_epsilon
from uedp_ray.storage.files import replacing
from uedp_ray.target import check_name

if TYPE_CHECKING:
    from uedp_ray.search.comparison import Comparison
    from uedp_ray.search.sweep_config import SweepConfig


@app.command()
def methods(as_json: Json = False) -> None:
    """The methods to compare: what each protects, against whom, and whether that is a guarantee."""
    from uedp_ray.methods import METHODS

    if as_json:
        about = ("unit", "trust", "sound", "published", "summary")
        rows = [{"method": name, **{key: getattr(each, key) for key in about}} for name, each in METHODS.items()]
        emit({"methods": rows}, as_json)
        return
    table = Table(
        "method", "unit", "trust", "promise", "what it is", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for name, each in METHODS.items():
        promise = "as published: not a guarantee" if each.published else "sound" if each.sound else "no guarantee"
        table.add_row(name, each.unit, each.trust, promise, each.summary)
    print_table(table)
    typer.echo(
        "central: whoever trains sees the text; local: what leaves a user has its noise. Settings in your own file may "
        "take a promise back: what a run guarantees is in its result.json."
    )


@app.command()
def init(
    text: Annotated[str, typer.Option(help="Private text with users: JSONL, Parquet or a prepared folder.")] = "",
    evaluation: Annotated[str, typer.Option(help="Text of users outside the protected set, or public text.")] = "",
    users: Annotated[int | None, typer.Option(help="A public upper bound on the number of users.")] = None,
    public: Annotated[str, typer.Option(help="Public text: vocabulary and warm start.")] = "",
    model: Annotated[str, typer.Option(help="A pretrained model, in place of public text: folder or hub name.")] = "",
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 8.0,
    proxy: Annotated[
        list[str], typer.Option(help="sweep: public text of another source, to search settings on. Repeatable.")
    ] = NONE,
    sentences_per_user: Annotated[int, typer.Option(help="About how many, for times and to cut proxies alike.")] = 15,
    words_per_sentence: Annotated[int, typer.Option(help="About how many, for times and to cut proxies alike.")] = 15,
    kind: Annotated[str, typer.Option(help="train, sweep or compare: which command the file is for.")] = "train",
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: KIND.yaml, as run.yaml.")] = None,
    as_json: Json = False,
) -> None:
    """A commented file for one's own text, to edit. What is left out is asked for on a terminal."""
    from uedp_ray.config.starter import Answers, FileKind, starter

    choice("--kind", kind, FileKind)
    target = _new_file(out or Path("run.yaml" if kind == "train" else f"{kind}.yaml"), "--out")
    with as_flags(**{"model.path": "--model"}):
        answers = Answers(
            text=_file("text", text, "Private text (JSONL, Parquet or a prepared folder)"),
            evaluation=_file("evaluation", evaluation, "Text of other users to measure on"),
            users=_ask("users", "At most how many users", int) if users is None else users,
            public=public if model else _file("public", public, "Public text for vocabulary and warm start"),
            model=model,
            max_length=_max_length(model, Answers.max_length),
            epsilon=epsilon,
            proxies=tuple(proxy or (_asked_proxies() if kind == "sweep" else ())),
            sentences_per_user=sentences_per_user,
            words_per_sentence=words_per_sentence,
        )
        content = starter(kind, answers)  # type: ignore[arg-type]
    named = {"text": answers.text, "evaluation": answers.evaluation, "public": answers.public}
    for flag, path in (*named.items(), *(("proxy", each) for each in answers.proxies)):
        if path and not Path(path).exists():
            Lines().say(f"caution: --{flag} = {one_line(path, 300)}: there is no such file here")
    if (Path(answers.text) / "corpus.json").exists() and (found := _no_bound(answers.text, answers.users)):
        Lines().say(f"caution: --text = {one_line(answers.text, 300)}: holds {found}")
    with replacing(target) as new:
        new.write_text(content, encoding="utf-8")
        with as_flags(**{"model.path": "--model"}, path="--proxy"):
            loaded = _load(new, [])  # a file that its command would refuse is not written
            _check_lengths(loaded, answers.proxies)
        _new_file(target, "--out")  # somebody may have made one while questions were asked
    emit({"path": str(target)}, as_json)
    if not as_json:
        typer.echo(f"next: {'uedp-ray compare' if kind == 'compare' else 'edit it, then uedp-ray plan'} {target}")


def _no_bound(prepared: str, users: int) -> str:
    """What is wrong with a number of users: a prepared corpus has more, or so few that its text is likely not by users."""
    from uedp_ray.corpus.store import open_corpus

    with as_flags(path="--text"):
        found = open_corpus(prepared).num_users
    if found > users:
        return f"more than --users = {users:,} users (private: read off the text), and would be refused: declare more"
    if 10 * found < users:
        remedy = "one text file becomes one user, JSONL names one in every line"
        return f"less than a tenth of --users = {users:,} users (private: read off the text); {remedy}"
    return ""


def _max_length(model: str, usual: int) -> int:
    """The usual length, or all that a model in a folder here reads. Raises: InputError for a folder without a model."""
    if not os.path.isdir(model):
        return usual
    from uedp_ray.models.pretrained import settings_of
    from uedp_ray.models.saved import longest_by

    return min(usual, longest_by(settings_of(model)) or usual)


def _check_lengths(sweep: Any, proxies: Sequence[str]) -> None:
    """Counts the sentences of public texts to search on. Raises: InputError for one that is here and too short."""
    if not proxies:
        return
    from uedp_ray.corpus.readers.pseudo_users import lengths
    from uedp_ray.search.proxies import searched_bases

    for path, base in zip(proxies, searched_bases(sweep).values(), strict=True):
        cut = base.corpus.evaluation  # of the users after those of the source, as ``starter`` writes it
        assert cut is not None
        users, each = cut.skip_users + cut.num_users, cut.sentences_per_user
        if not Path(path).exists():
            continue
        found, needs = lengths(cut)
        if found < needs:
            short = f"has {found:,} sentences of {cut.min_words} to {cut.max_words} words, short ones joined"
            needed = f"{cut.skip_users:,} users of {each}, and {cut.num_users:,} to evaluate on, take {needs:,}"
            fewer = f", or --sentences-per-user {found // users}" * (found >= users)
            raise InputError("--proxy", path, f"{short}; {needed}: name more text{fewer}")


def _new_file(path: Path, flag: str) -> Path:
    """Returns a path at which a file can be created. Raises: InputError."""
    check_name(path, field=flag)
    if path.exists() or path.is_symlink():
        raise InputError(flag, str(path), "exists: name a new file")
    if not path.parent.is_dir():
        raise InputError(flag, str(path), f"{path.parent} is not a folder: create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(flag, str(path), f"{path.parent} cannot be written to: name another folder")
    return path


def _file(flag: str, path: str, question: str) -> str:
    """Returns the file that a flag names, or asks for it. Raises: InputError if it can be none, before more is asked."""
    from uedp_ray.config.starter import check_format

    path = path or _ask(flag, question)
    check_format(flag, path)
    return path


def _ask(flag: str, question: str, of: type = str) -> Any:
    if not sys.stdin.isatty():
        raise InputError(flag, None, f"give it ({question[:1].lower()}{question[1:]})")
    return typer.prompt(question, type=of, err=True)


def _asked_proxies() -> list[str]:
    """Asks for public texts to search on, on a terminal; none is an answer."""
    found: list[str] = []
    while sys.stdin.isatty():
        question = "Public text of another source, to search settings on (none: search on the private text)"
        named = typer.prompt(
            "Another one (none: no more)" if found else question, default="", err=True, show_default=False
        )
        if not named:
            break
        found.append(named)
    return found


def _load(path: Path, settings: list[str]) -> RunConfig | SweepConfig | Comparison:
    """Reads a file of whichever kind it is, and looks at its pretrained model, if that is a folder here."""
    file: RunConfig | SweepConfig | Comparison
    tree = read_yaml(path)
    if "variants" in tree:
        from uedp_ray.search.comparison import Comparison

        file = Comparison.load(path, settings)
    elif "base" in tree:
        from uedp_ray.search.sweep_config import load_sweep_config

        file = load_sweep_config(path, settings)
    else:
        file = load_config(path, settings)
    run = file if isinstance(file, RunConfig) else file.base
    if run.model.architecture == "pretrained":
        from uedp_ray.training.checks import check_model_folder

        check_model_folder(run)
    return file


@app.command()
def plan(
    config: Annotated[Path, typer.Argument(help="Run or sweep file (YAML).")],
    settings: Set = NONE,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials of a search; default: the sweep's, 32 for a run.")
    ] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(help="Speed that a finished run printed, for the expected time.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the file again, with the way to draw that is marked as chosen.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What a budget buys: ε and noise of each run by rule, and ways to draw the rounds. No text is read."""
    from uedp_ray.search.sweep_config import SweepConfig, dump_sweep_config

    if tokens_per_second is not None and not 1e-3 <= tokens_per_second < math.inf:
        raise InputError("--tokens-per-second", tokens_per_second, "must be 0.001 or more")
    if write is not None:
        _new_file(write, "--write")
    file = _load(config, settings)
    if not isinstance(file, RunConfig | SweepConfig):
        raise InputError("config", str(config), "is a comparison file: its variants are many; name a run or sweep file")
    from uedp_ray.search.planner import chosen
    from uedp_ray.search.planner import plan as run

    with as_flags():
        answer = run(file, trials=trials, tokens_per_second=tokens_per_second, reporter=Lines())
    if write is not None:
        planned = chosen(file, answer)
        with replacing(write) as new:
            if isinstance(planned, SweepConfig):
                dump_sweep_config(planned, new)
            else:
                dump_config(planned, new)
            _new_file(write, "--write")
        answer["written"] = str(write)
    if as_json:
        emit(answer, as_json)
    else:
        _print(answer, file if isinstance(file, RunConfig) else file.base)


@app.command()
def vectors(
    config: Annotated[Path, typer.Argument(help="Run, sweep or comparison file (YAML) that names public text.")],
    out: Annotated[Path, typer.Option("--out", help="File to write, for corpus.transform.vectors.")],
    settings: Set = NONE,
    dimensions: Annotated[int, typer.Option(min=1, help="Coordinates of a vector.")] = 16,
    as_json: Json = False,
) -> None:
    """Word vectors of a file's public text, where none that others published will do. No private text is read."""
    from uedp_ray.corpus.vectors import vectors_of, write_vectors
    from uedp_ray.search.layout import check_apart
    from uedp_ray.training.paths import for_use
    from uedp_ray.training.run_vocabulary import public_sentences, public_text

    target = _new_file(out, "--out")
    check_apart(target)
    file = _load(config, settings)
    run = for_use(file if isinstance(file, RunConfig) else file.base)
    field, sources = public_text(run)
    if not sources:
        raise InputError(field, None, "name public text, of which vectors are to be made")
    with as_flags():
        made = vectors_of(public_sentences(sources, run.pretrain.max_words, field=field), dimensions=dimensions)
    with replacing(target) as new:
        write_vectors(made, new)
        _new_file(target, "--out")
    emit({"path": str(target), "words": len(made.words), "dimensions": dimensions}, as_json)


def _print(answer: dict[str, Any], run: RunConfig) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)
    budget = f"ε = {answer['target_epsilon']:g} ({answer['unit']}, δ = {show_delta(answer['delta'])})"
    console.print(_rules(answer, f"What a budget of {budget} leaves each run"))
    console.print(_mechanisms(answer, "How the text may be drawn, at the whole budget"))
    for line in (*_bounding(answer), *(f"Caution: {caution}." for caution in answer["warnings"])):
        typer.echo(line)
    typer.echo(_time(answer, run))
    if "written" in answer:
        choice = answer["choice"]
        draws = f"user_sampling_prob {choice['user_sampling_prob']:g}, {choice['rounds']} rounds"
        typer.echo(f"Written, as chosen (*: {draws}), without comments: {answer['written']}")


_MOST_MADE_UP = 1000
"""Users whose text shows the speed of rounds: it takes seconds to make up."""


def _time(answer: dict[str, Any], run: RunConfig) -> str:
    if answer["expected_seconds"] is None:
        told = "give --tokens-per-second, which train prints at its end, and corpus.declared_num_tokens, which counts words"
        if run.task.labels:
            shown = "A few rounds on public text that has the same labels show the speed"
            return f"Expected time: {told}. {shown} (those on your own would have to be paid for)."
        (own,) = (row for row in answer["mechanisms"] if row["asked"])
        cohort, declared = own["expected_cohort"], run.corpus.declared_num_users or 1
        users = min(declared, _MOST_MADE_UP, max(math.ceil(2 * cohort), 50))
        settings = {
            "corpus.source": f"{{format: synthetic, num_users: {users}}}",
            "privacy.user_sampling_prob": f"{min(1.0, cohort / users):.3g}",
            "privacy.noise_multiplier": "1",
            "privacy.target_epsilon": "null",
            "training.passes": "null",
            "training.num_rounds": "9",
        } | ({"bounds.mode": "enforced"} if run.bounds.mode == "declared" else {})
        flags = " ".join(f"--set {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
        shown = "Rounds on made-up text show the speed (those on your own would have to be paid for)"
        return (
            f"Expected time: {told}. {shown}: train the file (of a sweep: its base, in a file of its own) with {flags}"
        )
    runs = answer["runs"]
    of_runs = f", {runs} runs one after another, each of the file's own passes" if runs > 1 else ""
    beside = "start, public training and evaluations not counted"
    seconds = min(answer["expected_seconds"], timedelta.max.total_seconds() - 1.0)
    words = f"for {run.corpus.declared_num_tokens:,} words (corpus.declared_num_tokens)"
    return f"Expected time: {timedelta(seconds=round(seconds))}{of_runs}, {words}; {beside}."


_OWN = " (this file)"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("rule", "of") else "right", no_wrap=name != "of")
    return table


def _rules(answer: dict[str, Any], title: str) -> Table:
    table = _table(title, "rule", "ε of a run", "noise z", "times one run's", "of")
    for row in answer["rules"]:
        name = f"{row['rule']}{_OWN if row['asked'] else ''}"
        if row["run_epsilon"] is None:
            table.add_row(name, "-", "-", "-", f"{row['how']}: {row['why']}")
        else:
            noise = (f"{row['noise_multiplier']:.3f}", f"{row['noise_ratio']:.2f}")
            table.add_row(name, show_epsilon(row["run_epsilon"]), *noise, row["how"])
    return table


def _mechanisms(answer: dict[str, Any], title: str) -> Table:
    timed = any(row["expected_seconds"] is not None for row in answer["mechanisms"])
    table = _table(
        title, "passes", "q_u", "rounds", "noise z", "noise of the average, 1e-4", *(["time"] if timed else [])
    )
    last = None
    for row in answer["mechanisms"]:
        if last not in (None, row["times"]):
            table.add_section()
        last = row["times"]
        mark = _OWN if row["asked"] else ""
        mark += " *" if row == answer["choice"] else ""
        time = [f"{row['expected_seconds']:.0f} s"] if timed else []
        noise = (f"{row['noise_multiplier']:.3f}", f"{1e4 * row['noise_of_average']:.2f}")
        table.add_row(f"{row['passes']:g}", f"{row['user_sampling_prob']:g}", f"{row['rounds']}{mark}", *noise, *time)
    return table


_REMOVED = {"entity": "an entity", "extended": "a sentence without entities"}


def _bounding(answer: dict[str, Any]) -> list[str]:
    binds, lines = answer["binds"], []
    if binds["epsilon"]:
        shown = ", ".join(f"{show_epsilon(value)} for {_REMOVED[kind]}" for kind, value in binds["epsilon"].items())
        lines.append(f"ε by what is removed: {shown}.")
        noise = binds["noise_multiplier"]
        less = ", ".join(f"{name} {noise[name]:.3f}" for name in ("q_e", "q_s", "both"))
        lines.append(f"Noise multiplier with lower draws ({binds['lowered_by']:g} times): {less}.")
    if answer["bounds"]:
        shown = "; ".join(f"{row['protects']}: {row['noise_multiplier']:.3f}" for row in answer["bounds"])
        lines.append(f"Noise multiplier by what is protected: {shown}.")
    return lines
