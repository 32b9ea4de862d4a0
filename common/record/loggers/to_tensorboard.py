"""TensorBoard: event files in the run's folder, under `tensorboard/`.

tensorboardX writes them. TensorFlow's and torch's own writers would load their framework in runs of another framework.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# tensorboardX imports torch, if it is installed, to support tensors. Here it gets none, so torch is not loaded.
ABSENT = {"torch"} - sys.modules.keys()
sys.modules.update(dict.fromkeys(ABSENT))  # type: ignore[arg-type]
from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

for name in ABSENT:
    del sys.modules[name]

from common.record.loggers.tracker import Guess, Tracker, Value
from common.record.predictions import as_rgb

FOLDER = "tensorboard"
MOST_ROWS = 50  # of the table, which TensorBoard shows as one text


class TensorBoard(Tracker):
    def begin(self, run: str, folder: Path, hyperparameters: Mapping[str, Value]) -> None:
        # purge_step: a resumed run writes its earlier values again, and TensorBoard shows them once.
        self._writer = SummaryWriter(str(folder / FOLDER), purge_step=0)
        self._hyperparameters = {name: "none" if value is None else value for name, value in hyperparameters.items()}
        self._step = 0

    def numbers(self, by_step: Mapping[int, Mapping[str, float]]) -> None:
        for self._step, values in by_step.items():
            for name, value in values.items():
                self._writer.add_scalar(name, value, self._step)

    def summary(self, values: Mapping[str, float]) -> None:
        # Like `add_hparams`, but without its second file, which may get the same name as the first.
        for part in hparams(self._hyperparameters, dict(values)):
            self._writer.file_writer.add_summary(part)
        for name, value in values.items():
            self._writer.add_scalar(name, value, self._step)

    def predictions(self, guesses: Sequence[Guess]) -> None:
        lines = ["| image | guess | truth | score |", "| ---: | --- | --- | ---: |"]
        lines += [
            f"| {guess.index} | {guess.guess} | {guess.truth} | {guess.score:.3f} |" for guess in guesses[:MOST_ROWS]
        ]
        self._writer.add_text("predictions", "\n".join(lines), self._step)
        for guess in guesses[:MOST_ROWS]:
            tag = f"predictions/{guess.index}: {guess.guess}, truth {guess.truth}"
            self._writer.add_image(tag, as_rgb(guess.image), self._step, dataformats="HWC")

    def files(self, paths: Sequence[Path]) -> None:
        """Writes a text with the paths, since TensorBoard stores no files, and the content of Markdown files."""
        self._writer.add_text("files", "\n".join(f"- `{path}`" for path in paths), self._step)
        for path in paths:
            if path.suffix == ".md":
                self._writer.add_text(path.name, path.read_text(), self._step)

    def end(self, succeeded: bool) -> None:
        self._writer.close()
