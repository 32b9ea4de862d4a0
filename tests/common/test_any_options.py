"""Any options and files of options give a configuration or a one-line error."""

import json
import typing

import pytest
from fuzzing import damaged, how_many, line_or_result, try_out
from hypothesis import strategies as st
from pydantic import BaseModel

from common.command import parse_command
from common.platform.cli import parse_options, to_arguments
from common.spec.options import TrainConfig
from common.spec.update_rule import spelled_out
from comparison.plan.jobs import comparison_jobs, make_variants
from comparison.plan.options import CompareConfig

NUMBERS = [-1, 0, 1, 2, 3, 64, 1000, 2**31, 2**63, 10**30, 0.5, 1e-30, 1e39, "nan", "inf", "-0", "1_000", "0x10", "1e3"]
WORDS = ["", "auto", "true", "false", "none", "null", "None", "~", "[]", "{}", "a b", "ü", "--epochs", "=", "\0", "\n"]
WORDS += ["../..", "/dev/null", "9" * 400, "32", "64", "16-mixed", "é" * 50, "\x1b[31m", "cpu", "gpu", "pipeline"]


def choices(schema: type[BaseModel]) -> list[str]:
    """The choices of all options, as words."""
    found = set()

    def walk(annotation):
        if typing.get_origin(annotation) is typing.Literal:
            found.update(map(str, typing.get_args(annotation)))
        for part in typing.get_args(annotation):
            walk(part)

    for field in schema.model_fields.values():
        walk(field.annotation)
    return sorted(found)


def command_lines(schema: type[BaseModel], *more: str) -> st.SearchStrategy[list[str]]:
    """Some options with values of all kinds, most of them values that a user might type."""
    values = st.one_of(
        st.sampled_from(choices(schema)),
        st.sampled_from([*map(str, NUMBERS), *WORDS, *more]),
        st.integers(-5, 300).map(str),
        st.floats().map(str),
        st.text(max_size=8),
    )
    names = st.sampled_from([f"--{name.replace('_', '-')}" for name in schema.model_fields])
    option = st.tuples(names, st.lists(values, min_size=1, max_size=3)).map(lambda one: [one[0], *one[1]])
    return st.lists(option, max_size=5).map(lambda options: [word for one in options for word in one])


@how_many
def test_options_of_a_run(cases, capsys):
    def check(arguments):
        with line_or_result():
            try:
                config = parse_options(TrainConfig, "program", "about", arguments)
            except SystemExit as end:  # the random text may be --help
                assert end.code in (0, None)
                return
            again = parse_options(TrainConfig, "program", "about", to_arguments(config))
            assert again == config and spelled_out(config).sha256() == spelled_out(again).sha256()
            assert TrainConfig.model_validate_json(config.model_dump_json()) == config

    try_out(cases, check, command_lines(TrainConfig))
    capsys.readouterr()


@pytest.mark.slow
@how_many
def test_options_of_a_comparison(cases, capsys):
    sweeps = [
        "batch-size=1,2",
        "devices=1,2",
        "epochs=1,x",
        "=",
        "a=b=c",
        "optimizer=sgd,adam",
        "batch-size=1,1",
        "x=,",
    ]

    def check(arguments):
        with line_or_result():
            try:
                options = parse_options(CompareConfig, "compare.py", "about", arguments)
            except SystemExit as end:
                assert end.code in (0, None)
                return
            variants = make_variants(options, options.train_config())
            assert variants and next(comparison_jobs(options, variants))

    try_out(cases, check, command_lines(CompareConfig, *sweeps))
    capsys.readouterr()


@how_many
def test_options_of_evaluate_and_predict(cases, tmp_path, capsys):
    weights = tmp_path / "model.safetensors"
    weights.touch()

    def check(word, arguments):
        with line_or_result():
            try:
                command = parse_command("pt_impl", "about", [word, "--weights", str(weights), *arguments, "x.png"])
            except SystemExit as end:
                assert end.code in (0, None)
                return
            assert command.config.devices == 1

    try_out(cases, check, st.sampled_from(["evaluate", "predict"]), command_lines(TrainConfig))
    capsys.readouterr()


FILES = [
    b"dataset: digits\nmodel: cnn\nepochs: 3\nbatch_size: 32\nlearning_rate: 0.05\nnesterov: true\n",
    b"# a comment\nimage_shape: [8, 8, 3]\ndataset: synthetic\nprecision: 64\nmode: plain\n",
    json.dumps({"epochs": 3, "seed": 1, "optimizer": "adam", "momentum": 0.9}).encode(),
    b"epochs: 1e3\nmomentum: .inf\ndata_dir: ~\nseed: 0o17\nbatch_size: 1:30\nmodel: !!str cnn\n",
]


@pytest.mark.slow
@how_many
def test_files_of_options(cases, tmp_path, capsys):
    path = tmp_path / "options.yaml"

    def check(content):
        path.write_bytes(content)
        with line_or_result():
            config = parse_options(TrainConfig, "program", "about", ["--config", str(path)])
            assert parse_options(TrainConfig, "program", "about", to_arguments(config)) == config

    try_out(cases, check, st.one_of(damaged(*FILES), st.binary(max_size=40), st.text(max_size=40).map(str.encode)))
    capsys.readouterr()
