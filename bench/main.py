"""The benchmarks by name, and what is done with a result."""

import importlib
import sys
from pathlib import Path

from rich.console import Console

from bench import output
from bench.peer import PeerError

NAMES = (
    "batch",
    "chunk",
    "control",
    "depth",
    "fairness",
    "growth",
    "interactive",
    "length",
    "overload",
    "raw",
    "recovery",
    "serve",
    "single",
    "telemetry",
)  # fmt: skip

# of which each takes real inputs from a folder that is named to it
WITH_DATA = frozenset({"batch", "length", "serve"})


def run(
    name: str,
    *,
    json: Path | None = None,
    quick: bool = False,
    engine: str = "vllm",
    data: Path | None = None,
) -> int:
    """Run a benchmark, or `report`, and return the exit code.

    0: it ran, targets met or not; 1: it could not be run; 2: no such benchmark.
    """
    console = Console(stderr=True)
    if name == "report":
        from bench.report import PAGE, report

        print(f"{report()} results written to {PAGE}")
        return 0
    if name not in NAMES:
        print(
            f"headrace bench: no benchmark {name!r}; there are {', '.join((*NAMES, 'report'))}",
            file=sys.stderr,
        )
        return 2
    module = importlib.import_module(f"bench.{name}")
    try:
        result = module.bench(
            quick=quick,
            engine=engine,
            say=lambda text: console.log(text, _stack_offset=2),
            **({"data": data} if name in WITH_DATA else {}),
        )
    except (PeerError, ValueError) as error:
        print(f"headrace bench {name}: {error}", file=sys.stderr)
        return 1
    # what is not the real measurement must not stand where the real one does
    kind = "".join(("-quick" if quick else "", "" if engine == "vllm" else f"-{engine}"))
    path = json or output.RESULTS / f"{name}{kind}.json"
    output.write_json(result, path)
    output.show(result, Console())
    if json is None and output.draw(result, path.with_suffix(".png")):
        print(f"Picture  {path.with_suffix('.png')}")
    print(f"Result   {path}")
    return 0
