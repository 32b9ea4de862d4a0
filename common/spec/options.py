"""The options of one training run: typed, bounded, frozen, the same for every implementation.

Each option states at its field what it determines (its kind), and so which runs reset it to its neutral value.
"""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, Field, model_validator

from common.platform.cli import as_typed, option_name
from common.spec.batches import Plan
from common.spec.networks import NETWORK_FOLDERS
from common.spec.optimizers import RULES, OptimizerName
from common.spec.own_network import is_folder
from common.spec.schedules import SCHEDULES, ScheduleName

# --- What an option is ---

# Runs that do not have all options of the training that they are for. row: a measured run, which is in a table;
# rate search: chooses a learning rate; side run: a proof, a profile, a check of learning; memorise: memorises a few
# images; use: evaluate and predict.
Purpose = Literal["row", "rate search", "side run", "memorise", "use"]
# What an option determines, its kind -> the runs that reset it.
RESET_IN: dict[str, tuple[Purpose, ...]] = {
    "data": (),  # the examples
    "place": (),  # where they are, and the initial weights
    "network": (),
    "training": ("use",),  # how a step is computed, and how the network is evaluated
    "schedule": ("memorise", "use"),  # how many steps, and the learning rate of each
    "regularisation": ("memorise", "use"),  # what keeps a network from memorising the training images
    "machine": ("use",),  # the devices
    "setting": ("use",),  # what the modes choose if it is not given
    "output": ("use",),  # the run's own files
    "resuming": ("side run", "use"),  # checkpoints
    "logging": ("rate search", "side run", "use"),  # what is recorded in addition
    "profiling": ("row", "rate search", "side run", "use"),  # what needs a run of its own
}
UNTRAINED_KINDS = ("place", "output", "resuming", "logging", "profiling")  # kinds that do not affect what is trained
TRAINED_KINDS = tuple(kind for kind in RESET_IN if kind not in UNTRAINED_KINDS)
# Where --help shows an option: among the ones used most, under the heading of its kind, or nowhere, since only this
# program gives it to its own runs.
Shown = Literal["first", "by kind", "never"]


def option(kind: str, default: Any, neutral: Any = ..., shown: Shown = "by kind", **details: Any) -> Any:
    """A field of a configuration; the docstring below it is its description in --help.

    Args:
      neutral: the value in runs that reset this option; the default unless it is given.
      shown: where --help shows it.
      details: passed to pydantic's `Field`.
    """
    extra = {"kind": kind, "neutral": default if neutral is ... else neutral, "shown": shown}
    return Field(default, json_schema_extra=extra, **details)


def neutral_option_values(schema: type[BaseModel], *kinds: str) -> dict[str, Any]:
    """Name -> neutral value of the options of these kinds in `schema`, in their order."""
    extras = {name: field.json_schema_extra for name, field in schema.model_fields.items()}
    return {
        name: extra["neutral"] for name, extra in extras.items() if isinstance(extra, dict) and extra["kind"] in kinds
    }


def options_of_kind(schema: type[BaseModel], *kinds: str) -> list[str]:
    """Names of the options of these kinds in `schema`, in their order."""
    return list(neutral_option_values(schema, *kinds))


# --- The types of values ---

DATASET_NAMES = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "synthetic")
LoggerName = Literal["tensorboard", "wandb"]
Mode = Literal["tutorial", "plain", "tuned"]
MODES: tuple[Mode, ...] = get_args(Mode)
ABOUT_MODES: dict[Mode, str] = {
    "tutorial": "the program that the framework's documentation teaches",
    "plain": "the framework's own step and loop, on batches that are gathered from arrays",
    "tuned": "plain, plus what measurably makes it faster",
}
ABOUT_MODE = "; ".join(f"{mode}: {words}" for mode, words in ABOUT_MODES.items()) + "; see docs/performance.md"
Accelerator = Literal["cpu", "gpu"]
# Lightning's names, for the strategies that Lightning has.
Strategy = Literal[
    "single_device",
    "ddp",
    "ddp_find_unused_parameters_true",
    "dp",
    "fsdp",
    "mirrored",
    "multi_worker_mirrored",
    "pipeline",
]
DEVICES_OF: dict[str, int] = {"single_device": 1, "pipeline": 2}  # strategies with a fixed number of devices
Precision = Literal["32", "64", "bf16-mixed", "16-mixed"]  # Lightning's names

MAX_COUNT = 2**31 - 1
Number = Annotated[int, Field(gt=0, le=MAX_COUNT)]  # of examples, steps, epochs and the like
MAX_SIDE = 4096  # upper bound for height, width and channels of images
Side = Annotated[int, Field(gt=0, le=MAX_SIDE)]
ImageShape = tuple[Side, Side, Side]
AutoOrCount = Literal["auto"] | Annotated[int, Field(gt=0, le=1024)]
AutoOrBool = Literal["auto"] | bool


def _name_or_path(names: Collection[str], example: str) -> Callable[[str], str]:
    """Checks that a value is one of `names`, or the path of something of the user's, which becomes absolute."""

    def check(value: str) -> str:
        if value in names:
            return value
        if "/" in value or Path(value).exists():
            return str(Path(value).resolve())
        raise ValueError(f"should be one of {', '.join(names)}, or a path such as {example}")

    return check


DatasetName = Annotated[str, AfterValidator(_name_or_path(DATASET_NAMES, "./photos"))]
ModelName = Annotated[str, AfterValidator(_name_or_path(NETWORK_FOLDERS, "./mynet"))]

# A hyperparameter. It is stored as typed; common/spec/update_rule.py rounds it to float32, for all implementations.
Real = Annotated[float, Field(le=1e38, allow_inf_nan=False)]

MAX_CLASSES = 10_000
ClassNames = Annotated[list[str], Field(min_length=2, max_length=MAX_CLASSES)]  # in the order of the labels


def _defaults(name: str) -> str:
    """The defaults of a hyperparameter by update rule: `0.05 (sgd), 0.001 (adam, adamw)`."""
    names: dict[str, list[str]] = {}
    for optimizer, rule in RULES.items():
        names.setdefault(f"{getattr(rule, name):g}", []).append(optimizer)
    return ", ".join(f"{value} ({', '.join(of)})" for value, of in names.items())


# --- The options ---


class TrainingOptions(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """The options of a training. `python -m <implementation> --help` prints all of them.

    Raises ValidationError if a value has the wrong type, is out of bounds, or contradicts another one.
    """

    # Heading of --help -> the kinds of the options under it.
    headings: ClassVar[dict[str, tuple[str, ...]]] = {
        "data and network": ("data", "place", "network"),
        "training": ("training", "schedule", "regularisation"),
        "devices and number formats": ("machine", "setting"),
        "files, logs and profiles": ("output", "resuming", "logging", "profiling"),
    }

    # --- Data, network and augmentation ---

    dataset: DatasetName = option(
        "data",
        "digits",
        description=f"the data set: {', '.join(DATASET_NAMES)}; or your own, a folder of images such as ./photos with a"
        " sub-folder for each class, or an .npz, of which arrays are made beside it once",
        shown="first",
    )
    data_dir: Path = option("place", Path("data"), shown="first")
    """folder of data sets in torchvision's layout, for all but digits and synthetic; what is missing is downloaded"""
    image_shape: ImageShape | None = option("data", None)
    """height, width and channels of synthetic images, or that images of your own are brought to; unset: 28 28 1 and
    64 64 3"""
    train_size: Number | None = option("training", None)
    """use the first N training examples (synthetic: make N); unset: all (synthetic: 8192)"""
    test_size: Number | None = option("data", None)
    """use the first N test examples (synthetic: make N); unset: all (synthetic: 1024)"""

    model: ModelName = option(
        "network",
        "cnn",
        description=f"the network: {', '.join(NETWORK_FOLDERS)}; or a folder with your own, such as ./mynet",
        shown="first",
    )
    sync_batchnorm: bool = option("network", False)
    """batch normalisation over the batch of all replicas, not over each one's shard"""

    epochs: Number = option("schedule", 12, neutral=1, shown="first")
    """passes over the training set"""
    max_steps: int = option("schedule", -1, ge=-1, le=MAX_COUNT)
    """stop after N steps; -1: no limit"""
    batch_size: Number = option("training", 64, shown="first")
    """global batch size, all devices together"""
    label_smoothing: Real = option("regularisation", 0.0, ge=0, lt=1)
    """share of each training label that is spread evenly over all classes"""
    random_crop: int = option("regularisation", 0, ge=0, le=MAX_SIDE)
    """pad training images with N black pixels on each side, and crop them at random back to their size"""
    horizontal_flip: bool = option("regularisation", False)
    """mirror half of the training images, at random"""

    # --- Update rule and schedule ---

    optimizer: OptimizerName = option("training", "sgd")
    """the update rule, in PyTorch's form"""
    learning_rate: Real | None = option(
        "training",
        None,
        description=f"the learning rate, or the peak of its schedule; unset: {_defaults('learning_rate')}",
        shown="first",
        gt=0,
    )
    warmup_steps: int = option("schedule", 0, ge=0, le=MAX_COUNT)
    """steps of linear warm-up before the schedule starts"""
    schedule: ScheduleName = option("schedule", "cosine", neutral="constant")
    """the learning rate after warm-up; cosine: down to zero, nearly reached in the last step; step: times --gamma every
    --step-size epochs; one-cycle: up to the peak and down again"""
    step_size: Number | None = option("schedule", None)
    """schedule step: epochs between two changes; unset: a third of all"""
    gamma: Real | None = option("schedule", None, gt=0, le=1)
    """schedule step: factor of each change; unset: 0.1"""
    momentum: Real | None = option("training", None, ge=0, lt=1)
    """sgd: momentum; unset: 0.9"""
    nesterov: bool | None = option("training", None)
    """sgd: Nesterov momentum; unset: false"""
    weight_decay: Real | None = option(
        "regularisation",
        None,
        neutral=0.0,
        description="L2 penalty added to every gradient; adamw: subtracted from the weights directly; unset:"
        f" {_defaults('weight_decay')}",
        ge=0,
    )
    accumulate_grad_batches: Number = option("training", 1)
    """batches whose gradients are combined into one step: K batches act as one K times as large"""
    gradient_clip_val: Real | None = option("training", None, gt=0)
    """if the norm of all gradients together is larger than this, scale them down to it; unset: never"""

    # --- Devices and number formats ---

    accelerator: Literal["auto", Accelerator] = option("machine", "auto")
    """auto: the GPU where there is one"""
    devices: AutoOrCount = option("machine", "auto", neutral=1, shown="first")
    """number of devices on each node, each a replica unless --strategy says otherwise; auto: 1 on the CPU, all GPUs, or
    as many as a launcher such as torchrun has started"""
    num_nodes: AutoOrCount = option("machine", "auto")
    """number of machines; a launcher (torchrun, srun, mpirun) starts this program on each of them, or with Lightning
    you start it yourself; auto: as the launcher says, else 1"""
    strategy: Literal["auto", Strategy] = option("machine", "auto", neutral="single_device")
    """how devices work together. mirrored (TensorFlow, Keras), ddp (PyTorch, Lightning): each has the whole network and
    a shard of the batch; ddp_find_unused_parameters_true: ddp that looks for weights without a gradient; dp (PyTorch,
    GPUs): torch.nn.DataParallel; fsdp (PyTorch, Lightning): each has its share of every weight, gradient and optimizer
    state, and a shard of the batch; pipeline (not Keras): each of two devices has one stage of the network. auto:
    single_device for one device, mirrored or ddp for several"""
    stages: tuple[Accelerator, Accelerator] | None = option("machine", None)
    """where the two stages of --strategy pipeline are: cpu or gpu, each; unset: both on --accelerator"""
    microbatches: Number = option("machine", 1)
    """parts of a batch that go through the stages of --strategy pipeline one after the other, so that both have work;
    the last batch of an epoch, if N does not divide it, goes through whole"""
    threads_per_device: AutoOrCount = option("machine", "auto")
    """CPU threads of each replica; auto: an even share of the cores"""
    precision: Literal["auto", Precision] = option("setting", "auto")
    """32, 64: bits of every float; mixed: 32-bit weights, layers computed in bfloat16 or float16, the latter with
    dynamic loss scaling; auto: 32, or what mode tuned chooses"""
    compile: AutoOrBool = option("setting", "auto")
    """compile the training step's forward and backward pass: torch.compile, XLA; auto: false, or what mode tuned
    chooses; JAX always compiles the whole step"""
    tf32: AutoOrBool = option("setting", "auto")
    """let a GPU round the inputs of 32-bit products to 10 of their 23 mantissa bits, which is faster; auto: false, or
    what mode tuned chooses"""

    # --- What is written ---

    logger: tuple[LoggerName, ...] = option("logging", ())
    """also log losses, accuracy, learning rate, speed and hyperparameters to TensorBoard (files in --run-dir) or
    Weights & Biases (offline without an account); needs requirements/loggers.txt"""
    profile: int | None = option("profiling", None, gt=0, le=10**4)
    """profile N steps after warm-up with the framework's own profiler: the costliest operations, and a trace for
    Perfetto or TensorBoard; compare.py does this in separate runs; unset: never"""
    checkpoint_every: Literal["epoch"] | Number | None = option("resuming", None)
    """write a checkpoint after every N steps, or each epoch, and when a signal ends the run; unset: never"""

    @property
    def nodes(self) -> int:
        """Number of nodes; 1 while it is auto."""
        return 1 if self.num_nodes == "auto" else self.num_nodes

    @property
    def all_devices(self) -> int:
        """Number of devices on all nodes, in a resolved configuration."""
        return int(self.devices) * self.nodes

    @property
    def num_shards(self) -> int:
        """Number of shards of a batch: one for each process, or for each replica if one process has several.

        It is 1 if the stages of a pipeline pass the batch on, or if torch.nn.DataParallel cuts the batch by itself.
        """
        return 1 if self.strategy in ("pipeline", "dp") else self.all_devices

    @property
    def stages_on(self) -> tuple[Accelerator, ...]:
        """Kind of each device of a node, in a resolved configuration."""
        assert self.accelerator != "auto" and self.devices != "auto"
        return self.stages or (self.accelerator,) * self.devices

    @property
    def num_gpus(self) -> int:
        """Number of GPUs used on each node, in a resolved configuration."""
        return self.stages_on.count("gpu")

    @property
    def network_name(self) -> str:
        """For people, and for names of folders: that of `--model`, or of the user's folder."""
        return Path(self.model).name

    @property
    def has_own_network(self) -> bool:
        """Whether `--model` names a folder of the user's."""
        return is_folder(self.model)

    @property
    def dataset_name(self) -> str:
        """As `network_name`."""
        return Path(self.dataset).name

    @model_validator(mode="after")
    def _fits_its_rule(self) -> Self:
        """Hyperparameters that are given belong to the update rule and to the schedule that are chosen."""
        for chooser, kinds in (("optimizer", RULES), ("schedule", SCHEDULES)):
            chosen = getattr(self, chooser)
            names = {kind: [field.name for field in fields(schema)] for kind, schema in kinds.items()}
            for name in dict.fromkeys(sum(names.values(), [])):
                value = getattr(self, name)
                if value is not None and name not in names[chosen]:
                    having = " or ".join(kind for kind, of_kind in names.items() if name in of_kind)
                    raise ValueError(f"{option_name(name)} {as_typed(value)}: needs --{chooser} {having}, not {chosen}")
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        stages, pipeline = as_typed(self.stages), self.strategy == "pipeline"
        if self.nesterov and self.momentum == 0:
            raise ValueError("--nesterov true needs --momentum above 0")
        if self.stages and self.accelerator != "auto" and (self.accelerator == "gpu") != ("gpu" in self.stages):
            raise ValueError(f"--stages {stages}: at odds with --accelerator {self.accelerator}")
        if self.stages and not pipeline:
            raise ValueError(f"--stages {stages}: needs --strategy pipeline")
        if self.microbatches > 1 and not pipeline:
            raise ValueError(f"--microbatches {self.microbatches}: needs --strategy pipeline")
        if self.batch_size % self.microbatches:
            raise ValueError(f"--microbatches {self.microbatches}: does not divide --batch-size {self.batch_size}")
        if self.max_steps == 0:
            raise ValueError("--max-steps 0: at least 1, or -1 for no limit")
        if self.image_shape and self.dataset in DATASET_NAMES and self.dataset != "synthetic":
            shape = as_typed(self.image_shape)
            raise ValueError(f"--image-shape {shape}: only for --dataset synthetic and your own, not {self.dataset}")
        return self


class TrainConfig(TrainingOptions):
    """The options of one run of one implementation."""

    mode: Mode = option("setting", "plain", shown="first", description=ABOUT_MODE)
    run_dir: Path | None = option("output", None, shown="first")
    """folder for this run's files; unset: a new one under runs/"""
    resume: Literal["auto"] | Path | None = option("resuming", None, shown="first")
    """continue from this checkpoint, or from the latest one in this run folder, made by any implementation; auto: from
    the latest in --run-dir, or from the start if there is none"""
    seed: int = option("data", 0, ge=0, lt=2**63)
    """seed of initial weights, example order, dropout, augmentation and synthetic data"""
    initial_weights: Path | None = option("place", None)
    """a model.safetensors to start from; unset: made from --seed"""
    verify_steps: int | None = option("training", None, ge=4, le=MAX_COUNT)
    """train only N steps, as the proof does: the first batches and the last one of each epoch, with the learning rates
    of the whole training"""
    evaluate_on: Literal["test", "train"] = option("training", "test")
    """the examples to evaluate on after each epoch; train: the first --test-size training examples, unset: all; results
    are called test_... in both cases"""
    dry_run: bool = option("output", False)
    """only write config.json, with every auto resolved"""
    log_every_n_steps: Number = option("output", 50, shown="never")
    """fetch and write the step losses every N steps and at each epoch's end"""
    save_first_batch: bool = option("output", False, shown="never")
    """also write first_batch.safetensors: activations and gradients on the first batch"""

    @property
    def examples_per_step(self) -> int:
        """Number of examples in all batches of a step, all devices together."""
        return self.batch_size * self.accumulate_grad_batches

    def plan(self, train_size: int) -> Plan:
        """The steps of a training on `train_size` examples."""
        steps = self.epochs, self.max_steps, self.verify_steps
        return Plan.make(train_size, self.batch_size, *steps, self.accumulate_grad_batches)

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some fields changed."""
        return type(self)(**{**self.model_dump(), **changes})

    def made_for(self, purpose: Purpose, **changes: Any) -> Self:
        """A validated copy for a run with this purpose: with what such a run resets reset, and some fields changed."""
        kinds = [kind for kind, purposes in RESET_IN.items() if purpose in purposes]
        return self.replace(**{**neutral_option_values(type(self), *kinds), **changes})

    def training_fields(self) -> dict[str, Any]:
        """The fields that determine what is trained and on how many devices, without paths, as JSON values."""
        return self.model_dump(mode="json", exclude={*options_of_kind(type(self), *UNTRAINED_KINDS)})

    def sha256(self) -> str:
        """Hex digest over `training_fields`: equal if and only if two runs have the same values of these fields."""
        text = json.dumps(self.training_fields(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
