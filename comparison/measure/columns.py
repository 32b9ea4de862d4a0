"""Columns: properties that declare which tables show them, and in what format.

A column is written once, where its value is computed; its docstring is its description. The terminal, Markdown, the
page, CSV, JSON, `comparison.load` and docs/columns.md go through the list that `columns_of` returns.
"""

from collections.abc import Callable
from functools import cached_property
from inspect import getdoc
from typing import Any, TypeVar, get_type_hints

from comparison.numbers import Form, text

T = TypeVar("T")


class Column(cached_property[T]):
    """A property that is computed once, and a column of tables.

    Attributes:
      heading: one or two lines, so that the tables fit 80 columns.
      tables: names of the tables that show it, in the order of the class; none if it is only stored.
      form: the value as text; None is always shown as empty text, and never as a zero.
      stored: whether files and DataFrames have it; otherwise it is only shown.
    """

    def __init__(
        self,
        value: Callable[[Any], T],
        heading: str = "",
        tables: tuple[str, ...] = (),
        form: Form = str,
        stored: bool = True,
    ) -> None:
        super().__init__(value)
        self.about = " ".join((getdoc(value) or "").split())
        self.heading, self.tables, self.form, self.stored = heading, tables, form, stored

    @property
    def name(self) -> str:
        assert self.attrname
        return self.attrname

    @property
    def type(self) -> Any:
        return get_type_hints(self.func)["return"]

    def text(self, row: object) -> str:
        return text(self.__get__(row), self.form)


def column(heading: str = "", *tables: str, **how: Any) -> Callable[[Callable[[Any], T]], Column[T]]:
    """A decorator of methods: the value is stored, and shown in the tables that are named; see `Column`."""
    return lambda value: Column(value, heading, tables, **how)


def shown(heading: str, *tables: str, **how: Any) -> Callable[[Callable[[Any], T]], Column[T]]:
    """A decorator of methods whose value is only shown; see `Column`."""
    return column(heading, *tables, stored=False, **how)


def stored(about: str, value: Callable[[Any], Any], kind: Any = float | None) -> Column[Any]:
    """A column of this type that is only stored, not shown."""

    def of_row(row: Any) -> Any:
        return value(row)

    of_row.__doc__, of_row.__annotations__["return"] = about, kind
    return Column(of_row)


def columns_of(kind: type, table: str | None = None) -> list[Column[Any]]:
    """The stored columns of a class, in the order of its lines; with `table`, those that this table shows."""
    every = [value for value in vars(kind).values() if isinstance(value, Column)]
    return [column for column in every if (column.stored if table is None else table in column.tables)]
