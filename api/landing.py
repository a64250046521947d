"""The page at `/`: what runs here and where to look further. One page, no script, nothing from elsewhere.

What runs is shown to whoever may read metrics; others see links only: which models exist is no stranger's business.
"""

from typing import Any

import jinja2
import structlog
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.exc import SQLAlchemyError

from api.metrics import allowed
from api.state import state_of
from services.measure import measure_lanes
from services.workers import list_workers

router = APIRouter(include_in_schema=False)
log = structlog.get_logger()
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

_PAGE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Headrace</title>
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { margin-bottom: 0 } h2 { margin-top: 2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884 }
td.n, th.n { text-align: right }
nav a { margin-right: 1.5rem }
.healthy { color: #18794e } .degraded { color: #ad5700 } .unhealthy { color: #ce2c31 }
</style>
</head>
<body>
<h1>Headrace</h1>
<p>Asynchronous inference: submit a request, get a task id, poll it or stream its tokens.</p>
<nav>
<a href="/docs">API</a>
<a href="/openapi.json">OpenAPI</a>
<a href="/readyz">Readiness</a>
<a href="/metrics">Metrics</a>
{% if flower %}<a href="{{ flower }}">Flower: Celery's workers and queues</a>{% endif %}

</nav>
{% if known is none %}
<p>What runs is shown to this machine only, or to the holder of the metrics token.</p>
{% elif known is false %}
<p class="unhealthy">The database does not answer: see <a href="/readyz">readiness</a>.</p>
{% else %}
<h2>Models and workers</h2>
<table>
<tr><th>Model</th><th>Worker</th><th>Engine</th><th>State</th><th>Health</th><th class="n">Running</th>
<th class="n">Tokens/s</th></tr>
{% for worker in known.workers %}
<tr><td>{{ worker.row.model }}</td><td>{{ worker.row.name }}</td>
<td>{{ worker.row.engine }} {{ worker.row.engine_version }}</td><td>{{ worker.row.state }}</td>
<td class="{{ worker.row.health }}">{{ worker.row.health }}
{%- for words in worker.row.reasons.values() %}; {{ words }}{% endfor %}</td>
<td class="n">{{ worker.row.running }} of {{ worker.row.max_num_seqs }}</td>
<td class="n">{{ "%.1f" | format(worker.row.output_tokens_per_s) }}</td></tr>
{% else %}
<tr><td colspan="7">No worker is there: tasks wait.</td></tr>
{% endfor %}
</table>
<h2>Lanes</h2>
<table>
<tr><th>Lane</th><th class="n">Queued</th><th class="n">Running</th><th class="n">Longest wait, s</th></tr>
{% for lane, figures in known.lanes %}
<tr><td>{{ lane.queue }}</td><td class="n">{{ figures.queued }}</td><td class="n">{{ figures.running }}</td>
<td class="n">{{ "%.1f" | format(figures.oldest_s) }}</td></tr>
{% else %}
<tr><td colspan="4">Nothing waits or runs.</td></tr>
{% endfor %}
</table>
{% endif %}
</body>
</html>
""")


@router.get("/")
async def page(request: Request) -> HTMLResponse:
    """Show the page."""
    state = state_of(request)
    known: Any = None
    if allowed(request):
        try:
            lanes, _ = await measure_lanes(state.database)
            workers, _ = await list_workers(state.database, events=1)
            known = {"workers": workers, "lanes": sorted(lanes.items(), key=lambda one: one[0].queue)}
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.warning("page_without_figures", error=type(error).__name__)
            known = False
    return HTMLResponse(_PAGE.render(flower=state.settings.flower_url, known=known), headers=_HEADERS)
