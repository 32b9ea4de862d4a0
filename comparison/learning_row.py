"""What a row says of the results of `--check-learning`."""

from comparison.row import Learning
from comparison.table import Entry, Table


def does_not_learn(table: Table, entry: Entry) -> str | None:
    """Why a row has the status "does not learn", for people; None if it does not have it."""
    own = entry.small_set
    if own is None or own.steps is not None:
        return None
    able = [one.title for one in table.entries if one.small_set and one.small_set.steps is not None]
    look = f"{' and '.join(able)} did: look for a mistake in {entry.title}"
    return f"it {own.found}; {look if able else 'no row did: look at the options first, such as the learning rate'}"


def learning_of(entry: Entry) -> Learning:
    """The results of both steps."""
    small, fit = entry.small_set, entry.fit
    return Learning(
        small_set_count=small and small.count,
        small_set_steps=small and small.steps,
        train_loss=fit and fit.train[-1].test_loss,
        train_accuracy=fit and fit.train[-1].test_accuracy,
        learning=fit and fit.verdict,
        learning_note=fit and fit.words,
    )
