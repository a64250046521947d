"""Reading /metrics as Prometheus does."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.stacks import SharedStack

Labels = frozenset[tuple[str, str]]


class Scrape:
    """Every sample of one process, or of a whole stack, at one moment."""

    def __init__(self, *texts: str) -> None:
        self.samples: list[tuple[str, dict[str, str], float]] = [
            (sample.name, sample.labels, sample.value)
            for text in texts
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels; 0 without any."""
        return sum(
            value for found, have, value in self.samples if found == name and labels.items() <= have.items()
        )

    @property
    def names(self) -> set[str]:
        """Of all samples."""
        return {name for name, _, _ in self.samples}


async def scrape(stack: SharedStack, *processes: str) -> Scrape:
    """Read some of api, control and worker; all without names."""
    urls = stack.run.metrics_urls
    async with httpx.AsyncClient(timeout=10) as client:
        answers = [await client.get(urls[process]) for process in processes or sorted(urls)]
    assert all(answer.status_code == 200 for answer in answers)
    return Scrape(*(answer.text for answer in answers))
