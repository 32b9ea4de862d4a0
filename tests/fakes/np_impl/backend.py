"""A further framework, NumPy: the cnn on one device. It shows what an implementation has to bring along.

The network's passes and the update rule are the plain formulas that audits use.
"""

import numpy as np

from common.backend import Backend
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.platform.machine import cpu_name
from common.resolve import AutoSettings, resolve_devices, resolve_settings
from common.spec.state import TrainState
from comparison.prove.reference import ReferencePass, apply_gradients, batch_positions, compute_gradients


class Numpy(Backend):
    name = "np"

    def resolve(self, config):
        if (config.model, config.mode) != ("cnn", "plain"):
            raise UserError("numpy has --model cnn and --mode plain only")
        return resolve_settings(resolve_devices(config, self.title, 0, Launch.read(), ()), AutoSettings())

    def join(self, experiment, launch):
        self.dtype = {"32": np.float32, "64": np.float64}[experiment.config.precision]

    def train(self, experiment, recorder):
        data, weights = experiment.dataset, self.rounded(experiment.initial_weights)
        zeros = {name: np.zeros_like(array) for name, array in weights.items()}
        state = TrainState(0, weights, dict.fromkeys(experiment.update_rule.rule.slots, zeros))
        for epoch in range(1, experiment.plan.num_epochs + 1):
            recorder.start_epoch()
            for step in experiment.plan.steps(epoch):
                ((chosen,),) = batch_positions(experiment, step, epoch)
                guesses = logits_of(experiment, state.weights, data.train_images[chosen]).argmax(1)
                found = compute_gradients(experiment, state)
                recorder.step(found.loss, np.sum(guesses == data.train_labels[chosen]))
                after = apply_gradients(experiment, state, found.gradients, found.statistics)
                slots = {slot: self.rounded(arrays) for slot, arrays in after.slots.items()}
                state = TrainState(step, self.rounded(after.weights), slots)
                recorder.offer_state(lambda _, state=state: state)
            recorder.end_training()
            recorder.start_evaluation()
            logits, labels = logits_of(experiment, state.weights, data.test_images), data.test_labels
            losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
            recorder.end_epoch(losses.sum(), int(np.sum(logits.argmax(1) == labels)), len(labels))
        recorder.save_predictions(logits)
        recorder.finish(state.weights, ("numpy",), None, None)

    def rounded(self, arrays):
        return {name: array.astype(self.dtype) for name, array in arrays.items()}

    def classify(self, experiment):
        return logits_of(experiment, experiment.initial_weights, experiment.dataset.test_images)

    def device_name(self, config):
        return cpu_name()

    def fetch(self, steps, numbers):
        return [(float(loss), float(correct)) for loss, correct in steps], numbers

    def synchronize(self):
        pass

    def ran_out_of_memory(self, error):
        return isinstance(error, MemoryError)


def logits_of(experiment, weights, images):
    """(n, H, W, C) -> float64 (n, classes)."""
    inputs = (images.astype(np.float64) - experiment.dataset.shift) * experiment.dataset.scale
    return ReferencePass(weights, trains=False).through_network(experiment.network, inputs)[0]


BACKEND = Numpy()
