import pytest
from made_up import MadeUp, comparison, write_run

from common.platform.errors import UserError
from comparison import run_maker
from comparison.measure.summary import find_runs, summarise
from comparison.plan.jobs import comparison_jobs, make_variants, rate_search_jobs
from comparison.plan.options import REPORT_WITH, RESUME_WITH, CompareConfig
from comparison.plan.request import Request
from comparison.run_maker import tuned


def study(**options):
    options = CompareConfig(**options)
    variants = make_variants(options, options.train_config().replace(accelerator="cpu"))
    return options, variants


def order(**options):
    options, variants = study(**options)
    return [(job.variant.name, job.seed, job.round, job.implementation) for job in comparison_jobs(options, variants)]


def test_every_round_runs_each_implementation_once_and_begins_with_another():
    jobs = order(repeats=4)
    rounds = [[name for *_, number, name in jobs if number == one] for one in (1, 2, 3, 4)]
    assert rounds == [["tf", "pt", "ptl"], ["pt", "ptl", "tf"], ["ptl", "tf", "pt"], ["tf", "pt", "ptl"]]
    assert [number for *_, number, _ in jobs] == sorted(number for *_, number, _ in jobs)


def test_seeds_and_sweeps_are_crossed_with_implementations_and_rounds():
    jobs = order(repeats=2, seeds=[5, 7], sweep=["batch-size=32,64", "momentum=0,0.9"], implementations=["pt", "ptl"])
    assert len(jobs) == len(set(jobs)) == 2 * 2 * 4 * 2
    assert jobs[0] == ("batch-size=32,momentum=0", 5, 1, "pt")
    assert {seed for _, seed, _, _ in jobs} == {5, 7}
    # Rounds are the outer loop: every variant is run before the next round begins.
    assert len({variant for variant, *_ in jobs[:8]}) == 4 and {job[1:3] for job in jobs[:8]} == {(5, 1)}
    assert jobs[8][0] != jobs[0][0]  # the next round begins with another variant


def test_every_run_has_a_folder_of_its_own_that_says_what_it_is():
    options, variants = study(sweep=["devices=1,2"], seeds=[3], repeats=2)
    paths = [str(job.path) for job in comparison_jobs(options, variants)]
    assert len(set(paths)) == len(paths)
    assert "runs/devices=2,scaling=weak/seed-3/round-2/tf" in paths
    options, variants = study()
    assert str(next(comparison_jobs(options, variants)).path) == "runs/seed-0/round-1/tf"


def test_strong_scaling_keeps_the_batch_weak_scaling_multiplies_it_and_threads_are_shared_out(monkeypatch):
    monkeypatch.setattr("comparison.plan.jobs.num_cores", lambda: 8)
    _, variants = study(sweep=["devices=1,2,4"], batch_size=32)
    found = {
        variant.name: (variant.config.devices, variant.config.batch_size, variant.config.threads_per_device)
        for variant in variants
    }
    assert found == {
        "devices=1,scaling=strong": (1, 32, 2),
        "devices=2,scaling=strong": (2, 32, 2),
        "devices=2,scaling=weak": (2, 64, 2),
        "devices=4,scaling=strong": (4, 32, 2),
        "devices=4,scaling=weak": (4, 128, 2),
    }
    _, variants = study(sweep=["devices=1,2"], scaling="weak", threads_per_device=3)
    assert [(variant.config.batch_size, variant.config.threads_per_device) for variant in variants] == [
        (64, 3),
        (128, 3),
    ]


def test_weak_scaling_multiplies_the_batch_by_the_devices_on_all_nodes():
    for devices, batches in ((1, [32, 32, 96]), (2, [32, 64, 32, 192])):
        _, variants = study(sweep=["num-nodes=1,3"], devices=devices, batch_size=32)
        assert [variant.config.batch_size for variant in variants] == batches
        assert {variant.config.threads_per_device for variant in variants} == {"auto"}  # each node has as many devices
    with pytest.raises(UserError, match="num-nodes=auto,2: should be numbers of nodes"):
        study(sweep=["num-nodes=auto,2"])


def test_the_learning_rate_is_kept_or_scaled_with_the_batch():
    for rule, rates in ((["keep"], [0.1, 0.1, 0.1]), (["linear"], [0.05, 0.1, 0.4])):
        _, variants = study(sweep=["batch-size=32,64,256"], learning_rate=0.1, sweep_learning_rate=rule)
        assert [variant.config.learning_rate for variant in variants] == pytest.approx(rates)


def test_a_swept_learning_rate_is_scaled_too_and_not_tuned():
    options = {"sweep": ["learning-rate=0.01,0.1", "batch-size=64,128"], "batch_size": 64}
    _, variants = study(**options, sweep_learning_rate=["linear"])
    assert [variant.config.learning_rate for variant in variants] == pytest.approx([0.01, 0.02, 0.1, 0.2])
    with pytest.raises(UserError, match="--sweep-learning-rate linear: 2e.38 should be less than or equal to"):
        study(sweep=["batch-size=64,128"], learning_rate=1e38, sweep_learning_rate=["linear"])
    with pytest.raises(UserError, match="where a sweep sets the learning rate itself"):
        study(**options, sweep_learning_rate=[0.1])


def test_a_rate_search_has_runs_of_its_own_and_seeds_that_are_not_reported():
    options, variants = study(sweep=["batch-size=32,64"], sweep_learning_rate=[0.1, 0.2, 0.4], seeds=[0, 4])
    jobs = list(rate_search_jobs(options, variants))
    assert len(jobs) == 2 * 3 * 2 and {job.implementation for job in jobs} == {"tf"}
    assert {job.seed for job in jobs} == {5, 6}
    assert str(jobs[0].path) == "rate-search/batch-size=32/learning-rate=0.1/seed-5/round-1/tf"


def test_the_rate_is_chosen_by_the_target_then_the_accuracy(tmp_path):
    accuracies = {
        (32, 0.1): (0.2, 0.9, 0.91),  # reaches 0.9 in the second epoch
        (32, 0.2): (0.2, 0.3, 0.99),  # ends higher, but later
        (64, 0.1): (0.1, 0.1, 0.2),
        (64, 0.2): (0.1, 0.1, 0.3),  # target never reached: the higher accuracy counts
    }

    def make(job):
        return MadeUp(accuracies=accuracies[job.config.batch_size, job.config.learning_rate])

    options = {"sweep": ["batch-size=32,64"], "sweep_learning_rate": [0.1, 0.2]}
    summary = comparison(tmp_path, make, only=lambda job: job.rate_search, epochs=3, **options)
    assert summary.missing == 6 and not summary.tables
    request = summary.request
    variants = make_variants(request.options, request.config)
    for target, rates in ((0.9, [0.1, 0.2]), (None, [0.2, 0.2])):
        found = tuned(variants, list(summary.runs), target)
        assert [one.config.learning_rate for one in found] == rates
    assert [run.epochs_to(0.9) for run in summary.runs] == [2, 3, None, None]


def test_a_rate_that_fails_with_a_seed_is_worse_than_one_that_does_not(tmp_path):
    def make(job):
        risky = job.config.learning_rate == 0.2
        failure = "exit status 1" if risky and job.seed == 3 else None
        return MadeUp(accuracies=(0.5, 0.99 if risky else 0.9), failure=failure)

    options = {"sweep": ["batch-size=32,64"], "sweep_learning_rate": [0.1, 0.2], "seeds": [0, 1]}
    summary = comparison(tmp_path / "a", make, only=lambda job: job.rate_search, **options)
    variants = make_variants(summary.request.options, summary.request.config)
    assert [one.config.learning_rate for one in tuned(variants, list(summary.runs), None)] == [0.1, 0.1]
    summary = comparison(
        tmp_path / "b", lambda job: MadeUp(failure="exit status 1"), only=lambda job: job.rate_search, **options
    )
    with pytest.raises(
        UserError, match="none of the rates could be trained for batch-size=32: exit status 1: the reason"
    ):
        tuned(variants, list(summary.runs), None)


def test_what_has_been_run_keeps_its_rate(tmp_path):
    options = {"sweep": ["batch-size=32,64"], "sweep_learning_rate": [0.1, 0.2]}
    summary = comparison(tmp_path, lambda job: MadeUp(), **options)
    variants = make_variants(summary.request.options, summary.request.config)
    assert [one.config.learning_rate for one in tuned(variants, list(summary.runs), None)] == [0.05, 0.05]


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (["batch-size"], "should be OPTION=VALUE"),
        (["batch-size="], "should be OPTION=VALUE"),
        (["batch-size=32,"], "should be OPTION=VALUE"),
        (["colour=red"], "--colour cannot be swept"),
        (["seed=1,2"], "seeds have an option of their own, --seeds"),
        (["data-dir=a,b"], "--data-dir cannot be swept"),
        (["batch-size=32,32"], "32 and 32 are the same value"),
        (["learning-rate=0.1,0.2,0.10"], "0.1 and 0.10 are the same value"),
        (["batch-size=16,016"], "16 and 016 are the same value"),
        (["nesterov=true,True"], "true and True are the same value"),
        (["batch-size=32,x"], "--sweep batch-size=x: should be a valid integer"),
        (["batch-size=32,0"], "--sweep batch-size=0: should be greater than 0"),
        (["momentum=0.9", "momentum=0.5"], "momentum is swept twice"),
        (["devices=1,auto"], "should be numbers of devices"),
        (["nesterov=true", "momentum=0,0.9"], "--nesterov true needs --momentum above 0"),
    ],
)
def test_sweeps_that_can_not_be_are_reported(sweep, message):
    with pytest.raises(UserError, match=message):
        study(sweep=sweep)


def test_a_rule_for_the_learning_rate_needs_a_sweep_that_changes_the_batch():
    with pytest.raises(UserError, match="no sweep changes the batch size"):
        study(sweep=["momentum=0,0.9"], sweep_learning_rate=["linear"])


@pytest.mark.parametrize("first", ["retake", "keep"])
@pytest.mark.parametrize("kinds", [REPORT_WITH, RESUME_WITH])
def test_stored_rounds_are_judged_anew(tmp_path, first, kinds):
    def make(job):
        return MadeUp(speed=1000.0 * job.round, other_load=0.5 * (job.round == 2))

    options = {"implementations": ["tf", "pt"], "repeats": 4, "verify": "never"}
    comparison(tmp_path, make, **options, disturbed=first)
    request = Request.read(tmp_path, "--report-only")
    _, missing = find_runs(tmp_path, request)
    assert [job.round for job in missing] == ([5, 5] if first == "retake" else [])
    for number, job in enumerate(missing, 100):
        write_run(tmp_path, job, make(job), number)

    def judged(request, disturbed):
        given = CompareConfig(disturbed=disturbed)
        request = request.model_copy(update={"options": given.applied_to(request.options, tmp_path, kinds)})
        runs, missing = find_runs(tmp_path, request)
        (table,) = summarise(tmp_path, request, runs, len(missing)).tables
        return request, len(runs), [job.round for job in missing], table.rows[1].num_rounds

    request, *kept = judged(request, "keep")
    assert kept == ([10, [], 5] if first == "retake" else [8, [], 4])
    _, *retaken = judged(request, "retake")
    assert retaken == ([10, [], 4] if first == "retake" else [8, [5, 5], 3])


def test_runs_that_had_ended_but_were_not_audited_when_it_was_interrupted_are_audited(tmp_path, monkeypatch):
    summary, audited = comparison(tmp_path, verify="never"), []
    (summary.runs[1].run_dir / "states").mkdir()
    (summary.runs[1].run_dir / "audits.json").unlink()
    monkeypatch.setattr(run_maker, "make_audits", lambda run_dir, steps: audited.append(run_dir))
    run_maker.RunMaker(tmp_path, summary.request, None, summary.runs, []).audit_interrupted()
    assert audited == [summary.runs[1].run_dir]
