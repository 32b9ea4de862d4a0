"""tf_impl in tuned mode without one of its measures; see benchmarks.measures."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tf_impl.launch
from benchmarks.loops.tf_limit import make_bare
from benchmarks.without import replace, run_without
from common.platform.program import as_program
from common.record.recorder import Recorder

WITHOUT = {
    "several-steps": lambda: replace(Recorder, steps_to_go=lambda recorder: 1),
}

if __name__ == "__main__":
    with as_program("tf_without"):
        run_without("tf", WITHOUT, make_bare, tf_impl.launch)
