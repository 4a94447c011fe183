"""The plan of a run: what is sampled, clipped, noised and charged in its rounds.

One object built from one config, so that what a round samples, what it clips, what noise it adds and what the ledger says of
it cannot disagree. A worker asks ``select`` (who and what), ``sentence_factors`` and ``add_user`` (bounds); the driver asks
``release`` (noise, public normaliser), and for the ``event`` to charge before anything of it leaves the driver. Not here:
the norms that one entity and one sentence may move, which follow from the config (``RunConfig.entity_clip_norm``), the
bounds on the text (``corpus.bounds``), and a vocabulary of private text, which adds its own noise and charge
(``training.run_vocabulary``).

    plan = Plan.of(config)                               # solves for the noise multiplier if epsilon is given
    for drawn in plan.select(corpus, users, sampler, round_index=0, attempt=0, sentence_weight=weight):
        print(drawn.user, drawn.sentences, drawn.weights)

What is public here: the config, the mechanism, ``noise_std``, ``denominator`` of the calibrated mode. The published
mode (``normalizer: published``) divides by sums read off the private data, as printed; it claims nothing.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, assert_never

import numpy as np
import torch
from numpy.typing import NDArray

from uedp_ray.calibration import calibrated, extended_sampling_prob, holder_bound_of, mechanism_of, planned_releases
from uedp_ray.config import RunConfig
from uedp_ray.corpus.bounds import IncidenceGraph
from uedp_ray.corpus.gathering import blocks, held_by
from uedp_ray.errors import InputError
from uedp_ray.privacy.cautions import cautions, weakness
from uedp_ray.privacy.clipping import clip_factors, projection_margin, wide_norm
from uedp_ray.privacy.events import Charges, charges, epsilon_of_charges, planned_rounds, to_planned_end
from uedp_ray.privacy.grid import SumGrid
from uedp_ray.privacy.mechanisms.local_round import LocalRound
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.noise import GaussianNoise
from uedp_ray.privacy.published import noise_factor
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.units import DEALT, RECORD, UNITS

_ASSUMED_USERS = 1 << 31
"""Assumed if no number of users is declared; with more, sentence and user numbers would not fit anyway."""
_MOST_MARGIN = 0.1
"""The largest share of a sentence's clip to set aside for rounding."""


class UserSelection(NamedTuple):
    """What one drawn user computes on: (n,) sentence numbers and their (n,) weights; ``weight`` is w_u.

    ``num_held``: sentences that the user has within the bounds, selected or not: the same number without an entity, whose
    sentences are null.
    """

    user: int
    sentences: NDArray[np.int64]
    weights: NDArray[np.float32]
    num_held: int
    weight: float = 1.0
    key: bytes = b""
    """A secret of this user in this round and attempt, where users add noise of their own: for it and for their draws."""
    first: int = 0
    """The number of the user's first sentence, drawn or not."""


class Weights(NamedTuple):
    """Algorithm 1, lines 3 to 6: w_u, w_e, and the denominator q_u W_u (q_e W_e + q_s W_s). Private."""

    user: NDArray[np.float64]
    entity: NDArray[np.float64]
    denominator: float


@dataclass(frozen=True)
class Plan:
    """Everything a round needs except the data, the keys and the parameters."""

    config: RunConfig
    mechanism: RoundMechanism | None
    """None if no noise is added: nothing can be claimed."""

    @classmethod
    def of(cls, config: RunConfig, corpus: IncidenceGraph | None = None) -> Plan:
        """Builds the plan; solves for the noise multiplier if a target epsilon is given.

        Args:
          config: the run.
          corpus: for the published noise (Eq. 6), which is read off it: |U| and the largest w_u. Not used otherwise.

        Raises: InputError if no noise multiplier reaches the target.
        """
        privacy = config.privacy
        if privacy.noise == "none":
            return cls(config, None)
        mechanism = mechanism_of(config, privacy.noise_multiplier or 1.0)
        if privacy.noise == "published":
            assert privacy.noise_multiplier is not None  # the config refuses anything else
            users, largest = config.corpus.declared_num_users or 1, 1.0
            if corpus is not None:
                users = len(corpus.user_offsets) - 1
                largest = float(_user_weights(config, corpus).max(initial=0.0))
            factor = largest * noise_factor(users, privacy.user_sampling_prob, cohort=privacy.published_cohort)
            mechanism = dataclasses.replace(mechanism, noise_multiplier=privacy.noise_multiplier * factor)
        elif privacy.target_epsilon is not None:
            mechanism = calibrated(config, mechanism, privacy.target_epsilon)
        return cls(config, mechanism)

    @property
    def noise_std(self) -> float:
        """Std of the noise in the sum of user updates."""
        return 0.0 if self.mechanism is None else self.mechanism.noise_multiplier * self.config.privacy.l2_clip_norm

    @property
    def private(self) -> bool:
        """Whether the noise is calibrated, unseeded and normalised by public numbers."""
        privacy = self.config.privacy
        return privacy.noise == "calibrated" and privacy.test_noise_seed is None

    @property
    def local(self) -> LocalRound | None:
        """What each user's own noise is charged as; None if users add none."""
        training = self.config.training
        if not self.config.is_local:
            return None
        assert training.local_noise_multiplier is not None  # the config refuses anything else
        return LocalRound(
            noise_multiplier=training.local_noise_multiplier,
            sampling_prob=training.local_sampling_prob,
            steps=training.local_steps,
        )

    @property
    def noised(self) -> bool:
        """Whether secret noise hides something, so that a round played again is one more release, with draws of its own."""
        return self.private or (self.local is not None and self.config.privacy.test_noise_seed is None)

    def weights(self, incidence: IncidenceGraph) -> Weights | None:
        """The published weights and normaliser; None in the calibrated mode, which uses public numbers only."""
        privacy = self.config.privacy
        if privacy.normalizer == "public":
            return None
        if privacy.normalizer != "published":
            assert_never(privacy.normalizer)
        user = _user_weights(self.config, incidence)
        held = np.bincount(incidence.entity_ids, minlength=incidence.num_entities)
        entity = np.minimum(held / privacy.entity_weight_cap, 1.0)
        extended = float((np.diff(incidence.entity_offsets) == 0).sum())
        inner = privacy.entity_sampling_prob * entity.sum() + extended_sampling_prob(self.config) * extended
        return Weights(user, entity, float(privacy.user_sampling_prob * user.sum() * inner))

    @property
    def expected_cohort(self) -> float:
        """The public normaliser q_u |U| of the calibrated mode; |U| is declared (or 1: a choice of units)."""
        privacy = self.config.privacy
        return max(privacy.user_sampling_prob * (self.config.corpus.declared_num_users or 1), 1e-12)

    def select(
        self,
        incidence: IncidenceGraph,
        users: NDArray[np.int64] | None,
        sampler: PoissonSampler,
        *,
        round_index: int,
        attempt: int,
        sentence_weight: NDArray[np.float32],
        weights: Weights | None = None,
        share: Callable[[NDArray[np.int64]], NDArray[np.int64]] = lambda drawn: drawn,
    ) -> Iterator[UserSelection]:
        """Yields what each drawn user among ``users`` (ascending; None: all) computes on, however users are spread.

        Sentence rules: ``all`` takes a sentence if every entity in it was drawn, ``any`` if at least one was; a sentence
        without entities is an extended entity with its own draw. ``sentence_weight`` (N,) holds the weights of the
        contribution bounds; sentences of weight 0 are left out. ``share``: those drawn -> those to yield.
        """
        privacy = self.config.privacy
        where = {"round_index": round_index, "attempt": attempt}
        num_entities = incidence.num_entities
        in_cohort = sampler.draw(privacy.user_sampling_prob, len(incidence.user_offsets) - 1, kind="user", **where)
        if privacy.entity_draw == "global":
            shared = sampler.draw(privacy.entity_sampling_prob, num_entities, kind="entity", **where)
        elif privacy.entity_draw == "per_user":
            shared = None
        else:
            assert_never(privacy.entity_draw)
        in_round = np.flatnonzero(in_cohort) if users is None else users[in_cohort[users]]
        for block in blocks(incidence, share(in_round)):
            held = held_by(incidence, block)
            if shared is None:
                owner_I = held.user_N[held.sentence_I]
                pairs, place_I = np.unique(owner_I * num_entities + held.entities, return_inverse=True)
                each = np.bincount(pairs // max(num_entities, 1), minlength=len(block))
                drawn_I = sampler.draw_each(privacy.entity_sampling_prob, each, block, kind="entity", **where)[place_I]
            else:
                drawn_I = shared[held.entities]
            num_drawn = held.added(drawn_I)
            if privacy.selection_rule == "all":
                used = num_drawn == held.counts
            elif privacy.selection_rule == "any":
                used = num_drawn > 0
            else:
                assert_never(privacy.selection_rule)
            extended = sampler.draw_each(
                extended_sampling_prob(self.config), held.sizes, block, kind="extended", **where
            )
            used = np.where(held.counts > 0, used, extended)
            weight = np.asarray(sentence_weight[held.sentences], dtype=np.float32)
            num_held = np.bincount(held.user_N[weight > 0], minlength=len(block))
            if weights is not None:  # as printed: a sentence counts once per drawn entity, with that entity's weight
                per_mention = held.added(drawn_I * weights.entity[held.entities])
                weight = weight * np.where(held.counts > 0, per_mention, 1.0).astype(np.float32)
            kept = np.flatnonzero(used & (weight > 0))
            ends = np.cumsum(np.bincount(held.user_N[kept], minlength=len(block))).tolist()
            for at, (user, first, last) in enumerate(zip(block.tolist(), [0, *ends], ends, strict=False)):
                if first < last:
                    own = kept[first:last]  # indexing with it copies: nothing of a user is in reach of another's update
                    user_weight = 1.0 if weights is None else float(weights.user[user])
                    key = sampler.secret(32, kind="local", owner=user, **where) if self.local else b""
                    of_user = held.sentences[own], weight[own], int(num_held[at]), user_weight, key
                    yield UserSelection(user, *of_user, first=int(incidence.user_offsets[user]))

    @cached_property
    def grid(self) -> SumGrid | None:
        """The grid of the sums of clipped updates; None without clipping: sums are then rounded, and nothing is claimed."""
        privacy = self.config.privacy
        if not privacy.clip:
            return None
        num_users = self.config.corpus.declared_num_users or _ASSUMED_USERS
        return SumGrid.of(bound=privacy.l2_clip_norm, num_vectors=num_users, noise_std=self.noise_std)

    @property
    def least_share(self) -> float:
        """K over all users where holders are weighed, else 1: margins for rounding are divided by it.

        Rounding adds to what each holder moves, and what is bounded is what they move together.
        """
        bounds, users = self.config.bounds, self.config.corpus.declared_num_users
        if holder_bound_of(bounds) == "truncate":
            return 1.0
        return min(1.0, bounds.max_holders / (users or _ASSUMED_USERS))

    def sentence_clip(self, num_params: int) -> float | None:
        """What gradients of a model of P parameters are clipped to: ``sentence_clip_norm`` less a margin, so that sentences
        of a weight move their user's update, as it is summed on the grid, by at most that times ``sentence_clip_norm``.

        Raises: InputError if the margin is not far below it.
        """
        privacy, grid = self.config.privacy, self.grid
        bound = privacy.sentence_clip_norm
        if grid is None or bound is None:
            return None
        margin = projection_margin(privacy.l2_clip_norm, num_params, grid.step) / self.least_share
        if margin > _MOST_MARGIN * bound:
            remedy = (
                f"too small beside l2_clip_norm = {privacy.l2_clip_norm:g} for sums of {num_params:,} parameters over "
                "corpus.declared_num_users: raise it, lower one of these, or use bounds.holder_bound truncate"
            )
            raise InputError("privacy.sentence_clip_norm", bound, remedy)
        return bound - margin

    def sentence_factors(self, norms: torch.Tensor, weights: NDArray[np.float64], clip: float | None) -> torch.Tensor:
        """(B,) float64 gradient norms and weights -> (B,) factors: weight times the clip (``sentence_clip``)."""
        return torch.from_numpy(weights).to(norms.device) * clip_factors(norms, clip)

    def zeros(self, num_params: int, device: torch.device) -> torch.Tensor:
        """The initial value of a worker's sum: (P,) int64 steps of ``grid``, or float64 without clipping."""
        return torch.zeros(num_params, dtype=torch.float64 if self.grid is None else torch.int64, device=device)

    def add_user(self, total: torch.Tensor, update: torch.Tensor, weight: float = 1.0) -> bool:
        """Adds w_u times a (P,) user update, projected to the ball of radius ``l2_clip_norm``, to ``total``.

        An update that is not finite counts as zero; returns False for it. Raises: TypeError for one of another shape, which
        would be added many times, or not of float32 or float64, or that says itself how long it is.
        """
        wide = update.dtype in (torch.float32, torch.float64)
        if update.shape != total.shape or not wide or type(update) is not torch.Tensor:
            found = f"{tuple(update.shape)} {update.dtype} {type(update).__name__}"
            raise TypeError(f"a user's update must be a {tuple(total.shape)} float32 or float64 Tensor, not {found}")
        bound = self.config.privacy.l2_clip_norm if self.config.privacy.clip else None
        norm = torch.tensor(wide_norm(update), dtype=torch.float64)
        factor = weight * float(clip_factors(norm, bound))
        if not factor > 0:
            return False
        if self.grid is None:
            total.add_(update, alpha=factor)
        else:
            self.grid.add(total, update, factor)
        return True

    def event(self, *, round_index: int, attempt: int) -> dict[str, Any]:
        """What the ledger records before the round's noised update is released."""
        if self.local is not None:
            return {**self.local.to_event(), "round": round_index, "attempt": attempt}
        if self.mechanism is None:
            return {"kind": "unprotected", "round": round_index, "attempt": attempt, "reason": "no noise is added"}
        return {
            "kind": "round",
            "round": round_index,
            "attempt": attempt,
            "mechanism": self.mechanism.to_dict(),
            "private": self.private,
        }

    def header(self) -> dict[str, Any]:
        """What the ledger records before the first release: also the plan, as a run is charged to its planned end."""
        config = self.config
        plan = None
        if self.mechanism is not None:
            rounds, mechanism = config.training.num_rounds, self.mechanism.to_dict()
            releases = [release.to_event() for release in planned_releases(config)]
            plan = {"rounds": rounds, "mechanism": mechanism, "releases": releases}
        return {
            "config_digest": config.digest(),
            "private": _OF_RECORDS.get(config.corpus.regroup, True) if self.private else False,
            "bounds": config.bounds.mode,
            "plan": plan,
        }

    def check_header(self, header: Mapping[str, Any], setup: Path) -> None:
        """Checks the mechanism a run was set up with against its ledger's first line, which nobody can change unnoticed.

        Raises: InputError naming the file ``setup`` if another noise would be added, or none.
        """
        if "plan" in header and planned_rounds(header) != planned_rounds(self.header()):
            remedy = "its mechanism is not that of the ledger's first line: restore the run's copy"
            raise InputError(setup.name, str(setup), remedy)

    def affordable(self, charged: Charges) -> int:
        """How many rounds a run may charge in all: those planned.

        Under a target, fewer if a crash had a vocabulary charged twice: what ``charged`` holds and those rounds meet it.
        """
        privacy, planned = self.config.privacy, self.config.training.num_rounds
        if self.mechanism is None or privacy.target_epsilon is None:
            return planned
        target, mechanism = privacy.target_epsilon, self.mechanism

        def exceeds(rounds: int) -> bool:
            whole = charged._replace(rounds=((mechanism, rounds),))
            return epsilon_of_charges(whole, delta=privacy.delta, unit=self.config.unit) > target

        if not exceeds(planned):
            return planned
        return max(0, bisect.bisect_left(range(planned), True, key=exceeds) - 1)

    def release(
        self, total: torch.Tensor, noise: GaussianNoise, *, round_index: int, denominator: float | None = None
    ) -> torch.Tensor:
        """(P,) sum of updates -> (P,) float64 noised average, in the same memory: the only thing that leaves a round."""
        if self.private:
            noise.require_private()
        denominator = self.expected_cohort if denominator is None else denominator
        if self.grid is None:
            return total.div_(denominator)
        if self.noise_std > 0:
            self.grid.add_noise(total, noise.blocks(len(total), std=self.noise_std, round_index=round_index))
        return self.grid.value(self.grid.coarsen(total)).div_(denominator)


def _user_weights(config: RunConfig, incidence: IncidenceGraph) -> NDArray[np.float64]:
    """(U,) w_u of Algorithm 1, line 3; 1 where the normaliser is public."""
    sentences = np.diff(incidence.user_offsets)
    if config.privacy.normalizer == "public":
        return np.ones(len(sentences))
    return np.minimum(sentences / config.privacy.user_weight_cap, 1.0)


def cautions_of(config: RunConfig, epsilon: float | None = None) -> list[str]:
    """Cautions about a run's settings, before it reads any text (``privacy.cautions``); ``epsilon``: its own, once known."""
    users, mechanism = config.corpus.declared_num_users, Plan.of(config).mechanism
    if mechanism is None or config.privacy.noise != "calibrated":
        return []
    found = weakness((config.privacy.target_epsilon or 0.0) if epsilon is None else epsilon)
    if users is not None:
        found += cautions(mechanism, delta=config.privacy.delta, num_users=users)
    return found


_OF_RECORDS = {"records": RECORD, "iid": DEALT}
"""What the header of a private run says, by ``corpus.regroup``: where users are persons, that it is true."""


def units_of(config: RunConfig) -> tuple[str, ...]:
    """The units of which a run may claim something: one record alone, where users are no persons."""
    return UNITS if config.unit in UNITS else (config.unit,)


def epsilons(plan: Plan, charged: Charges | Sequence[dict[str, Any]], units: Sequence[str] = UNITS) -> dict[str, float]:
    """epsilon of a run (what it charges, or its ledger's events) by unit, to its planned end; infinity where nothing
    can be claimed.
    """
    delta = plan.config.privacy.delta
    whole = to_planned_end(charged if isinstance(charged, Charges) else charges(charged))
    return {unit: epsilon_of_charges(whole, delta=delta, unit=unit) for unit in units}
