"""What a command line asks for: which runs, in which order and folders, with which options."""

import io
import threading
import time
from unittest.mock import Mock

import pytest
from conftest import REPOSITORY
from made_up import MadeUp, comparison, made_up_turns, write_missing
from rich.console import Console

from common.platform.cli import parse_options
from common.platform.errors import UserError
from comparison import load, run_maker
from comparison.plan.jobs import comparison_jobs, make_variants
from comparison.plan.options import CompareConfig
from comparison.prepare import prepare_comparison
from comparison.prove import audits
from comparison.run_maker import with_best_learning_rates


def study(**options):
    options = CompareConfig(**options)
    return options, make_variants(options, options.train_config().replace(accelerator="cpu"))


def test_seeds_and_sweeps_are_crossed_and_every_round_begins_with_another_row():
    jobs = list(comparison_jobs(*study(repeats=4)))
    rounds = [[job.implementation for job in jobs if job.round == number] for number in (1, 2, 3, 4)]
    assert rounds == [["tf", "pt", "ptl"], ["pt", "ptl", "tf"], ["ptl", "tf", "pt"], ["tf", "pt", "ptl"]]
    sweep = ["batch-size=32,64", "momentum=0,0.9"]
    jobs = list(comparison_jobs(*study(repeats=2, seeds=[5, 7], sweep=sweep, implementations=["pt", "ptl"])))
    assert len(jobs) == len({job.path for job in jobs}) == 2 * 2 * 4 * 2
    assert str(jobs[0].path) == "runs/batch-size=32,momentum=0/seed-5/round-1/pt"
    # Rounds are the outer loop: every variant is run before the next round begins, with another variant.
    assert len({job.variant.name for job in jobs[:8]}) == 4 and {(job.seed, job.round) for job in jobs[:8]} == {(5, 1)}
    assert jobs[8].variant.name != jobs[0].variant.name


def test_strong_scaling_keeps_the_batch_weak_scaling_multiplies_it_and_threads_are_shared_out(monkeypatch):
    monkeypatch.setattr("comparison.plan.jobs.num_cores", lambda: 8)
    _, variants = study(sweep=["devices=1,2,4"], batch_size=32)
    found = {one.name: (one.config.batch_size, one.config.threads_per_device) for one in variants}
    assert found == {
        "devices=1,scaling=strong": (32, 2),
        "devices=2,scaling=strong": (32, 2),
        "devices=2,scaling=weak": (64, 2),
        "devices=4,scaling=strong": (32, 2),
        "devices=4,scaling=weak": (128, 2),
    }
    _, variants = study(sweep=["num-nodes=1,3"], devices=2, batch_size=32)  # the devices on all nodes count
    assert [variant.config.batch_size for variant in variants] == [32, 64, 32, 192]
    assert {variant.config.threads_per_device for variant in variants} == {"auto"}  # each node has as many devices


def test_the_learning_rate_is_kept_or_scaled_with_the_batch():
    for sweep, rule, rates in (
        (["batch-size=32,64,256"], ["keep"], [0.05, 0.05, 0.05]),
        (["batch-size=32,64,256"], ["linear"], [0.025, 0.05, 0.2]),
        (["learning-rate=0.01,0.1", "batch-size=64,128"], ["linear"], [0.01, 0.02, 0.1, 0.2]),
    ):
        _, variants = study(sweep=sweep, sweep_learning_rate=rule)
        assert [variant.config.learning_rate for variant in variants] == pytest.approx(rates)


# --- The search for a learning rate ---

SEARCH = {"sweep": ["batch-size=32,64"], "sweep_learning_rate": [0.1, 0.2]}


def chosen(folder, make, target=None, only=lambda job: job.rate_search, **options):
    comparison(folder, make, only=only, **SEARCH, **options)
    summary = load(folder)
    variants = make_variants(summary.request.options, summary.request.config)
    runs = list(summary.ended)
    rates, again = (  # in whatever order the runs have ended
        [variant.config.learning_rate for variant in with_best_learning_rates(variants, ended, target)]
        for ended in (runs, runs[::-1])
    )
    assert rates == again
    return rates


def test_the_rate_is_chosen_by_the_target_then_the_accuracy(tmp_path):
    accuracies = {
        (32, 0.1): (0.2, 0.9, 0.91),  # reaches 0.9 in the second epoch
        (32, 0.2): (0.2, 0.3, 0.99),  # ends higher, but later
        (64, 0.1): (0.1, 0.1, 0.2),
        (64, 0.2): (0.1, 0.1, 0.3),  # target never reached: the higher accuracy counts
    }

    def make(job):
        return MadeUp(accuracies=accuracies[job.config.batch_size, job.config.learning_rate])

    assert chosen(tmp_path / "a", make, target=0.9, epochs=3) == [0.1, 0.2]
    # The first implementation searches, with a seed that is not reported.
    assert (tmp_path / "a" / "rate-search/batch-size=32/learning-rate=0.1/seed-1/round-1/tf").is_dir()
    assert chosen(tmp_path / "b", make, epochs=3) == [0.2, 0.2]
    assert chosen(tmp_path / "d", lambda job: MadeUp()) == [0.1, 0.1]  # both do equally well: the smaller one
    assert chosen(tmp_path / "c", lambda job: MadeUp(), only=lambda job: True) == [0.05, 0.05]  # keeps what has run


def test_a_rate_that_fails_with_a_seed_is_worse_than_one_that_does_not(tmp_path):
    def make(job):
        risky = job.config.learning_rate == 0.2
        failure = "exit status 1" if risky and job.seed == 3 else None
        return MadeUp(accuracies=(0.5, 0.99 if risky else 0.9), failure=failure)

    assert chosen(tmp_path / "a", make, seeds=[0, 1]) == [0.1, 0.1]
    with pytest.raises(UserError, match="none of the rates could be trained for batch-size=32: exit status 1: the rea"):
        chosen(tmp_path / "b", lambda job: MadeUp(failure="exit status 1"))


# --- Mistakes and notes, before anything is started ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--implementations tf mxnet", "--implementations mxnet: not one of"),
        ("--python tf=/none", "--python tf=/none: no program at /none"),
        ("--output-dir common", "--output-dir common: is not empty"),
        ("--ratio-within 0.01%", "--repeats 3: with --ratio-within, 3 rounds are run in any case"),
        ("--scaling weak", "--scaling weak: needs --sweep devices=N,N or num-nodes=N,N"),
        ("--resume nowhere", "--resume nowhere: holds no comparison"),
        ("--resume a --output-dir b", "--output-dir and --resume: give only one of them"),
        ("--sweep seed=1,2", "--sweep seed=1,2: --seed cannot be swept; seeds have an option of their own, --seeds"),
        ("--sweep nesterov=true momentum=0,0.9", "--sweep nesterov=true momentum=0: --nesterov true needs --momentum"),
        ("--sweep model=cnn,lenet", "--model lenet: images of 8 x 8 are too small: nothing would be left after conv2"),
        ("--sweep momentum=0,0.9 --sweep-learning-rate linear", "--sweep-learning-rate linear: no sweep changes the"),
    ],
)
def test_mistakes_are_one_line_that_names_the_option(monkeypatch, options, message):
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises(UserError) as error:
        prepare_comparison(parse_options(CompareConfig, "compare.py", "", options.split()), Console())
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "modes", "note"),
    [
        ({}, ["tutorial", "plain"], ""),
        ({"devices": 4}, ["plain"], "only --mode plain: 4 devices can't share 1,442 training examples equally"),
        ({"devices": 2, "strategy": "fsdp"}, ["plain"], "only --mode plain: --strategy fsdp: not with --mode tutorial"),
    ],
)
def test_what_a_user_should_know_is_said_before_the_runs(tmp_path, options, modes, note):
    """A tutorial is a row unless it would be another training."""
    given = {"output_dir": tmp_path, "implementations": ["pt"], "accelerator": "cpu", **options}
    output = io.StringIO()
    _, request = prepare_comparison(CompareConfig(**given), Console(file=output, width=200))
    assert request.options.modes == modes
    assert [note in line for line in output.getvalue().splitlines() if line.startswith("note: ")][:1] == [True] * bool(
        note
    )


# --- Further rounds ---


@pytest.mark.parametrize(
    ("disturbed", "options", "rounds"),
    [
        ([], {"repeats": 3}, 3),
        (range(1, 20), {"repeats": 5}, 7),  # at most half as many extra rounds as requested, rounded down
        ([1], {"repeats": 1}, 1),
        ([], {"repeats": 10, "ratio_within": 0.2}, 3),  # as soon as the interval is narrow, but not before the third
        ([2], {"repeats": 10, "ratio_within": 0.2}, 4),
        ([], {"repeats": 10, "ratio_within": 0.001}, 10),
    ],
)
def test_rounds_end_when_enough_are_undisturbed_or_the_interval_is_narrow(tmp_path, disturbed, options, rounds):
    def make(job):
        loads = [0.6 * (job.round in disturbed)] * 20
        speed = 1000.0 + 10 * job.round * (job.name == "pt")
        return MadeUp(turns=made_up_turns([speed] * 20, loads=loads))

    comparison(tmp_path, make, implementations=["tf", "pt"], verify="never", **options)
    while write_missing(tmp_path, make):
        pass
    assert load(tmp_path).runs["round"].max() == rounds


def test_runs_that_had_ended_but_were_not_audited_when_it_was_interrupted_are_audited(tmp_path, monkeypatch):
    audited = []
    comparison(tmp_path, verify="never")
    summary = load(tmp_path)
    (summary.ended[1].run_dir / "states").mkdir()
    (summary.ended[1].run_dir / "audits.json").unlink()
    monkeypatch.setattr(audits, "make_audits", lambda run_dir, steps, tell: audited.append(run_dir))
    maker = run_maker.RunMaker(tmp_path, summary.request, Mock(), summary.ended, [])
    maker.audit_interrupted()
    assert audited == [summary.ended[1].run_dir]
    monkeypatch.setattr(audits.Experiment, "make", Mock(side_effect=UserError("--data-dir /gone: no such folder")))
    maker.audit_interrupted()
    (said,) = maker.view.say.call_args.args
    assert said.endswith("its steps can't be audited: --data-dir /gone: no such folder")


def test_runs_of_a_network_of_the_users_are_audited_one_after_the_other(tmp_path, monkeypatch):
    def audit(run_dir, steps, tell):
        running.append(run_dir)
        time.sleep(0.1)
        assert running == [run_dir]
        running.remove(run_dir)

    running, own = [], Mock(network=Mock(is_own=True, activations={}))  # only its own code knows its outputs
    monkeypatch.setattr(audits, "make_audits", audit)
    monkeypatch.setattr(audits, "num_cores", lambda: 2)
    monkeypatch.setattr(audits.Experiment, "make", lambda config: own)
    assert audits.make_audits_side_by_side([tmp_path / "one", tmp_path / "two"], Mock(), (1,)) == {}


def test_an_interrupt_ends_audits_that_run_side_by_side_before_their_next_step(tmp_path, monkeypatch):
    def audit(run_dir, steps, tell):
        both.wait()
        if run_dir == runs[0].run_dir:
            raise KeyboardInterrupt
        while time.monotonic() < deadline:
            tell(1, 9)
        ended.append(run_dir)

    comparison(tmp_path, verify="never")
    summary = load(tmp_path)
    runs, ended, both, deadline = summary.ended[:2], [], threading.Barrier(2), time.monotonic() + 5
    monkeypatch.setattr(audits, "make_audits", audit)
    monkeypatch.setattr(audits, "num_cores", lambda: 2)
    with pytest.raises(KeyboardInterrupt):
        audits.make_audits_side_by_side([run.run_dir for run in runs], runs[0].result.config, (1,))
    assert not ended
