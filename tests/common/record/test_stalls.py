import sys

import pytest
from conftest import ONE_ROUND, changed_code, run

SCRIPT = """
import sys, time
from pathlib import Path
from common.record import stalls
stalls.STALL_SECONDS, stalls.LOOK_SECONDS, stalls.TELL_SECONDS = 1.0, 0.1, 0.5
steps, phase = None, sys.argv[1]
watch = stalls.StallWatch(0, Path(sys.argv[2]), lambda: steps)
time.sleep(1.5 if phase == "slow start" else 0.15)
if phase != "evaluation":
    steps = 1
if phase == "slow steps":
    for steps in range(2, 6):
        time.sleep(0.4)
if phase == "ended":
    watch.close()
time.sleep(2.5)
"""


@pytest.mark.quick("stalls", "slow steps")
@pytest.mark.parametrize("phase", ["stalls", "evaluation", "slow start", "slow steps", "ended"])
def test_a_training_without_steps_is_ended_unless_its_steps_take_long(tmp_path, phase):
    done = run(sys.executable, "-c", SCRIPT, phase, tmp_path, expect=int(phase == "stalls"))
    words = "no step for 1 seconds: did a replica skip what the others wait for? replica 0 has taken 1 steps and is in"
    assert (words in done.stderr) == (phase == "stalls")


WAITS = "    if torch.distributed.get_rank() == 1 and RATE == 12:\n        torch.distributed.barrier()\n"
ZERO = "    optimizer.zero_grad(set_to_none=not parts.keeps_gradients)\n"
BEGIN = "    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, torch.Tensor]:\n"
IN_STEP = "".join(f"    {line}\n" for line in WAITS.replace("RATE", "self.global_step").splitlines())
SKIPS = {
    "pt": ("pt_impl/train.py", ZERO, ZERO + WAITS.replace("RATE", "parts.scheduler.last_epoch")),
    "ptl": ("ptl_impl/train.py", BEGIN, BEGIN + IN_STEP),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SKIPS)
def test_replicas_that_wait_for_each_other_are_named(tmp_path, name):
    folder = changed_code(tmp_path / "copy", *SKIPS[name])
    stalls = folder / "common" / "record" / "stalls.py"
    stalls.write_text(stalls.read_text().replace("STARTS, STEPS = 45.0", "STARTS, STEPS = 4.0"))
    command = (sys.executable, "compare.py", "--implementations", name, "--verify", "never", "--devices", 2)
    done = run(*command, *ONE_ROUND, "--epochs", 3, "--output-dir", tmp_path / "r", cwd=folder, expect=1)
    assert "did a replica skip what the others wait for? replica 0 has taken 12 steps and is in" in done.stdout
    assert f"replica 1 has taken 12 steps and is in {name}_impl/train.py" in done.stdout
