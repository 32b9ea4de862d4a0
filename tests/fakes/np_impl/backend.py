"""A fifth framework, numpy: the cnn and SGD on one device. It shows what an implementation has to bring along."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from common.backend import Backend
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.platform.machine import cpu_name
from common.resolve import Settings, resolve_devices, resolve_settings
from common.spec.batches import epoch_order
from common.spec.state import TrainState


class Numpy(Backend):
    name = "np"

    def resolve(self, config):
        if (config.model, config.optimizer, config.mode) != ("cnn", "sgd", "plain"):
            raise UserError("numpy has --model cnn, --optimizer sgd and --mode plain only")
        return resolve_settings(resolve_devices(config, self.title, 0, Launch.read(), ()), Settings())

    def join(self, experiment, launch):
        self.dtype = {"32": np.float32, "64": np.float64}[experiment.config.precision]

    def train(self, experiment, recorder):
        config, plan, data, rule = experiment.config, experiment.plan, experiment.dataset, experiment.update_rule.rule
        weights = {name: array.astype(self.dtype) for name, array in experiment.initial_weights.items()}
        velocity = {name: np.zeros_like(array) for name, array in weights.items()}
        for epoch in range(1, plan.num_epochs + 1):
            order = epoch_order(config.seed, epoch, plan.train_size)
            recorder.start_epoch()
            for step, (start, stop, _) in zip(plan.steps(epoch), plan.shards(epoch, 1)[:, 0], strict=True):
                chosen = order[start:stop]
                inputs, labels = self.inputs(experiment, data.train_images[chosen]), data.train_labels[chosen]
                logits, backward = forward(weights, inputs)
                losses, gradient = cross_entropy(logits, labels)
                recorder.step(losses.mean(), np.sum(logits.argmax(1) == labels))
                for name, slope in backward(gradient / len(labels)).items():
                    slope = slope + self.dtype(rule.weight_decay) * weights[name]
                    velocity[name] = self.dtype(rule.momentum) * velocity[name] + slope
                    ahead = slope + self.dtype(rule.momentum) * velocity[name] if rule.nesterov else velocity[name]
                    weights[name] = weights[name] - self.dtype(experiment.update_rule.learning_rates[step - 1]) * ahead
                state = TrainState(step, dict(weights), {"velocity": dict(velocity)} if rule.slots else {})
                recorder.offer_state(lambda _, state=state: state)
            recorder.end_training()
            recorder.start_evaluation()
            logits, _ = forward(weights, self.inputs(experiment, data.test_images))
            losses, _ = cross_entropy(logits, data.test_labels)
            recorder.end_epoch(losses.sum(), int(np.sum(logits.argmax(1) == data.test_labels)), len(losses))
        recorder.save_predictions(logits)
        recorder.finish(weights, ("numpy",), None, None)

    def inputs(self, experiment, images):
        data = experiment.dataset
        return (images.astype(self.dtype) - data.shift.astype(self.dtype)) * data.scale.astype(self.dtype)

    def classify(self, experiment):
        self.join(experiment, Launch.read())
        weights = {name: array.astype(self.dtype) for name, array in experiment.initial_weights.items()}
        return forward(weights, self.inputs(experiment, experiment.dataset.test_images))[0]

    def device_name(self, config):
        return cpu_name()

    def fetch(self, steps, numbers):
        return [(float(loss), float(correct)) for loss, correct in steps], numbers

    def synchronize(self):
        pass

    def ran_out_of_memory(self, error):
        return isinstance(error, MemoryError)


def patches(images, size):
    """(n, H, W, C) -> (n, H, W, C, size, size): what a convolution sees at each place, with zeros around the images."""
    edge = size // 2
    padded = np.pad(images, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    return sliding_window_view(padded, (size, size), (1, 2))


def convolve(images, kernel):
    """(n, H, W, C) and (h, w, C, K) -> (n, H, W, K)."""
    return np.einsum("nxychw,hwck->nxyk", patches(images, len(kernel)), kernel, optimize=True)


def forward(weights, images):
    """Logits, and a function from their gradient to those of the weights, by canonical name."""
    undo, x = [], images
    for number in (1, 2):
        kernel, bias = weights[f"conv{number}.kernel"], weights[f"conv{number}.bias"]
        outputs = np.maximum(convolve(x, kernel) + bias, 0)
        n, height, width, channels = outputs.shape
        windows = outputs[:, : height // 2 * 2, : width // 2 * 2].reshape(n, height // 2, 2, width // 2, 2, channels)
        windows = windows.transpose(0, 1, 3, 5, 2, 4).reshape(n, height // 2, width // 2, channels, 4)
        undo.append((f"conv{number}", x, outputs, windows.argmax(-1)))
        x = windows.max(-1)
    flat = x.reshape(len(x), -1)
    hidden = np.maximum(flat @ weights["dense1.kernel"] + weights["dense1.bias"], 0)
    logits = hidden @ weights["dense2.kernel"] + weights["dense2.bias"]

    def backward(gradient):
        found = {"dense2.kernel": hidden.T @ gradient, "dense2.bias": gradient.sum(0)}
        gradient = gradient @ weights["dense2.kernel"].T * (hidden > 0)
        found |= {"dense1.kernel": flat.T @ gradient, "dense1.bias": gradient.sum(0)}
        gradient = (gradient @ weights["dense1.kernel"].T).reshape(x.shape)
        for name, inputs, outputs, largest in reversed(undo):
            n, rows, columns, channels = gradient.shape
            windows = np.zeros((*gradient.shape, 4), gradient.dtype)
            np.put_along_axis(windows, largest[..., None], gradient[..., None], -1)
            windows = windows.reshape(n, rows, columns, channels, 2, 2).transpose(0, 1, 4, 2, 5, 3)
            gradient = np.zeros_like(outputs)
            gradient[:, : 2 * rows, : 2 * columns] = windows.reshape(n, 2 * rows, 2 * columns, channels)
            gradient = gradient * (outputs > 0)
            kernel = weights[f"{name}.kernel"]
            seen = patches(inputs, len(kernel))
            found[f"{name}.kernel"] = np.einsum("nxychw,nxyk->hwck", seen, gradient, optimize=True)
            found[f"{name}.bias"] = gradient.sum((0, 1, 2))
            gradient = convolve(gradient, kernel[::-1, ::-1].swapaxes(2, 3))
        return found

    return logits, backward


def cross_entropy(logits, labels):
    """The loss of each example, and the gradient of their sum."""
    shifted = logits - logits.max(1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(labels))
    gradient = np.exp(logarithms)
    gradient[rows, labels] -= 1
    return -logarithms[rows, labels], gradient


BACKEND = Numpy()
