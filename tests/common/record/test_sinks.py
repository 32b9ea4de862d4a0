"""The terminal of a run: a bar for people at a terminal, lines alone elsewhere."""

import pytest
from rich.console import Console

from common.record import sinks
from common.record.sinks import TrainingProgressSink
from common.spec.batches import Plan

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
OPEN_MPI |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(("variables", "expected"), [({}, True), (OPEN_MPI, False)])
def test_a_launcher_that_collects_output_gets_no_bar(monkeypatch, capsys, variables, expected):
    """mpirun gives a terminal to its programs although it may write what they print to a file."""
    monkeypatch.setattr(sinks, "Console", lambda **options: Console(force_terminal=True, **options))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    plan = Plan.make(100, 10, epochs=1, max_steps=-1)
    shown = TrainingProgressSink("PyTorch", "cpu", plan)
    shown._bar.start()
    shown.steps(5, [1.5], None)
    shown.close()
    assert ("loss 1.5" in capsys.readouterr().out) == expected
