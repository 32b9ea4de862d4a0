"""keras_impl in tuned mode without one of its measures; see benchmarks.measures."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_impl.launch
from benchmarks.loops.keras_limit import make_bare
from benchmarks.without import replace, run_without
from common.platform.program import as_program
from keras_impl import tuning
from keras_impl.data import make_dataset
from keras_impl.train import Classifier, Recording

WITHOUT = {
    "several-steps": lambda: replace(tuning, MOST_STEPS=1, TunedClassifier=Classifier, TunedRecording=Recording),
    "no-autotune": lambda: replace(tuning, make_dataset=make_dataset),
}

if __name__ == "__main__":
    with as_program("keras_without"):
        run_without("keras", WITHOUT, make_bare, keras_impl.launch)
