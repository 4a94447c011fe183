"""``uedp-ray plan``. No text is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from uedp_ray.cli.base import Json, app
from uedp_ray.cli.commands import NONE, Set
from uedp_ray.config import dump_config, load_config, read_yaml
from uedp_ray.console import emit
from uedp_ray.errors import InputError
from uedp_ray.privacy.statement import show_delta, show_epsilon


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
    from uedp_ray.search.planner import chosen
    from uedp_ray.search.planner import plan as run
    from uedp_ray.search.sweep_config import SweepConfig, dump_sweep_config, load_sweep_config

    if tokens_per_second is not None and not tokens_per_second > 0:
        raise InputError("--tokens-per-second", tokens_per_second, "must be above 0")
    if write is not None and write.exists():
        raise InputError("--write", str(write), "exists: name a new file")
    load: Any = load_sweep_config if "base" in (tree := read_yaml(config)) and "variants" not in tree else load_config
    file = load(config, settings)
    answer = run(file, trials=trials, tokens_per_second=tokens_per_second)
    if write is not None:
        planned = chosen(file, answer["choice"])
        if isinstance(planned, SweepConfig):
            dump_sweep_config(planned, write)
        else:
            dump_config(planned, write)
        answer["written"] = str(write)
    if as_json:
        emit(answer, as_json)
    else:
        _print(answer)


def _print(answer: dict[str, Any]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)
    budget = f"ε = {answer['target_epsilon']:g} ({answer['unit']}, δ = {show_delta(answer['delta'])})"
    console.print(_rules(answer, f"What a budget of {budget} leaves each run"))
    console.print(_mechanisms(answer, "How the text may be drawn, at the whole budget"))
    for line in (*_bounding(answer), *(f"Caution: {caution}." for caution in answer["warnings"])):
        typer.echo(line)
    if "written" in answer:
        typer.echo(f"Written, as chosen (*): {answer['written']}")


_OWN = " (this file)"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("rule", "of") else "right", no_wrap=True)
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
        title, "passes", "q_u", "rounds", "noise multiplier", "noise of the average, 1e-4", *(["time"] if timed else [])
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
