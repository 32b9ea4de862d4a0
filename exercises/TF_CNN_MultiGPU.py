# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A CNN on several devices in TensorFlow
#
# One program with one copy of the model on each device: `tf.distribute.MirroredStrategy`. It uses all the GPUs of the
# machine, or as many as you set below. Without GPUs, it uses logical devices on the CPU: as many as set, or one.
#
# Before you run it: with two devices instead of one, how will images per second, the seconds of training and the test
# accuracy change? Write your guesses down, with a reason for each.

# %%
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # only errors

import keras
import tensorflow as tf

tf.get_logger().setLevel("ERROR")
project = next(folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "exercises" / "data.py").exists())
sys.path.insert(0, str(project))
from exercises.data import load_examples

# %% [markdown]
# The same settings as in `PT_CNN_MultiGPU.py` and `PTL_multiGPU.py`. The batch size is that of all devices
# together: each device gets its share of a batch.

# %%
dataset = os.environ.get("DATASET", "digits")  # digits, mnist, fashion_mnist or cifar10
data_dir = os.environ.get("DATA_DIR", str(project / "data"))
num_devices = int(os.environ.get("NUM_DEVICES", "0"))  # 0: all GPUs, or one CPU device without GPUs
epochs = int(os.environ.get("EPOCHS", "10"))
batch_size = 64
learning_rate = 0.05
seed = 0

# %% [markdown]
# ## 1. Design the model
#
# The function is called later, in the scope of a strategy.


# %%
def make_model(image_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(32, kernel_size=3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Conv2D(64, kernel_size=3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(num_classes),
        ]
    )


# %% [markdown]
# ## 2. Set up the strategy
#
# Without GPUs, the CPU is split into logical devices. This must be done before TensorFlow uses it for the first time.

# %%
keras.utils.set_random_seed(seed)
gpus = tf.config.list_physical_devices("GPU")
if not gpus:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * (num_devices or 1))
devices = [device.name for device in tf.config.list_logical_devices("GPU" if gpus else "CPU")]
if num_devices > len(devices):
    raise SystemExit(f"NUM_DEVICES {num_devices}: there are {len(devices)} GPUs")
strategy = tf.distribute.MirroredStrategy(devices[: num_devices or None])
num_replicas = strategy.num_replicas_in_sync
if batch_size % num_replicas:
    raise SystemExit(f"batch_size {batch_size}: must be a multiple of the {num_replicas} devices")
print(f"TensorFlow on {num_replicas} x {'cuda' if gpus else 'cpu'}, batches of {batch_size}", flush=True)

# %% [markdown]
# ## 3. Read the data
#
# These are batches of the global size: the strategy splits each batch into shares. The first batch must split evenly:
# Keras learns the shapes from it, and fails if the shapes of the replicas differ.

# %%
data = load_examples(dataset, data_dir)
training = tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels))
training = training.shuffle(len(data.train_labels), seed=seed).batch(batch_size).prefetch(tf.data.AUTOTUNE)
testing = tf.data.Dataset.from_tensor_slices((data.test_images, data.test_labels)).batch(batch_size)

# %% [markdown]
# ## 4. Train, and 5. evaluate after each epoch
#
# Variables that are created in the scope are mirrored: each device has a copy of every variable. The copies stay the
# same, since the replicas' gradients are added up in every step.


# %%
class Report(keras.callbacks.Callback):
    seconds = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.start = clock()

    def on_test_begin(self, logs=None):  # the epoch's training is done
        self.epoch_seconds = clock() - self.start

    def on_epoch_end(self, epoch, logs=None):
        self.seconds += self.epoch_seconds
        self.accuracy, self.speed = logs["val_accuracy"], len(data.train_labels) / self.epoch_seconds
        print(f"epoch {epoch + 1:2}: test accuracy {self.accuracy:.2%}, {self.speed:,.0f} images/s", flush=True)


def clock() -> float:
    """Seconds, read after the devices have finished all their work: a GPU works asynchronously to the program."""
    tf.test.experimental.sync_devices()
    return time.perf_counter()


with strategy.scope():
    model = make_model(data.train_images.shape[1:], data.num_classes)
    schedule = keras.optimizers.schedules.CosineDecay(learning_rate, decay_steps=epochs * len(training))
    model.compile(
        optimizer=keras.optimizers.SGD(schedule, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
report = Report()
history = model.fit(training, epochs=epochs, validation_data=testing, callbacks=[report], shuffle=False, verbose=0)

# %% [markdown]
# ## 6. Display the results

# %%
last = f"test accuracy {report.accuracy:.2%}, {report.speed:,.0f} images/s in the last epoch"
print(f"{last}, {report.seconds:.1f} s of training")
