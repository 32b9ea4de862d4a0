"""Options for devices, for how they work together, and for number formats."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from common.spec.option_kinds import option

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
# Lightning's names of precisions are text, but YAML reads a bare 64 as a number. It is converted to text.
Precision = Literal["32", "64", "bf16-mixed", "16-mixed"]
AutoOrPrecision = Annotated[Literal["auto", Precision], BeforeValidator(lambda value: str(value))]
AutoOrCount = Literal["auto"] | Annotated[int, Field(gt=0, le=1024)]
AutoOrBool = Literal["auto"] | bool
DEVICES_OF: dict[str, int] = {"single_device": 1, "pipeline": 2}  # strategies with a fixed number of devices


class DeviceOptions(BaseModel):
    """Options for devices and settings; `common.devices` and `common.resolve` replace "auto" by values."""

    accelerator: Literal["auto", Accelerator] = option(
        "machine", "auto", description="auto: the GPU where there is one"
    )
    devices: AutoOrCount = option(
        "machine",
        "auto",
        description="number of devices on each node, each a replica unless --strategy says otherwise; auto: 1 on the"
        " CPU, all GPUs, or as many as a launcher such as torchrun has started",
    )
    num_nodes: AutoOrCount = option(
        "machine",
        "auto",
        description="number of machines; a launcher (torchrun, srun, mpirun) starts this program on each of them, or"
        " with Lightning you do; auto: as the launcher says, else 1",
    )
    strategy: Literal["auto", Strategy] = option(
        "machine",
        "auto",
        description="how devices work together. mirrored (TensorFlow, Keras), ddp (PyTorch, Lightning): each has the"
        " whole network and a shard of the batch; ddp_find_unused_parameters_true: ddp that looks for weights without"
        " a gradient; dp (PyTorch, GPUs): torch.nn.DataParallel; fsdp (PyTorch, Lightning): each has its share of every"
        " weight, gradient and optimizer state, and a shard of the batch; pipeline (not Keras): each of two has one"
        " stage of the network. auto: single_device for one device, mirrored or ddp for several",
    )
    stages: tuple[Accelerator, Accelerator] | None = option(
        "machine",
        None,
        description="where the two stages of --strategy pipeline are: cpu or gpu, each; unset: both on --accelerator",
    )
    microbatches: int = option(
        "machine",
        1,
        gt=0,
        le=10**6,
        description="parts of a batch that pass the stages of --strategy pipeline one after the other, so that both"
        " have work; the last batch of an epoch, if N does not divide it, passes whole",
    )
    threads_per_device: AutoOrCount = option(
        "machine", "auto", description="CPU threads of each replica; auto: an even share of the cores"
    )
    precision: AutoOrPrecision = option(
        "setting",
        "auto",
        description="32, 64: bits of every float; mixed: 32-bit weights, layers computed in bfloat16 or float16, the"
        " latter with dynamic loss scaling; auto: 32, or what mode tuned chooses",
    )
    compile: AutoOrBool = option(
        "setting",
        "auto",
        description="compile the training step's forward and backward pass: torch.compile, XLA; auto: false, or what"
        " mode tuned chooses",
    )
    tf32: AutoOrBool = option(
        "setting",
        "auto",
        description="let a GPU round the inputs of 32-bit products to 10 of their 23 mantissa bits, which is faster;"
        " auto: false, or what mode tuned chooses",
    )
    data_on: Literal["auto", "device", "host"] = option(
        "setting",
        "auto",
        description="host: the framework's own loader gathers batches and copies them; device (mode tuned): the data"
        " set in each device's memory, batches gathered there; auto: device in mode tuned up to 512 MiB (not in Keras),"
        " else host",
    )

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

    @model_validator(mode="after")
    def _fits_its_strategy(self) -> Self:
        if self.stages and self.accelerator != "auto" and (self.accelerator == "gpu") != ("gpu" in self.stages):
            raise ValueError(f"--stages {' '.join(self.stages)}: at odds with --accelerator {self.accelerator}")
        if self.strategy != "pipeline":
            if self.stages:
                raise ValueError(f"--stages {' '.join(self.stages)}: needs --strategy pipeline")
            if self.microbatches > 1:
                raise ValueError(f"--microbatches {self.microbatches}: needs --strategy pipeline")
        return self
