"""Comparisons with made-up numbers: the same folders as compare.py writes, without any training."""

import io
import json
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console

from common.experiment import Experiment
from common.platform.files import arrays_sha256, write_json_model
from common.platform.launch import Launch
from common.platform.machine import describe_machine
from common.record.predictions import Predictions
from common.record.results import CONFIG_FILE, METRICS_FILE, RESULT_FILE, SCHEMA_VERSION, RunResult, TurnLine
from common.record.timeline import PHASES
from common.resolve import AutoSettings, resolve_devices, resolve_settings
from comparison import load
from comparison.measure.comparison import find_runs
from comparison.plan.jobs import comparison_jobs, contenders, make_variants, rate_search_jobs
from comparison.plan.options import CompareConfig
from comparison.plan.request import Request
from comparison.prove.audits import AUDITS_FILE, Audit, Audits
from comparison.prove.proof import PROOF_FILE, ProofRecord, proof_jobs
from comparison.run.program import RECORD_FILE, RunEnd, RunRecord
from comparison.show.export import write_tables
from comparison.show.report.page import write_report
from comparison.show.sentences import findings
from comparison.show.terminal import print_conclusions, print_tables

MACHINE = describe_machine()


@dataclass
class MadeUp:
    """The made-up facts of a run; a test's function returns them for each job.

    Attributes:
      accuracies: on the test set, after each epoch.
      loss_factor, proof_factor: factors on the losses of the run itself, and of its proof; None: there is no proof.
      proof_failure: why the run in 64 bits has no result.
      tuned: the settings of `--mode tuned`.
      audited: whether a step of it was audited.
      wrong_step: what an audit says of a step that is wrong; None: the step is right.
      changes: other values for fields of the result.
    """

    speed: float | None = 1000.0
    accuracies: tuple[float, ...] = (0.5, 0.9)
    loss_factor: float = 1.0
    proof_factor: float | None = 1.0
    proof_failure: str | None = None
    process_seconds: float = 12.0
    other_load: float = 0.0
    throttled: float | None = None
    failure: str | None = None
    session: int = 1
    group: int = 1
    audited: bool = True
    turns: tuple[TurnLine, ...] = ()
    tuned: AutoSettings = AutoSettings()
    wrong_step: str | None = None
    changes: dict | None = None


def made_up_turns(speeds, began=0.0, loads=None):
    """Turns of one step, one a second, with these speeds in images per second, and with these loads of others."""
    return tuple(
        TurnLine(
            kind="turn",
            cycle=number,
            first_step=number,
            last_step=number,
            images=64,
            seconds=64 / speed,
            ended=began + number - 1 + 64 / speed,
            own_load=0.9,
            other_load=loads[number - 1] if loads else 0.0,
        )
        for number, speed in enumerate(speeds, 1)
    )


def comparison(folder, make=lambda job: MadeUp(), only=lambda job: True, **options):
    """Writes a comparison with `options`, and `make(job)` as the facts of each run; loads it."""
    verify = {"verify": "never"} if "sweep_learning_rate" in options else {}  # tests of rate searches need no proofs
    options = CompareConfig(**{"epochs": 2, "train_size": 640, "repeats": 1, **verify, **options})
    config = options.train_config().replace(accelerator="cpu")
    folder.mkdir(parents=True, exist_ok=True)
    created, commands = "2026-01-01T00:00:00+00:00", ["python compare.py"]
    Request(schema_version=2, created=created, commands=commands, options=options, config=config).write(folder)
    variants = make_variants(options, config)
    jobs = [*rate_search_jobs(options, variants), *comparison_jobs(options, variants)]
    for number, job in enumerate(jobs):
        if only(job):
            write_run(folder, job, make(job), number)
    for proof in proof_jobs(variants, contenders(options), options.seeds[0]) if options.verify == "auto" else ():
        job = next(one for one in jobs if (one.variant.name, one.name) == (proof.variant.name, proof.name))
        write_proof(folder, proof, make(job))
    return load(folder)


def answers(folder):
    """What the first screen of the report says of the first table: question -> answers."""
    summary = load(folder)
    return findings(summary, summary.tables[0])


def report(folder):
    """Makes the report of a comparison; returns the page."""
    write_report(load(folder))
    return (folder / "report.html").read_text()


def write_missing(folder, make):
    """Writes the runs that compare.py would make next; returns how many."""
    jobs = find_runs(folder, Request.read(folder, ""))[1]
    for number, job in enumerate(jobs, 1000):
        write_run(folder, job, make(job), number)
    return len(jobs)


def shown(folder, width=80):
    """What compare.py prints about the results of a comparison; writes its tables, too."""
    summary = load(folder)
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    write_tables(summary)
    print_tables(console, summary)
    print_conclusions(console, summary)
    return console.file.getvalue()


def write_run(folder, job, truth, number):
    run_dir = folder / job.path
    run_dir.mkdir(parents=True)
    ended = RunEnd(
        started=f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}+00:00",
        process_seconds=truth.process_seconds,
        other_load=truth.other_load,
        throttled=truth.throttled,
        failure=truth.failure,
        group=truth.group,
    )
    record = RunRecord.make(job, truth.session, ended)
    if truth.failure:
        (run_dir / "log.txt").write_text("the reason\n")
    else:
        write_files(run_dir, job.implementation, job.config, truth, truth.loss_factor, record.started)
        wrong = truth.wrong_step
        step = Audit(
            first_step=7, last_step=7, same=wrong is None, difference=0.5 if wrong else 0, explained=1e-5, note=wrong
        )
        write_json_model(run_dir / AUDITS_FILE, Audits(steps=[step] if truth.audited else [], evaluations=[]))
    (run_dir / RECORD_FILE).write_text(record.model_dump_json())


def write_proof(folder, proof, truth):
    """Writes the run in 64 bits of a row, or only its failure."""
    if truth.proof_factor is None:
        return
    run_dir = folder / proof.path
    run_dir.mkdir(parents=True)
    record = ProofRecord(schema_version=2, digest="0" * 64, failure=truth.proof_failure)
    (run_dir / PROOF_FILE).write_text(record.model_dump_json())
    if truth.proof_failure is None:  # the same accuracy for all: only rounding makes the runs themselves differ
        truth = replace(truth, accuracies=MadeUp.accuracies)
        write_files(run_dir, proof.implementation, proof.config, truth, truth.proof_factor)


def write_files(run_dir, implementation, asked, truth, factor, started="2026-01-01T00:00:00+00:00"):
    """Writes the files of a run, with losses that fall by a formula, times `factor`."""
    epochs = len(truth.accuracies)
    threads = 1 if asked.threads_per_device == "auto" else asked.threads_per_device
    config = asked.replace(epochs=epochs, threads_per_device=threads)
    launch = replace(Launch.read({}), num_nodes=config.nodes)
    config = resolve_settings(resolve_devices(config, "X", 0, launch, ("ddp",)), truth.tuned)
    experiment = Experiment.make(config)
    dataset, plan = experiment.dataset, experiment.plan
    losses = 2.3 * np.exp(-np.arange(1, plan.total_steps + 1) / 20) * factor
    count = len(dataset.test_labels)
    sizes = {"total_steps": plan.total_steps, "steps_per_epoch": plan.steps_per_epoch, "num_epochs": epochs}
    lines = [{"kind": "plan", "implementation": implementation, **sizes}]
    speed = truth.speed
    if truth.turns and speed is not None:
        speed = sum(turn.images for turn in truth.turns) / sum(turn.seconds for turn in truth.turns)
    timed = plan.images(6, plan.total_steps)
    epoch_seconds = 2.0 if speed is None else timed / speed / (epochs - 0.5)  # the timed steps begin in the first epoch
    corrects = [round(accuracy * count) for accuracy in truth.accuracies]
    for epoch, correct in enumerate(corrects, 1):
        steps = range((epoch - 1) * plan.steps_per_epoch, min(epoch * plan.steps_per_epoch, plan.total_steps))
        lines += [{"kind": "step", "step": step + 1, "loss": losses[step]} for step in steps]
        accuracy = {"test_accuracy": correct / count, "test_correct": correct, "test_count": count}
        seconds = {"train_seconds": epoch_seconds, "eval_seconds": 0.5}
        training = {"train_loss": 2 / epoch, "train_accuracy": correct / count}
        lines.append({"kind": "epoch", "epoch": epoch, "test_loss": 1 / epoch, **training, **accuracy, **seconds})
    lines += [turn.model_dump() for turn in truth.turns]
    (run_dir / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))

    logits = np.eye(dataset.num_classes)[dataset.test_labels]
    logits[corrects[-1] :] = np.roll(logits[corrects[-1] :], 1, axis=1)
    Predictions.make(logits, dataset.test_labels, dataset.test_images).write(run_dir)
    wall = truth.process_seconds - 0.5
    phases = dict.fromkeys(PHASES, 0.0) | {"imports": 4.0, "build": wall - 9.25, "training": 4.0, "evaluation": 1.0}
    unknown = ("replicas_differ", "skipped_steps", "resumed_from", "device_peak_memory_bytes", "gpu_utilisation")
    unknown += ("joules_per_image", "processor_note")
    fields = dict.fromkeys(unknown) | {
        "schema_version": SCHEMA_VERSION,
        "implementation": implementation,
        "config": config,
        "data_sha256": dataset.sha256,
        "initial_weights_sha256": arrays_sha256(experiment.initial_weights),
        "num_parameters": experiment.network.num_parameters,
        "class_names": dataset.class_names,
        "flops_per_image": experiment.network.flops_per_image,
        "num_steps": plan.total_steps,
        "train_count": plan.train_size,
        "test_count": count,
        "test_correct": corrects[-1],
        "test_accuracy": corrects[-1] / count,
        "test_loss": 1 / epochs,
        "started": started,
        "startup_seconds": 6.0,
        "epoch_train_seconds": [epoch_seconds] * epochs,
        "eval_seconds": [0.5] * epochs,
        "wall_seconds": wall,
        "phase_seconds": phases | {"rest": wall - sum(phases.values())},
        "warmup_steps": 5,
        "images_per_second": speed,
        "peak_memory_bytes": 500 * 2**20,
        "cpu_utilisation": 0.9,
        "training_other_load": truth.other_load,
        "accelerator": "cpu",
        "devices": config.devices,
        "threads_per_device": config.threads_per_device,
        "device_name": "made up",
        "machine": MACHINE,
        "versions": {"python": "3.11.0", "made-up": "1.0"},
        "git": {"commit": "a" * 40, "dirty": False},
        "code_sha256": "0" * 64,
    }
    result = RunResult(**{**fields, **(truth.changes or {})})
    write_json_model(run_dir / CONFIG_FILE, result.config)
    write_json_model(run_dir / RESULT_FILE, result)
