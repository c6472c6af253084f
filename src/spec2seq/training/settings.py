"""What drafter to train, and how. Imports no torch, so that --help stays fast."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from spec2seq.errors import OptionError
from spec2seq.training.shapes import BlockwiseShape, FeatureShape, SpecShape

if TYPE_CHECKING:
    from spec2seq.training.shapes import DrafterShape, Kind

SlotWeights = Literal["uniform", "survival", "decay"]
SLOT_WEIGHTS: tuple[SlotWeights, ...] = get_args(SlotWeights)
Schedule = Literal["inverse_sqrt", "linear"]
Targets = Literal["tokens", "laws"]
TARGETS: tuple[Targets, ...] = get_args(Targets)
Optimizer = Literal["adamw", "muon"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)


@dataclass(frozen=True)
class Objective:
    """What is minimised. The defaults are the paper's.

    Attributes:
        label_smoothing: share of the weight that is spread over the vocabulary.
        first_glancing, last_glancing: revealed slots per wrong one at the start and at the end; 0 and 0: none.
        num_cuts: blocks per target and step; they share one pass of the encoder.
        slot_weights: see `losses.slot_weights`.
        targets: what a slot learns: the verifier's "tokens", or its "laws", the whole distributions that these are the
            best of. Laws are known where the verifier's states are read.

    Raises:
        OptionError: a value that cannot be.
    """

    label_smoothing: float = 0.1
    first_glancing: float = 0.5
    last_glancing: float = 0.3
    num_cuts: int = 1
    slot_weights: SlotWeights = "uniform"
    targets: Targets = "tokens"

    def __post_init__(self) -> None:
        for name in ("label_smoothing", "first_glancing", "last_glancing"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise OptionError(f"{name}={value} is not allowed: use a number from 0 up to, not including, 1")
        if self.num_cuts < 1:
            raise OptionError(f"num_cuts={self.num_cuts} is not allowed: use 1 or more")
        if self.slot_weights not in SLOT_WEIGHTS:
            raise OptionError(
                f"slot_weights={self.slot_weights!r} is not allowed: use one of {', '.join(SLOT_WEIGHTS)}"
            )
        if self.targets not in TARGETS:
            raise OptionError(f"targets={self.targets!r} is not allowed: use one of {', '.join(TARGETS)}")


@dataclass(frozen=True)
class TrainingSettings:
    """The paper's settings where they do not depend on the size of the data; those that do suit one CPU.

    Attributes:
        steps: updates.
        batch_tokens: most rows x (source + target + block) tokens per update and process.
        learning_rate: at the end of the warm-up.
        warmup_steps: updates until then.
        schedule: how the learning rate falls behind that: with the square root of the steps, or evenly to nothing.
        optimizer: "adamw", or "muon" (Jordan et al. 2024) for the matrices and AdamW for the rest, which learns more
            per update and takes a little longer for it.
        adam_beta2: how slowly AdamW forgets the sizes of gradients.
        weight_decay, max_grad_norm, dropout: as their names say.
        eval_steps: updates between two looks at the held-out pairs.
        save_steps: updates between two checkpoints.
        num_averaged: the drafter is the mean of the last so many checkpoints.
        num_held_out: pairs that are not trained on, at most a tenth of all.
        seed: of everything random.
        bf16: multiply in bfloat16 (automatic mixed precision); None: where the machine does so faster.
        tensorboard: write logs for TensorBoard.

    Raises:
        OptionError: a value that cannot be.
    """

    steps: int = 20000
    batch_tokens: int = 4096
    learning_rate: float = 5e-4
    warmup_steps: int = 1000
    schedule: Schedule = "inverse_sqrt"
    optimizer: Optimizer = "adamw"
    adam_beta2: float = 0.999
    weight_decay: float = 0.01
    max_grad_norm: float = 5.0
    dropout: float = 0.1
    eval_steps: int = 1000
    save_steps: int = 500
    num_averaged: int = 10
    num_held_out: int = 500
    seed: int = 0
    bf16: bool | None = None
    tensorboard: bool = False

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise OptionError(f"optimizer={self.optimizer!r} is not allowed: use one of {', '.join(OPTIMIZERS)}")
        for name in ("steps", "batch_tokens", "eval_steps", "save_steps", "num_averaged", "num_held_out"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)} is not allowed: use 1 or more")
        for name in ("learning_rate", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name}={getattr(self, name)} is not allowed: use a number above 0")
        for name in ("warmup_steps", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{name}={getattr(self, name)} is not allowed: use 0 or more")
        for name in ("dropout", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise OptionError(
                    f"{name}={getattr(self, name)} is not allowed: use a number from 0 up to, not including, 1"
                )


@dataclass(frozen=True)
class TrainingPlan:
    """What to train, and how.

    Raises:
        OptionError: laws for a Spec-Drafter, beside whose training no verifier runs.
    """

    shape: DrafterShape
    objective: Objective
    settings: TrainingSettings

    def __post_init__(self) -> None:
        if self.objective.targets == "laws" and isinstance(self.shape, SpecShape):
            raise OptionError("targets=laws has no place in a drafter of kind spec; leave it out")

    def as_job(self) -> dict[str, object]:
        """All of it, for comparing."""
        return {
            "kind": self.shape.kind,
            "shape": asdict(self.shape),
            "objective": asdict(self.objective),
            "settings": asdict(self.settings),
        }


# The networks are small and start from the verifier's own layers: they learn fast.
_QUICK = TrainingSettings(
    batch_tokens=2048,
    learning_rate=3e-3,
    warmup_steps=200,
    schedule="linear",
    adam_beta2=0.98,
    max_grad_norm=1.0,
    dropout=0.0,
)
_ON_STATES = Objective(label_smoothing=0.0, first_glancing=0.0, last_glancing=0.0, num_cuts=8, slot_weights="survival")

DEFAULT_PLANS: dict[Kind, TrainingPlan] = {
    "spec": TrainingPlan(SpecShape(), Objective(), TrainingSettings()),
    "feature": TrainingPlan(FeatureShape(), replace(_ON_STATES, targets="laws"), replace(_QUICK, optimizer="muon")),
    "blockwise": TrainingPlan(BlockwiseShape(), _ON_STATES, _QUICK),
}
"""What is trained, and how, unless something else is said."""
