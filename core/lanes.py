"""Lanes: which queue a task waits in. Producer and worker derive queue names from this file alone.

Units: lengths in tokens, prompt and maximum output together.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Priority(StrEnum):
    """Who waits: a person, a service, or a file. In order of service."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """0 is served first."""
        return list(Priority).index(self)


class LengthClass(StrEnum):
    """Bucket of prompt + maximum output tokens."""

    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class LengthBounds:
    """Upper bounds of the classes, inclusive; what is above `medium` is long."""

    short: int = 512
    medium: int = 2048

    def __post_init__(self) -> None:
        if not 0 < self.short < self.medium:
            raise ValueError(f"length bounds must rise: short {self.short}, medium {self.medium}")

    def classify(self, total_tokens: int) -> LengthClass:
        """Return the class of a task of that many prompt + maximum output tokens."""
        if total_tokens <= self.short:
            return LengthClass.SHORT
        return LengthClass.MEDIUM if total_tokens <= self.medium else LengthClass.LONG


@dataclass(frozen=True, slots=True)
class Lane:
    """What a queue carries: one model, one length class, one priority."""

    model: str
    length_class: LengthClass
    priority: Priority

    @property
    def queue(self) -> str:
        """Name of the broker queue, readable in Flower."""
        return f"{self.model}.{self.length_class}.{self.priority}"

    @classmethod
    def parse(cls, queue: str) -> Self:
        """Read a queue name back. Raises: ValueError."""
        model, length_class, priority = queue.rsplit(".", 2)
        return cls(model, LengthClass(length_class), Priority(priority))


def lanes_of(model: str, length_classes: Iterable[LengthClass] = LengthClass) -> list[Lane]:
    """List a model's lanes in the order in which a worker should look at them."""
    wanted = set(length_classes)
    return [
        Lane(model, length_class, priority)
        for priority in Priority
        for length_class in LengthClass
        if length_class in wanted
    ]


def parse_length_classes(text: str) -> list[LengthClass]:
    """Read `short,medium`; empty means all. Raises: ValueError naming the unknown class."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in list(LengthClass)]
    if unknown:
        raise ValueError(f"unknown length class {unknown[0]!r}; there are {', '.join(LengthClass)}")
    return [length_class for length_class in LengthClass if not names or length_class in names]
