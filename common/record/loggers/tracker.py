"""What a tracking tool is asked to keep of a run."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from common.data.formats import Images
from common.platform.errors import UserError

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Guess:
    """What a trained network says of a test image.

    Attributes:
      index: in the test set, from 0.
      image: uint8 (H, W, C).
      truth, guess: names of classes.
      score: softmax score of the guess, 0 to 1.
    """

    index: int
    image: Images
    truth: str
    guess: str
    score: float


class Tracker(ABC):
    """One run in one tool. Called in this order: begin, numbers and the others as often as wanted, end.

    Each method may raise whatever the tool raises; callers use `told`.
    """

    name: ClassVar[str]

    @abstractmethod
    def begin(self, run: str, folder: Path, hyperparameters: Mapping[str, Value]) -> None:
        """`run`: its name for people; `folder`: of the run, where a tool that keeps files puts them."""

    @abstractmethod
    def numbers(self, by_step: Mapping[int, Mapping[str, float]]) -> None:
        """Metrics after each of some steps, which count from 1."""

    @abstractmethod
    def summary(self, values: Mapping[str, float]) -> None:
        """The numbers that stand for the whole run."""

    @abstractmethod
    def predictions(self, guesses: Sequence[Guess]) -> None:
        """A table of test images with guesses."""

    @abstractmethod
    def files(self, paths: Sequence[Path]) -> None:
        """Artifacts of the run."""

    @abstractmethod
    def end(self, succeeded: bool) -> None:
        """Whatever has been given is kept from now on."""


@contextmanager
def told(name: str) -> Iterator[None]:
    """An error of the tool becomes a UserError of one line that names the option."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - each tool has its own, down to those of its network
        lines = str(error).strip().splitlines() or [""]
        raise UserError(f"--logger {name}: {type(error).__name__}: {lines[0][:300]}") from error
