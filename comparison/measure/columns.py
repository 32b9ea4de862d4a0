"""Columns: properties that say of themselves how tables show them.

A column is written once, where its value is computed; its docstring is its description. The terminal, Markdown, the
page, CSV, JSON, `comparison.load` and docs/columns.md go through the list that `columns_of` returns.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from inspect import getdoc
from typing import Any, TypeVar, get_type_hints

import pandas as pd

T = TypeVar("T")


class Column(cached_property[T]):
    """A property that is computed once, and a column of each table of text whose name is `group`.

    Attributes:
      heading: one or two lines, so that the tables fit 80 columns.
      group: the table of text that has it; empty for none.
      form: the value as text; None is always shown as empty text, and never as a zero.
      place: columns of a group are in the order of their places, then in that of the class.
      stored: whether files and DataFrames have it; otherwise it is only shown.
    """

    def __init__(
        self, value: Callable[[Any], T], heading: str, group: str, form: Callable[[Any], str], place: int, stored: bool
    ) -> None:
        super().__init__(value)
        self.about = " ".join((getdoc(value) or "").split())
        self.heading, self.group, self.form, self.place, self.stored = heading, group, form, place, stored

    @property
    def name(self) -> str:
        assert self.attrname
        return self.attrname

    @property
    def type(self) -> Any:
        return get_type_hints(self.func)["return"]

    def text(self, row: object) -> str:
        value = self.__get__(row)
        return "" if value is None else self.form(value)


def column(
    heading: str = "", group: str = "", form: Callable[[Any], str] = str, place: int = 0
) -> Callable[[Callable[[Any], T]], Column[T]]:
    """A decorator of methods: the value is stored, and shown if there is a group; see `Column`."""
    return lambda value: Column(value, heading, group, form, place, stored=True)


def shown(heading: str, group: str, place: int = 0) -> Callable[[Callable[[Any], str]], Column[str]]:
    """A decorator of methods that return text, which is only shown; see `Column`."""
    return lambda value: Column(value, heading, group, str, place, stored=False)


def columns_of(kind: type, group: str | None = None) -> list[Column[Any]]:
    """The stored columns of a class, in the order of its lines; with `group`, those that this group shows."""
    every = [value for value in vars(kind).values() if isinstance(value, Column)]
    if group is None:
        return [one for one in every if one.stored]
    return sorted((one for one in every if one.group == group), key=lambda one: one.place)


def text_table(columns: Sequence[Column[Any]], rows: Sequence[object], names: Sequence[str]) -> pd.DataFrame:
    """Text: a line for each row, with its name as the index. Columns without any text are left out."""
    cells = [[one.text(row) for one in columns] for row in rows]
    table = pd.DataFrame(cells, [*names], [one.heading for one in columns])
    return table.loc[:, (table != "").any()]
