"""Everything that a configuration determines without a framework: data, network, weights, steps and update rule."""

import os
from dataclasses import dataclass

from common.data.datasets import Dataset, load_dataset
from common.platform.errors import UserError
from common.platform.files import read_safetensors
from common.spec.augmentation import Augmentation
from common.spec.batches import Plan
from common.spec.networks import NetworkSpec, Weights
from common.spec.options import TrainConfig
from common.spec.state import TrainState
from common.spec.update_rule import UpdateRule

MAX_RESIDENT_BYTES = 512 * 2**20  # of all images
RESIDENT_VARIABLE = "MAX_RESIDENT_BYTES"  # in the environment: another limit, for tests


@dataclass(frozen=True)
class Experiment:
    """Data, augmentation, network, initial weights, steps and update rule of one configuration.

    Attributes:
      state: the state that training continues from, see `common.record.checkpoints`; None if it starts from scratch.
    """

    config: TrainConfig
    dataset: Dataset
    network: NetworkSpec
    plan: Plan
    update_rule: UpdateRule
    augmentation: Augmentation | None
    initial_weights: Weights
    state: TrainState | None = None

    def __deepcopy__(self, memo: object) -> "Experiment":
        """Returns itself: an experiment never changes, and a copy would read the whole data set into memory."""
        return self

    @property
    def first_weights(self) -> Weights:
        """The weights with which this process starts."""
        return self.state.weights if self.state else self.initial_weights

    @property
    def is_resident(self) -> bool:
        """Whether mode tuned puts the data set into every device's memory. A larger one it streams to the devices."""
        limit = int(os.environ.get(RESIDENT_VARIABLE, MAX_RESIDENT_BYTES))
        return self.dataset.train_images.nbytes + self.dataset.test_images.nbytes <= limit

    @classmethod
    def make(cls, config: TrainConfig, dataset: Dataset | None = None) -> "Experiment":
        """The experiment of `config`, with the data set of `config` unless `dataset` is given.

        Raises UserError if the configuration can't be trained, because of data, image size, augmentation, warm-up or
        weights.
        """
        dataset = dataset or load_dataset(config)
        network = NetworkSpec.make(config.model, dataset.image_shape, dataset.num_classes)
        if network.is_own and config.precision.endswith("mixed"):
            raise UserError(f"--precision {config.precision}: a network of your own trains with --precision 32 or 64")
        if config.label_smoothing and network.has_own_loss:
            raise UserError(f"--label-smoothing {config.label_smoothing}: --model {config.model} has a loss of its own")
        if network.prepared and not (network.scores_classes or network.has_own_loss):
            outputs = f"{network.prepared.num_outputs} outputs for {network.num_classes} classes"
            raise UserError(f"--model {config.model}: returns {outputs}, and has no loss of its own")
        plan = config.plan(len(dataset.train_images))
        augmentation = Augmentation.of(config, dataset.image_shape)
        if config.warmup_steps >= plan.schedule_steps:
            raise UserError(f"--warmup-steps {config.warmup_steps}: the whole run has only {plan.schedule_steps} steps")
        if config.initial_weights is None:
            weights = network.initial_weights(config.seed)
        else:
            arrays = read_safetensors(config.initial_weights, "--initial-weights ")
            weights = network.check(arrays, f"--initial-weights {config.initial_weights}")
        return cls(config, dataset, network, plan, UpdateRule.make(config, plan), augmentation, weights)
