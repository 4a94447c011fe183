"""``uedp-ray epsilon``, ``calibrate`` and ``calibrate-words``. No private data is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from uedp_ray.cli.base import Json, app, as_flags
from uedp_ray.cli.commands import NONE, Set
from uedp_ray.config import load_config
from uedp_ray.console import Lines, emit
from uedp_ray.errors import InputError

_PROBABILITIES = {"user_sampling_prob": "--q-u", "entity_sampling_prob": "--q-e", "extended_sampling_prob": "--q-s"}
Unit = Annotated[str, typer.Option(help="Whose part is hidden: user-entity, user or entity; of a ledger also record.")]
Accountant = Annotated[str, typer.Option(help="pld, renyi, or published (the paper's figures, no guarantee).")]
UserProb = Annotated[float | None, typer.Option("--q-u", "--user-sampling-prob", help="User sampling probability.")]
EntityProb = Annotated[float, typer.Option("--q-e", "--entity-sampling-prob", help="Entity sampling probability.")]
ExtendedProb = Annotated[
    float,
    typer.Option("--q-s", "--extended-sampling-prob", help="Sampling probability of sentences without an entity."),
]
Rounds = Annotated[int | None, typer.Option(help="Noised releases T.")]
Delta = Annotated[float, typer.Option(help="delta of (epsilon, delta).")]
MaxHolders = Annotated[
    int | None, typer.Option(help="K: at most so many users hold one entity. Left out, entities are not protected.")
]
EntityClip = Annotated[float, typer.Option(help="beta_e in units of beta: how far one entity moves one user's update.")]
ExtendedClip = Annotated[
    float | None, typer.Option(help="One sentence's bound in units of beta; default: --entity-clip.")
]
Rule = Annotated[
    str,
    typer.Option(
        "--rule",
        "--selection-rule",
        help="any (draws of entities do not help) or all (the default of a run's config).",
    ),
]
Draw = Annotated[
    str | None,
    typer.Option(help="Entities are drawn once for everyone (global) or by each user (per-user). Needed for rule all."),
]
Kind = Annotated[
    str,
    typer.Option(help="What is removed: entity, extended (a sentence without entities), both (the worse)."),
]
HolderBound = Annotated[
    str, typer.Option(help="Beyond K holders: truncate (drop), or reweight and fill (weights that sum to K).")
]
MaxUsers = Annotated[int | None, typer.Option(help="Declared number of users, for reweight and cautions.")]


def _refuse_others(context: typer.Context, flag: str, value: object, allowed: set[str]) -> None:
    """Refuses options on the command line that ``flag``, which answers from a file, would ignore."""
    options = {option.name: option.opts[0] for option in context.command.params if option.name not in allowed}
    typed = [
        name for key, name in options.items() if key and str(context.get_parameter_source(key)).endswith("COMMANDLINE")
    ]
    if typed:
        raise InputError(
            flag, str(value), f"cannot be combined with {', '.join(typed)}: it states that itself, drop one of them"
        )


@app.command()
def epsilon(
    context: typer.Context,
    unit: Unit = "user-entity",
    accountant: Accountant = "pld",
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
    entity_draw: Draw = None,
    kind: Kind = "both",
    holder_bound: HolderBound = "truncate",
    max_users: MaxUsers = None,
    method: Annotated[str, typer.Option(help="published: uedp, uedp_fe or user_dp.")] = "uedp",
    sensitive_fraction: Annotated[float, typer.Option(help="published: sensitive / all sentences.")] = 1.0,
    max_order: Annotated[int, typer.Option(help="published: largest moment order.")] = 32,
    ledger: Annotated[Path | None, typer.Option(help="Account for what a ledger file records instead.")] = None,
    exported: Annotated[
        Path | None, typer.Option("--export", help="Account for a folder of uedp-ray export: training and choosing.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The epsilon of a parameter set, or of a ledger file. No data is touched."""
    from uedp_ray.answers import export_epsilon, ledger_epsilon, parameter_epsilon

    flags = locals()
    with as_flags(**_PROBABILITIES, selection_rule="--rule"):
        if exported is not None:
            _refuse_others(context, "--export", exported, {"exported", "as_json"})
            answer = export_epsilon(exported, reporter=Lines())
        elif ledger is not None:
            _refuse_others(context, "--ledger", ledger, {"ledger", "unit", "accountant", "delta", "kind", "as_json"})
            answer = ledger_epsilon(ledger, unit=unit, accountant=accountant, delta=delta, kind=kind)
        else:
            _check_given(flags, "q_u", "noise_multiplier", "rounds")
            answer = parameter_epsilon(
                _mechanism(flags),
                rounds=flags["rounds"],
                delta=delta,
                unit=unit,
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
    unit: Unit = "user-entity",
    accountant: Accountant = "pld",
    q_u: UserProb = None,
    q_e: EntityProb = 1.0,
    q_s: ExtendedProb = 1.0,
    rounds: Rounds = None,
    delta: Delta = 1e-5,
    max_holders: MaxHolders = None,
    entity_clip: EntityClip = 2.0,
    extended_clip: ExtendedClip = None,
    rule: Rule = "any",
    entity_draw: Draw = None,
    kind: Kind = "both",
    holder_bound: HolderBound = "truncate",
    max_users: MaxUsers = None,
    as_json: Json = False,
) -> None:
    """The smallest noise multiplier whose epsilon is at most the target."""
    from uedp_ray.answers import parameter_noise

    flags = {**locals(), "noise_multiplier": 1.0}
    with as_flags(**_PROBABILITIES, selection_rule="--rule"):
        _check_given(flags, "q_u", "rounds")
        answer = parameter_noise(
            _mechanism(flags),
            target_epsilon=target_epsilon,
            rounds=flags["rounds"],
            delta=delta,
            unit=unit,
            accountant=accountant,
            kind=kind,
        )
    emit(answer, as_json)


@app.command()
def calibrate_words(
    config: Annotated[Path, typer.Argument(help="Run file (YAML) with corpus.transform.kind: replace_words.")],
    most_loss: Annotated[
        float, typer.Option(help="How far words may move in the mean; 1: as far apart as two words of public text.")
    ],
    settings: Set = NONE,
    num_words: Annotated[
        int, typer.Option(min=2, help="Words that an adversary chooses among: the most frequent.")
    ] = 200,
    trials: Annotated[int, typer.Option(min=1, help="Settings to try.")] = 60,
    as_json: Json = False,
) -> None:
    """The epsilon (and t) of replaced words that leaves an adversary the most to guess. No private text is read."""
    from uedp_ray.search.words import tuned_for

    with as_flags():
        answer = tuned_for(load_config(config, settings), most_loss=most_loss, num_words=num_words, num_trials=trials)
    emit(answer, as_json)


def _check_given(flags: dict[str, Any], *names: str) -> None:
    """Raises: InputError for an option that was left out and for which no value is safe to assume."""
    for name in names:
        if flags[name] is None:
            raise InputError(f"--{name.replace('_', '-')}", None, "is missing: no value is safe to assume, give it")
    if flags["entity_draw"] is None and flags["rule"] == "all" and flags["q_e"] != 1.0 and flags["max_holders"]:
        raise InputError("--entity-draw", None, "is missing: it matters for rule all, and neither is always the worse")


def _mechanism(flags: dict[str, Any]) -> Any:
    from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

    extended: float | None = flags["extended_clip"]
    draw: Any = (flags["entity_draw"] or "global").replace("-", "_")
    return RoundMechanism(
        noise_multiplier=flags["noise_multiplier"],
        user_sampling_prob=flags["q_u"],
        entity_sampling_prob=flags["q_e"],
        extended_sampling_prob=flags["q_s"],
        selection_rule=flags["rule"],
        entity_draw=draw,
        max_holders=flags["max_holders"],
        entity_clip=flags["entity_clip"],
        extended_clip=flags["entity_clip"] if extended is None else extended,
        holder_bound="reweight" if flags["holder_bound"] == "fill" else flags["holder_bound"],  # one bound for both
        max_users=flags["max_users"],
    )
