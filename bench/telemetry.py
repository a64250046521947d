"""`headrace bench telemetry`: the stack with all its telemetry on against the same stack with it off.

On: every task traced to an OTLP receiver, metrics of all processes scraped, known generations, health windows.
Off: none of these. Metrics are counted, tasks logged and Flower's events sent in both: they can't
be turned off, and are part of what `bench raw` measures.

Two stacks are there, each with its engine loaded; the one that is not measured stands still.
"""

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bench import machine
from bench.harness import Result, Row, interleaved, paired, quiet_pairs, row, spread
from bench.machine import CpuMeter, Groups
from bench.peer import Peer
from bench.prompts import body, chat_messages
from bench.raw import PROMPT_TOKENS, QUIET_CORES, elsewhere
from bench.stack import Stack
from runtime.chat_template import ModelTokenizer

NAME = "telemetry"
SCRAPE_S = 5.0  # three times as often as is usual
_NEVER_S = "86400"
OFF = {"HEADRACE_PROBE_S": _NEVER_S, "HEADRACE_HEALTH_WINDOW_S": _NEVER_S}


class _Sink(BaseHTTPRequestHandler):
    """Takes spans and forgets them; counts requests on the class of its server."""

    def do_POST(self) -> None:
        """Answer as a collector does."""
        self.rfile.read(int(self.headers["content-length"]))
        self.server.exports += 1  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def sink() -> Iterator[ThreadingHTTPServer]:
    """A receiver of traces on a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    server.exports = 0  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def scraping(urls: Sequence[str]) -> Iterator[None]:
    """Read all of these every few seconds."""
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(SCRAPE_S):
            for url in urls:
                with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
                    answer.read()

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def bench(*, quick: bool, engine: str, say: Callable[[str], None]) -> Result:
    """Run the benchmark."""
    requests, output_tokens, pairs, budget_s = (32, 16, 2, 30.0) if quick else (96, 64, 3, 150.0)
    with ExitStack() as stack:
        receiver = stack.enter_context(sink())
        on_settings = {
            "HEADRACE_TRACE_TO": f"http://127.0.0.1:{receiver.server_address[1]}/v1/traces",
            "HEADRACE_TRACE_SHARE": "1",
        }
        say("starting the stack with everything on")
        on = stack.enter_context(Stack(engine, on_settings))
        say("starting the stack with everything off")
        off = stack.enter_context(Stack(engine, OFF))
        client = stack.enter_context(Peer("bench.client", log=on.logs / "bench.log"))
        arms = {"on": on, "off": off}
        tokenizer = ModelTokenizer(on.model_path)

        def groups() -> Groups:
            found = {
                f"{arm} {name}": group for arm, one in arms.items() for name, group in one.groups().items()
            }
            return {**found, "client": machine.family(client.pid)}

        meter = CpuMeter(groups)

        def run(arm: str, seed: object, count: int) -> dict[str, Any]:
            bodies = [
                body(on.model, chat_messages(tokenizer, PROMPT_TOKENS, (seed, number)), output_tokens)
                for number in range(count)
            ]
            other = off if arm == "on" else on
            meter.restart()
            with other.paused(), scraping(on.metrics_urls) if arm == "on" else nullcontext():
                answer = client.ask(**arms[arm].address, bodies=bodies, in_flight=min(64, count))
                cpu = meter.read()
            return {
                "arm": arm,
                "tokens": answer["tokens"],
                "wall_s": round(answer["wall_s"], 3),
                "tokens_per_s": round(answer["tokens"] / answer["wall_s"], 2),
                "core_s": cpu,
            }

        say("warming up")
        for arm in arms:
            run(arm, "warm-up", requests // 2)
        runs: list[dict[str, Any]] = []
        began, order = time.monotonic(), interleaved("off", "on", 100)
        while len(runs) < 2 * pairs or len(runs) < 4:
            seed = len(runs) // 2
            for arm in order[2 * seed : 2 * seed + 2]:
                runs.append(run(arm, seed, requests))
                say(
                    f"{arm}: {runs[-1]['tokens_per_s']:.1f} tokens/s, {elsewhere(runs[-1]):.2f} cores elsewhere"
                )
            spent = time.monotonic() - began
            if len(runs) >= 4 and spent + spent / (seed + 1) > budget_s:
                break
        exports = receiver.exports  # type: ignore[attr-defined]
    if not exports:
        raise ValueError("no trace arrived: this measured nothing")
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=rows(runs, engine, requests, output_tokens),
        arms={"runs": runs, "exports": exports, "off": OFF},
    )


def rows(runs: Sequence[dict[str, Any]], engine: str, requests: int, output_tokens: int) -> list[Row]:
    """Build the row from the runs."""
    kind = "" if engine == "vllm" else f"{engine} engine, no model: says nothing about the product; "
    pairs = quiet_pairs([elsewhere(one) for one in runs], QUIET_CORES)
    used = [one for at in pairs for one in runs[2 * at : 2 * at + 2]]
    ratios = paired([one["arm"] for one in used], [one["tokens_per_s"] for one in used], "off")
    busy = spread([elsewhere(one) for one in used])
    note = (
        f"{kind}{len(pairs)} of {len(runs) // 2} pairs, {requests} requests a run, {PROMPT_TOKENS} in / "
        f"{output_tokens} out, every task traced, scraped every {SCRAPE_S:g} s; metrics are counted in both arms; "
        f"other processes took {busy.low:.2f} to {busy.high:.2f} cores"
    )
    return [row("throughput_on_over_off", ratios, "ratio", "≥ 0.98", note)]
