"""The sum of a worker's clipped user updates, however they are computed.

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.config import RunConfig, from_dict
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.parameters import FlatParameters
    >>> from uedp_ray.plan import Plan, UserSelection
    >>> from uedp_ray.tasks.next_word import NextWord
    >>> from uedp_ray.updates.base import local_update
    >>> tree = {"corpus": {"declared_num_users": 100}, "training": {"local_update": "local_sgd"}}
    >>> tree["privacy"] = {"noise_multiplier": 1.0, "l2_clip_norm": 0.1, "sentence_clip_norm": None}
    >>> tree["bounds"] = {"holder_bound": "truncate", "entity_bound": "truncate"}
    >>> tree["model"] = {"max_length": 8, "num_layers": 1, "hidden_size": 8, "num_heads": 2}
    >>> plan = Plan.of(from_dict(RunConfig, tree))
    >>> model = build_model(plan.config.model, vocab_size=50, bos_id=0, eos_id=0, seed=0)
    >>> params, task = FlatParameters(model), NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=8)
    >>> sentences = [np.array([5, 7, 9]), np.array([4])]
    >>> update = local_update(plan, model, params, task, sentences.__getitem__, torch.device("cpu"))
    >>> update.probe()    # needs no data
    >>> drawn = UserSelection(user=3, sentences=np.arange(2), weights=np.ones(2, np.float32), num_held=2)
    >>> total = update.sum_updates(params.get(), [drawn], round_index=0)
    >>> total.dtype, total.shape == (params.num,)    # steps of a grid
    (torch.int64, True)
    >>> norm = float((total.double() * plan.grid.step).norm())
    >>> norm <= 0.1, round(norm, 3)    # of one user, clipped
    (True, 0.1)

A user's update depends, to the bit, on its own selection, the parameters and public seeds only, never on who else was drawn
or on how users are spread over workers and batches: a pass leaves nothing for the next one. Updates are added up as
integers.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np
import torch

from uedp_ray.components import drop_inherited, in_module
from uedp_ray.config.choices import BOUNDING_SENTENCES, KEEPING_USERS_APART
from uedp_ray.config.sections import TrainingConfig
from uedp_ray.errors import InputError
from uedp_ray.models.architecture import DROPOUTS
from uedp_ray.models.isolation import Isolation
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.recomputed import recompute_blocks
from uedp_ray.plan import Plan, UserSelection
from uedp_ray.tasks.base import Task
from uedp_ray.updates.reading import check_reading

UNORDERED = "does not have a deterministic implementation"
"""What torch says of a kernel that knows no fixed order (``exact_arithmetic``)."""

_IN_ORDER = 8
"""Sentences of a made-up user that show an order which is drawn anew: of two, every other draw has the same. And there are
batches after the first, whatever their size."""


@dataclass
class LocalUpdate(ABC):
    """Sums clipped user updates of one worker. What a class states of itself holds for its own subclasses only if they
    state it too.

    Shapes: (P,) float32 parameters -> (P,) int64 sum on the plan's grid (float64 without clipping). A sentence or user
    whose gradient is NaN or infinite counts as zero; ``num_non_finite`` counts them (a private figure: it never enters a
    result). A user's update has the same bits whichever others are drawn, in any order, with any number of workers.
    """

    bounds_sentences: ClassVar[bool] = False
    """Whether a sentence of weight w moves its user's update by at most w times ``sentence_clip_norm``. Only an update for
    which this is proved (docs/accounting.md) says so, here and in ``config.choices.BOUNDING_SENTENCES``; else only the
    user's clip holds."""
    uses: ClassVar[tuple[str, ...] | None] = None
    """Settings of ``training`` that not all updates read, and this one does; a run is told of others that it sets. None: not
    stated, and nothing is told."""
    keeps_users_apart: ClassVar[bool] = False
    """Whether ``each_update`` is not that of ``LocalUpdate``, and keeps users apart by itself, though they share passes
    (``gradient``)."""

    plan: Plan
    model: torch.nn.Module
    params: FlatParameters
    task: Task
    sentence: Callable[[int], np.ndarray]
    """Sentence number -> what the task knows of it (``Task.annotated``). An object made for one user has those of its
    selection only."""
    device: torch.device
    num_non_finite: int = field(default=0, init=False)
    tried_out: object = field(default=None, init=False)
    """What ``probe`` found of this machine: workers that found the same are taken to compute a user's update to the same
    bits. None: nothing was tried out, and no two workers are."""
    _probed: bool = field(default=False, init=False)
    _isolation: Isolation | None = field(default=None, init=False, repr=False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _check_stated(cls)

    def __post_init__(self) -> None:
        config = self.plan.config
        self._training: TrainingConfig = config.training
        if self._training.local_update in BOUNDING_SENTENCES and not self.bounds_sentences:
            raise TypeError(f"{type(self).__name__} bounds no sentence, and is accounted as if it did")
        self._dropout = any(getattr(config.model, name) > 0 for name in DROPOUTS)
        self._autocast = torch.bfloat16 if self._training.precision == "bf16" else None
        self.model.train(self._dropout)
        if self._training.gradient_checkpointing:
            recompute_blocks(self.model)

    @property
    def isolated(self) -> Isolation:
        """Passes within it leave the network, the task and the parameters' object as they found them."""
        if self._isolation is None:
            beside = {"training.local_update": self.params, "task.kind": self.task}
            self._isolation = Isolation(self.model, self.params.tensors, beside)
        return self._isolation

    def probe(self) -> None:
        """Checks on made-up tokens that what is computed for a user follows from that user alone: that updates of users have
        the same bits after each other as before.

        Takes the most memory that a round needs: a run that stopped later for lack of it would reveal how many users were
        drawn, or how long their sentences are. Needs no data, and does nothing the second time.

        Raises: InputError if they have not, for a private run.
        """
        if self._probed:
            return
        self._check_reading(beside=False)
        made_up, size = np.random.default_rng(0), max(_IN_ORDER, 2 * self._training.local_batch_size + 1)
        longest = self.plan.config.model.max_length
        lengths = 1, longest // 2, max(1, longest - 1), *[longest] * (size - 1)  # nearly all of a step's, and unlike
        texts = [self.task.made_up(positions, self._vocab_size, made_up) for positions in lengths]
        users = [
            UserSelection(user, numbers, np.ones(len(numbers), np.float32), num_held=len(numbers), key=bytes(32))
            for user, numbers in enumerate(np.split(np.arange(2 + size), [1, 2]))  # little text, and much
        ]
        tried = type(self)(self.plan, self.model, self.params, self.task, texts.__getitem__, self.device)
        updates = LocalUpdate.each_update(tried, self.params.get(), [*users, *users], 0)
        found = [digest_of([update]) for _, update in updates]
        if self.plan.noised and found[: len(users)] != found[len(users) :]:
            raise self._unsteady("a user's update")
        self.tried_out = found[: len(users)]
        del tried, updates
        self._isolation = None  # what is put back after each user is the network as it is now, and not before all this
        self._probed = True

    @abstractmethod
    def update_of(self, parameters: torch.Tensor, selection: UserSelection, round_index: int) -> torch.Tensor:
        """One user's (P,) update, float32 or float64, not clipped yet.

        The network has ``parameters``, and is restored afterwards. It is called once on an object of its own, made for this
        user, with copies of the parameters, the plan and the sentences of ``selection`` alone: what it keeps in them, and
        (as far as ``models.isolation`` watches) in the network, the task or ``params``, reaches no other user. It must keep
        nothing elsewhere, in a class or a module: nothing would undo that, only ``probe`` might show it, and no bound would
        hold.
        """

    def each_update(
        self, parameters: torch.Tensor, selections: Iterable[UserSelection], round_index: int
    ) -> Iterator[tuple[UserSelection, torch.Tensor]]:
        """Yields each user with its update, which may be overwritten once the next one is requested.

        An override takes over what keeps users apart, and so states ``keeps_users_apart``.
        """
        isolated = self.isolated  # looks at the network before anybody's object can have changed it
        for selection in selections:
            self.params.set(parameters)
            texts = {int(number): np.array(self.sentence(int(number))) for number in selection.sentences}
            with isolated(seed_of(self._training.seed, round_index, selection.user), trains=True):
                plan = deepcopy(self.plan)
                own = type(self)(plan, self.model, self.params, self.task, texts.__getitem__, self.device)
                update = own.update_of(parameters.clone(), selection, round_index)
                del own  # what that does is undone, too
            yield selection, update
        self.params.set(parameters)

    @final
    def sum_updates(
        self, parameters: torch.Tensor, selections: Iterable[UserSelection], round_index: int
    ) -> torch.Tensor:
        """(P,) sum over ``selections`` of w_u times the clipped update; zeros for an empty cohort.

        ``parameters`` are what is released next, and no update gets hold of them.

        Raises: RuntimeError if a user is drawn or added twice, or added without being drawn: the clip is one user's; and if
        an ``each_update`` leaves the parameters that it was given changed: its next user would not start from the round's.
        """
        type(self).probe(self)  # whatever hides it in the object
        given = parameters.clone()
        self.params.set(parameters)
        total = self.plan.zeros(self.params.num, self.device)
        drawn: dict[int, UserSelection] = {}
        users: set[int] = set()

        def seen() -> Iterator[UserSelection]:
            for selection in selections:
                if selection.user in users:
                    raise RuntimeError(f"user {selection.user} is drawn twice in a round")
                users.add(selection.user)
                drawn[selection.user] = selection
                yield selection

        for selection, update in type(self).each_update(self, given, seen(), round_index):
            if drawn.pop(selection.user, None) is not selection:
                raise RuntimeError(f"{type(self).__name__} adds a user twice, or one that was not drawn")
            self.num_non_finite += not self.plan.add_user(total, update, selection.weight)
        if not torch.equal(given.view(torch.uint8), parameters.view(torch.uint8)):  # bits: some may be no numbers
            raise RuntimeError(f"{type(self).__name__} writes into the round's parameters")
        return total

    def _check_reading(self, *, beside: bool) -> None:
        config = self.plan.config
        sizes = {"vocab_size": self._vocab_size, "longest": config.model.max_length}
        check_reading(self.task, config.task.kind, **sizes, beside=beside, isolated=self.isolated)

    @property
    def _vocab_size(self) -> int:
        return next(m.num_embeddings for m in self.model.modules() if isinstance(m, torch.nn.Embedding))

    def _unsteady(self, what: str) -> InputError:
        field, value = "training.device", str(self.device.type)
        if self._autocast is not None:
            field, value = "training.precision", self._training.precision
        found = f"{what} is not finite, or not the same in each pass, so no bound holds"
        chosen = {"training.local_update": self._training.local_update, "task.kind": self.plan.config.task.kind}
        for setting, name in chosen.items():
            if name not in KEEPING_USERS_APART:
                kept = f"look for what it keeps from one text to the next; if it keeps nothing, change {field}"
                return InputError(setting, name, f"{found}: {kept} ({value})")
        named = " and ".join(f"{setting} ({name})" for setting, name in chosen.items())
        return InputError(
            field,
            value,
            f"{found}: change it; if it is so with any, look for what {named} keep from one text to the next",
        )


def _check_stated(cls: type[LocalUpdate]) -> None:
    """Raises: TypeError for a class that takes over what keeps users apart without saying so. What a base states of itself
    is dropped."""
    drop_inherited(cls, LocalUpdate, "bounds_sentences", "keeps_users_apart")
    of = {
        name: next(place for place, each in enumerate(cls.__mro__) if name in vars(each))
        for name in ("sum_updates", "isolated", "probe", "each_update", "update_of")
    }
    own = [name for name in of if cls.__mro__[of[name]] is not LocalUpdate]
    if "sum_updates" in own:
        raise TypeError(f"{cls.__name__} sums updates itself: the clip of each user would be its word only")
    if "isolated" in own:
        raise TypeError(f"{cls.__name__} isolates passes itself: what one leaves for the next would be its word only")
    if "each_update" in own and of["update_of"] < of["each_update"]:  # which need not call it: gradient's does not
        inherited = cls.__mro__[of["each_update"]].__name__
        remedy = "write both, or inherit from LocalUpdate"
        raise TypeError(f"{cls.__name__} has an update_of of its own, but the each_update of {inherited}: {remedy}")
    for name, does in (("each_update", "yields updates"), ("probe", "tries itself out")):
        if name in own and not cls.keeps_users_apart:
            by = "itself" if not of[name] else f"by the {name} of {cls.__mro__[of[name]].__name__}"
            raise TypeError(f"{cls.__name__} {does} {by}, and does not state that it keeps_users_apart")


def local_update(
    plan: Plan,
    model: torch.nn.Module,
    params: FlatParameters,
    task: Task,
    sentence: Callable[[int], np.ndarray],
    device: torch.device,
) -> LocalUpdate:
    """The update that ``training.local_update`` names. Arguments: see ``LocalUpdate``."""
    return update_class(plan.config.training.local_update)(plan, model, params, task, sentence, device)


def update_class(name: str) -> type[LocalUpdate]:
    """The class in the module of this room that the name says.

    Raises: TypeError for one that is no ``LocalUpdate``: what it leaves out would not be read as unsafe.
    """
    found: type[LocalUpdate] = in_module("updates", name, "Update")
    if not issubclass(found, LocalUpdate):
        raise TypeError(f"the Update of updates.{name} is no LocalUpdate: derive it from that")
    _check_stated(found)  # a base before LocalUpdate may have kept that from being done
    return found


def exact_arithmetic(device: torch.device) -> None:
    """Sets full float32 products (NVIDIA containers may have switched TF32 on) and GPU kernels that add in a fixed order.

    From then on, a kernel of a GPU that knows no fixed order raises a RuntimeError. Were it only to warn, attention would
    keep to its faster kernel, and gradients would differ from pass to pass.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is made
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    """A digest of their bits."""
    digest = hashlib.blake2b()
    for each in tensors:
        digest.update(each.contiguous().flatten().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


def seed_of(*address: int) -> int:
    """A seed for a public address."""
    name = ",".join(map(str, address)).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1
