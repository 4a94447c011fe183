"""The figures of the report with their captions, in reading order.

    for picture in pictures(load_sweep("runs/quickstart"), "s1"): print(picture.title, picture.reason or picture.caption)

Captions carry unit, relation and delta of every epsilon that is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from uedp_ray.analysis import epsilon, figures, importance, parallel, timeline
from uedp_ray.analysis.cost import Spent, spent_by_best
from uedp_ray.analysis.frames import Sweep, check_comparable
from uedp_ray.analysis.style import NothingToShow, in_words, svg
from uedp_ray.analysis.summary import shown_total, terms
from uedp_ray.errors import InputError
from uedp_ray.privacy.selection import SECRET, TRAINS_ANEW
from uedp_ray.privacy.statement import NO_GUARANTEE


@dataclass(frozen=True)
class Picture:
    """A figure with its words, or the reason why there is none."""

    name: str
    title: str
    caption: str
    svg: Markup | None = None
    reason: str = ""
    described: str = ""
    """What it shows, for those who do not see it."""

    def within(self, folder: str) -> Markup:
        """The drawing for a page or file from which the sweep's folder is ``folder``."""
        assert self.svg is not None
        return Markup(str(self.svg).replace('xlink:href="trials/', f'xlink:href="{escape(folder)}trials/'))


def pictures(sweep: Sweep, prefix: str) -> list[Picture]:
    """Returns all figures of one sweep; ids in the drawings begin with ``prefix``."""

    def picture(name: str, title: str, caption: str, draw: Callable[[], Figure], described: str = "") -> Picture:
        try:
            drawn = draw()
            drawing = Markup(svg(drawn, f"{prefix}-{name}"))
            return Picture(name, title, caption, drawing, described=described or in_words(drawn))
        except NothingToShow as nothing:
            return Picture(name, title, caption, reason=str(nothing))

    several_seeds = (sweep.trials["seeds"] > 1).any()
    spread = "Bars are one standard deviation over seeds." if several_seeds else "One seed per trial, so no bars."
    noiseless = f"Noiseless line: {figures.noiseless(sweep)}." if "noiseless" in set(sweep.references["name"]) else ""
    learning = picture(  # first, since it reads files of many runs: one that is refused costs no drawing
        "learning",
        f"{sweep.metric.heading} over the rounds",
        f"The best finished trials. {'Thin lines are further seeds. ' if several_seeds else ''}{noiseless}",
        lambda: figures.learning_curves(sweep),
    )
    return [
        picture(
            "pareto",
            f"{sweep.metric.heading} against ε",
            f"{_of_trials(sweep)} {spread} {noiseless}",
            lambda: _against_epsilon(sweep),
            _of_scores(sweep),
        ),
        picture(
            "order",
            f"{sweep.metric.heading} of the trials",
            f"{_in_total(sweep)} {spread} {noiseless}",
            lambda: figures.in_order(sweep),
            _of_scores(sweep),
        ),
        picture(
            "compute",
            f"{sweep.metric.heading} against compute",
            f"One pass is as much work as reading the whole text once. {_of_trials(sweep)} {spread} {noiseless}",
            lambda: figures.compute(sweep),
        ),
        picture(
            "timeline",
            "When the trials ran",
            "One bar per trial that began, from its first start to its end. Times may depend on the private text: do not "
            "publish them. A page made with --publish has none.",
            lambda: timeline.timeline(sweep),
            timeline.told(sweep),
        ),
        picture(
            "proxies",
            "Do the public texts agree?",
            "One point per trial: its score on two of the texts that the search trained on, and Spearman's correlation of "
            "their ranks. Where texts that differ agree, the private text is likely to as well.",
            lambda: figures.proxies(sweep),
            " ".join(pair["text"] for pair in sweep.agreement),
        ),
        picture(
            "parallel",
            "All searched settings",
            "One line per trial, from its settings to its score: the darker, the better; dotted lines were stopped "
            "early. Axes follow the scale that was searched.",
            lambda: parallel.parallel_coordinates(sweep),
            f"{_of_scores(sweep)} The table of all trials has every setting.",
        ),
        picture(
            "importance",
            "Which settings matter",
            "How far the values of the best quarter of the trials differ from those of all trials: settings whose share "
            "passes what chance would give.",
            lambda: importance.importance(sweep),
        ),
        picture(
            "epsilon-rounds",
            "ε against rounds",
            "The chosen run's mechanism with fewer and more rounds; each unit has its own axis; "
            "the choice is not included. The dashed "
            f"curve is the paper's arithmetic: {NO_GUARANTEE}.",
            lambda: _over_rounds(sweep, _spent(sweep)),
        ),
        picture(
            "epsilon-holders",
            "ε against the number of holders K",
            "What the chosen run's noise and rounds would give, without the choice, if up to K users held one entity. ε of "
            "the unit user does not depend on K. Where the curve is flat, a sentence without an entity decides.",
            lambda: _over_holders(sweep, _spent(sweep)),
        ),
        picture(
            "utility",
            "Utility against sampling",
            f"{_of_sampling(sweep)} {_of_trials(sweep)} Other settings vary too: read the lower edge. {noiseless}",
            lambda: figures.utility(sweep),
            _of_scores(sweep),
        ),
        learning,
    ]


def joint_picture(sweeps: Sequence[Sweep], *, publish: bool = False) -> Picture | None:
    """Returns the fronts of several sweeps together, or why they share no axis; None for a single sweep.

    ``publish``: names the setting in which they differ without its values, which may name paths.
    """
    if len(sweeps) == 1:
        return None
    words = ("joint", "The sweeps together", f"What each may hand on, at its total ε: {terms(sweeps[0])}.")
    try:
        check_comparable(sweeps)
        drawn = figures.joint_pareto(sweeps)
        return Picture(*words, svg=Markup(svg(drawn, "joint")), described=in_words(drawn))
    except InputError as error:
        why = f"{error.field} differs from that of {sweeps[0].name}" if publish else str(error)
        return Picture(*words, reason=f"No common axis: {why}.")
    except NothingToShow as nothing:
        return Picture(*words, reason=str(nothing))


def _of_scores(sweep: Sweep) -> str:
    """The figure in words: how many trials, from which score to which, and the levels to compare with."""
    try:
        trials, metric = figures.comparable_trials(sweep), sweep.metric
    except NothingToShow as nothing:
        return str(nothing)
    first, last = trials.iloc[0], trials.iloc[-1]
    levels = zip(sweep.references["name"], sweep.references[metric.name], strict=True)
    lines = "".join(f" The {name} line is at {metric.show(level)}." for name, level in levels)
    return (
        f"{len(trials)} trials, from {metric.say(first[metric.name])} (trial {first['trial']}, the best) to "
        f"{metric.show(last[metric.name])} (trial {last['trial']}).{lines}"
    )


def _in_total(sweep: Sweep) -> str:
    """What handing on one of the trials costs."""
    if not sweep.finished or sweep.best is None:
        return "The search is not finished: what a trial will cost in total is not settled."
    total, rule = shown_total(sweep), sweep.selection["rule"]
    if rule in TRAINS_ANEW:
        how = "on public text, at no cost" if rule == "public" else "as pilots, at a small part of the budget"
        return f"Trials ran {how}; the model trained by the best one's settings costs ε = {total} in total ({terms(sweep)})."
    which = "The winner alone may be handed on, and" if rule in SECRET else "Whichever is handed on"
    return f"{which} costs ε = {total} in total ({terms(sweep)})."


def _of_trials(sweep: Sweep) -> str:
    text = f"Trials of finite ε only. ε of one run each: {terms(sweep)}; the choice among them comes on top."
    if sweep.selection["rule"] == "public":
        text += " Trials read public text only: their ε is what the same training costs on private text."
    return text


def _of_sampling(sweep: Sweep) -> str:
    if figures.EXTENDED in sweep.space:
        return "q_s is the probability with which a sentence without a detected entity is used."
    return "q_s was not searched; another sampling probability was."


def _spent(sweep: Sweep) -> Spent:
    spent = spent_by_best(sweep)
    if spent is None:
        raise NothingToShow("There is no chosen run with a guarantee.")
    return spent


def _against_epsilon(sweep: Sweep) -> Figure:
    figures.check_traded(sweep)
    return figures.pareto(sweep)


def _over_rounds(sweep: Sweep, spent: Spent) -> Figure:
    return epsilon.epsilon_over_rounds(
        spent.mechanism,
        rounds=spent.rounds,
        delta=sweep.delta,
        unit=sweep.unit,
        target_epsilon=sweep.target_epsilon,
        others=spent.others,
    )


def _over_holders(sweep: Sweep, spent: Spent) -> Figure:
    return epsilon.epsilon_over_holders(spent.mechanism, rounds=spent.rounds, delta=sweep.delta, others=spent.others)
