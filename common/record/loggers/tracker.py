"""The interface to a tracking tool: what it stores of a run."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.data.formats import Images
from common.platform.errors import UserError

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Guess:
    """The prediction of a trained network for a test image.

    Attributes:
      index: position in the test set, from 0.
      image: uint8 (H, W, C).
      truth, guess: names of the true class and of the predicted class.
      score: softmax score of the guess, 0 to 1.
    """

    index: int
    image: Images
    truth: str
    guess: str
    score: float


class Tracker(ABC):
    """One run in one tool. Order of calls: begin, then numbers and the others any number of times, then end.

    Each method may raise any exception of the tool; callers use `tool_error_as_user_error`.
    """

    @abstractmethod
    def begin(self, run: str, folder: Path, hyperparameters: Mapping[str, Value]) -> None:
        """`run` is the displayed name of the run. `folder` is the run folder, for tools that write files."""

    @abstractmethod
    def numbers(self, by_step: Mapping[int, Mapping[str, float]]) -> None:
        """Stores metrics by step; steps count from 1."""

    @abstractmethod
    def summary(self, values: Mapping[str, float]) -> None:
        """Stores the numbers that summarise the whole run."""

    @abstractmethod
    def predictions(self, guesses: Sequence[Guess]) -> None:
        """Stores a table of test images with guesses."""

    @abstractmethod
    def files(self, paths: Sequence[Path]) -> None:
        """Stores files as artifacts of the run."""

    @abstractmethod
    def end(self, succeeded: bool) -> None:
        """Ends the run; everything that was passed before is stored."""


@contextmanager
def tool_error_as_user_error(name: str) -> Iterator[None]:
    """Turns an error of the tool into a UserError of one line that names the option."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - each tool has its own, down to those of its network
        lines = str(error).strip().splitlines() or [""]
        raise UserError(f"--logger {name}: {type(error).__name__}: {lines[0][:300]}") from error
