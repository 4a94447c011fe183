"""The output of commands: lines on standard error, answers on standard output."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from uedp_ray.errors import one_line
from uedp_ray.jsontext import plain, to_json
from uedp_ray.privacy.guarantee import hides_anybody
from uedp_ray.privacy.statement import NO_GUARANTEE, OF_ONE_RUN, narrowed, show_delta, show_epsilon
from uedp_ray.reporting import Reporter
from uedp_ray.search.told import (
    INTERVALS,
    RETENTION,
    about_scale,
    about_total,
    about_units,
    as_published,
    named,
    promise_of,
    retained,
    shortened,
    tells_text,
    told,
)
from uedp_ray.tasks.metrics import metric_in


class _Spared:
    """A stream whose failures are ignored."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._kept_from():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._kept_from():
            self._stream.flush()

    @contextmanager
    def _kept_from(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:
            pass  # a slow reader
        except OSError:  # buffered data would fail again when the process ends, and change its exit code
            with suppress(OSError), open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), self._stream.fileno())


class _Onlookers(Console):
    """Standard error. If its reader leaves or its disk is full, that must not end a run or lose its answer."""

    @property
    def file(self) -> IO[str]:
        return cast(IO[str], _Spared(super().file))

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream


err = _Onlookers(stderr=True)


class _Closed(io.TextIOBase):
    """Stands in for a closed standard output: an answer that goes nowhere must not look like one that was given."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "the answer cannot be written: standard output is closed")


def keep_descriptors() -> None:
    """Keeps the number of a closed standard stream from being reused: libraries would print into one of our files."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def drop_unwritten() -> None:
    """Lets go of what standard output cannot take: it would fail again as the process ends, and change its exit code."""
    _Spared(sys.stdout).flush()


def write_any_text() -> None:
    """Escapes what a standard stream cannot encode, such as ε in ASCII, so that no answer fails because of it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Lines(Reporter):
    """Lines on standard error; a caution that several steps of a command give is said once."""

    def __init__(self) -> None:
        self._cautions: set[str] = set()

    def say(self, line: str) -> None:
        if line.startswith("caution: "):
            if line in self._cautions:
                return
            self._cautions.add(line)
        err.print(line, style="dim", markup=False, soft_wrap=True)


STATES = ("done", "running", "stopped", "failed", "refused")

_LONGEST_LINE = 1 << 20


def emit(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(to_json(answer))
        return
    for key, value in plain(answer).items():
        value = "no guarantee" if key == "epsilon" and value is None else value
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
        typer.echo(one_line(f"{key}: {shown}", _LONGEST_LINE))  # some of it may be of a file that others wrote


def refuse_short(rows: Iterable[dict[str, Any]]) -> None:
    """Raises: RuntimeError, which ends a command with exit code 1, if a run has fewer rounds than were planned."""
    short = [row for row in rows if (row.get("rounds") or 0) < (row.get("planned_rounds") or 0)]
    if short:
        ends = ", ".join(f"{_named(row)}ended after {row['rounds']} of {row['planned_rounds']} rounds" for row in short)
        why = "what was charged twice, or charged and lost in a crash or with a node, used up the budget of the rest"
        raise RuntimeError(f"{ends}: {why}; for all rounds train again, with a lower training.checkpoint_every")


def _named(row: dict[str, Any]) -> str:
    name = row.get("name") or (f"trial {row['trial']}" if "trial" in row else "")
    return f"{name} " if name else ""


def print_comparison(answer: dict[str, Any]) -> None:
    rows, keys = answer["rows"], answer["grid"]
    metric = metric_in(rows[0])
    transformed = any(map(tells_text, rows))
    table = Table(title=f"Held-out {metric.title}, and ε of each run alone")
    scores = (score.title for score in metric.scores)
    short = (key.split(".")[-1].replace("_", "\n") for key in keys)
    theirs = ["ε " + NO_GUARANTEE.replace(", ", ",\n")] * any(map(as_published, rows))
    words = ("model", "of one", "guarantee", "of the same run, ε")
    for name in ("model", *short, *scores, "ε", *words[1:], *["retention"] * transformed, *theirs):
        table.add_column(name, justify="left" if name in words else "right", no_wrap=name == "model")
    for row in rows:
        settings = (told(row["settings"][key]) if key in row["settings"] else "" for key in keys)
        ends = row["interval"]
        beside = f" [{metric.show(ends['low'])}, {metric.show(ends['high'])}]" if ends else ""
        last = [*[retained(row)] * transformed, *[as_published(row)] * len(theirs)]
        table.add_row(row["variant"], *settings, *_scores(row, beside), *promise_of(row), *last)
    print_table(table)
    names = named(shortened([row for row in rows if not hides_anybody(row)], rows))
    unprotected = (
        f"No guarantee for a user or an entity, and figures as private as the text: {names}.\n" if names else ""
    )
    kinds = {row["interval"]["kind"] for row in rows if row["interval"]}
    seeds = "".join(f"Mean of {answer['seeds']} seeds; {INTERVALS[kind]}.\n" for kind in sorted(kinds))
    together = "".join(f"{about_total(total)}\n" for total in answer["totals"])
    units = "".join(f"{line}\n" for line in about_units(rows))
    kept = f"{RETENTION}.\n" * transformed
    scale = "".join(f"{line}\n" for line in about_scale(rows, metric))
    typer.echo(
        f"ε (∞: no guarantee) at δ = {show_delta(rows[-1]['delta'])} is of one run, not of a choice among runs. It hides\n"
        f"{units}{kept}{seeds}{together}{unprotected}"
        f"{scale}"
        f"uedp-ray report {answer['out']}\n"
        f"Run directories: {answer['out']}"
    )


def print_audit(answers: Sequence[Mapping[str, Any]]) -> None:
    """Of one run a line for each cell and one for all; of several, one for all of each."""
    table, one = Table(title="Canaries that the model remembers"), len(answers) == 1
    about = ("p_u", "p_e", "sharers\nexpected") if one else ("run", "perplexity")
    for name in (*about, "canaries", "random\nsampling", "beam\nsearch", "exposure\n(median, bits)"):
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=True)
    for answer in answers:
        cells = [(_of_cell(cell), cell) for cell in answer["cells"]] if one else []
        whole = ("all", "", "") if one else (answer["name"], _short(answer["perplexity"]))
        for head, row in (*cells, (whole, answer["total"])):
            counts = (str(row[key]) for key in ("canaries", "random_sampling", "beam_search"))
            table.add_row(*head, *counts, f"{row['median_exposure']:.1f}")
    print_table(table)
    private = [answer["name"] for answer in answers if not answer["private"]]
    sizes = " or ".join(f"2^{bits:.4g}" for bits in sorted({math.log2(answer["candidates"]) for answer in answers}))
    typer.echo(
        f"Random sampling: the canary's suffix is the most likely of |R| = {sizes}. "
        f"Beam search ({answers[0]['beam_width']} wide): it is found from its first word.\n"
        "A canary that was never planted has an exposure of k bits or more with probability 2^-k: 1 in the median.\n"
        + (f"Without a guarantee, so as private as the text: {', '.join(private)}.\n" if private else "")
        + f"Written: audit.json in {'the run directory' if one else 'each run directory'}"
    )


def _of_cell(cell: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{cell['sharer_prob']:g}", f"{cell['planting_prob']:g}", _short(cell["expected_sharers"])


def print_table(table: Table) -> None:
    console = Console()
    if not console.is_terminal:  # a log has room for every column
        console.width = max(console.width, 160)
    console.print(table)


def print_sweep(answer: dict[str, Any]) -> None:
    """The best trials, the lines to compare with, and what the choice cost."""
    from uedp_ray.privacy.selection import TRAINS_ANEW  # loads an optimizer
    from uedp_ray.search.columns import shortened
    from uedp_ray.search.proxies import disagree, unlike_gain

    best, unit, metric = answer["best"], answer["selection"]["unit"], metric_in([answer["metric"]])
    rule = answer["selection"]["rule"]
    on_public, anew = rule == "public", rule in TRAINS_ANEW
    several = "s (mean)" if answer.get("agreement") else ""
    text = f"{metric.title} on the search's text{several}" if on_public else f"Held-out {metric.title}"
    table = Table(
        title=f"{text[:1].upper()}{text[1:]}, and ε {OF_ONE_RUN}",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        show_edge=False,
    )
    searched = list(best["params"]) if best else []
    scores = (score.title.replace("/", "\n/") for score in metric.scores)
    for name in ("trial", *scores, f"ε\n{unit}"):
        table.add_column(name, justify="left" if name == "trial" else "right", no_wrap=True)
    shown = searched if "training.passes" in searched else ["passes", *searched]
    for key in shown:
        table.add_column(key.split(".")[-1].replace("_", "\n"), justify="right", no_wrap=True)
    for row in sorted(answer["references"], key=lambda row: -metric.cost(row[metric.name])):
        table.add_row(row["name"], *_scores(row), show_epsilon(row["epsilon"], "∞"))
    row = answer["no_search"]
    known = (_short(None) if row[score.name] is None else score.show(row[score.name]) for score in metric.scores)
    settings = ({**row, **row["params"]}.get(key) for key in shown)
    cost = _short(None) if row["noise_multiplier"] is None else show_epsilon(row["epsilon"], "∞")
    table.add_row("no search", *known, cost, *map(_short, settings))
    done = [row for row in answer["trials"] if row["state"] == "done"]
    done.sort(key=lambda row: metric.cost(row[metric.name]))
    for row in done[:_SHOWN]:
        spread = "" if row[metric.spread] is None else f" ± {metric.show(row[metric.spread])}"
        tied = " =" if row["tied_with_best"] and row["trial"] != best["trial"] else ""
        cells = (*_scores(row, f"{spread}{tied}"), show_epsilon(row["epsilon"], "∞"))
        base = " (base)" * (row["trial"] == answer.get("base_trial"))
        table.add_row(f"{row['trial']}{base}", *cells, *(_short(row.get(key)) for key in shown))
    print_table(table)
    counts = answer["counts"]
    ends = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    lines = [f"Trials: {ends or 'none'}" + (f"; the best {_SHOWN} are shown." if len(done) > _SHOWN else ".")]
    lines.append(f"No search: {answer['no_search']['text']}")
    if short := ", ".join(f"{row['trial']} ({fewer})" for row in done if (fewer := shortened(row))):
        lines.append(f"Caution: rounds that a crash lost were charged, and not trained again, in trials {short}.")
    for row in answer["references"]:
        if row["epsilon"] is None and on_public:
            lines.append(f"{row['name']}: trained without privacy, on the search's public text.")
        elif row["epsilon"] is None:
            lines.append(f"{row['name']}: trained without privacy, so its figures are private, and no ε covers them.")
    if best is None and not counts["asked"]:
        lines.append("The random number of trials was 0: nothing was trained, and the price covers this outcome too.")
    elif best is None:
        lines.append("No trial was trained to its end: see the reasons in trials.parquet.")
    else:
        lines += [
            _told_apart(best, counts["done"]),
            *("Caution: " * disagree(pair) + pair["text"] for pair in answer.get("agreement", ())),
        ]
        total = show_epsilon(best["epsilon_with_choice"], "∞")
        trained = f"the settings of trial {best['trial']} on the private text" if anew else f"trial {best['trial']}"
        before = metric.before(best) if anew else ""
        from_there = f" (from {before}, before that training)" if before else ""
        lines.append(f"Best: {trained}, {measured(best)}{from_there}, in {best['run_dir']}")
        if (scale := metric.against_yardstick(best)) and not metric.worthless(best):  # which says it, too
            lines.append(f"For scale: {scale}.")
        if on_public and (unlike := unlike_gain(metric, _row_of(answer, best["trial"]), best)):
            lines.append(unlike)
        alone = show_epsilon(best["epsilon"][unit], "∞")
        paid_for = narrowed(unit, answer["selection"].get("categories"))
        read = ", settled by results" if answer["selection"].get("settled_by_results") else ""
        lines.append(
            f"ε of this model, training and choosing: {total}{read} ({paid_for}, δ = {show_delta(best['delta'])})"
        )
        runs = best["seeds"]
        mean = f", the first of its {runs} runs, of which the score above is the median" if runs > 1 else ""
        lines.append(f"ε of its run alone: {alone}{mean}")
        lines += [f"Caution: {caution}." for caution in answer["cautions"]]
    lines.append(f"Price of choosing ({answer['selection']['rule']}): {answer['selection']['text']}")
    lines.append(f"May be published: {answer['selection']['releasable']}.")
    lines.append(f"uedp-ray report {answer['sweep_dir']}")
    if best is not None and math.isfinite(best["epsilon_with_choice"] or math.inf):
        lines.append(f"What to hand on, at a total ε {show_epsilon(best['epsilon_with_choice'])}: {answer['export']}")
    typer.echo("\n".join(lines))


def print_export(answer: dict[str, Any]) -> None:
    alone, total = show_epsilon(answer["epsilon_of_run"]), show_epsilon(answer["epsilon"])
    read = ", settled by results: privacy.md says how to read it" if answer["settled_by_results"] else ""
    chosen = "" if answer["rule"] == "none" else f" and choosing (rule {answer['rule']})"
    about = f"{answer['unit']}, δ = {show_delta(answer['delta'])}"
    lines = [f"Caution: {caution}." for caution in answer["cautions"]]
    if chosen:
        lines.append(f"ε of its run alone: {alone}")
    typer.echo("\n".join([*lines, f"total ε {total} ({about}), training{chosen}{read}: {answer['out']}"]))


_SHOWN = 10


def _row_of(answer: dict[str, Any], trial: str | None) -> dict[str, Any]:
    """A trial's row; empty if there is none."""
    return next((row for row in answer["trials"] if row["trial"] == trial), {})


def _scores(row: dict[str, Any], beside: str = "") -> list[str]:
    scores = metric_in(row).scores
    first, *others = (_short(None) if row[score.name] is None else score.show(row[score.name]) for score in scores)
    return [f"{first}{beside}", *others]


def measured(row: dict[str, Any], most: int | None = None) -> str:
    """Returns the score, with at most ``most`` of the others: a line on a narrow terminal has room for one."""
    metric = metric_in(row)
    others = ", ".join(score.say(row[score.name]) for score in metric.beside[:most])
    return metric.say(row[metric.name]) + (f" ({others})" if others else "")


def _short(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _told_apart(best: dict[str, Any], num_trials: int) -> str:
    if best["tied"] is None:
        return "One seed per trial: whether trials differ by more than chance was not tested."
    if not best["tied"] and num_trials < 2:
        return "No other trial was trained to its end."
    if not best["tied"]:
        return "Every other trial differs from the best by more than chance (Welch's t-test, 5 %)."
    return f"Cannot be told apart from the best (=, Welch's t-test, 5 %): {', '.join(best['tied'])}."
