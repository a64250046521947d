"""The role × route table: who may call what.

A new route needs one line in ROWS; a test fails until it has one. The line says which scope opens the route and
what the owner's bare call gets (no body, path parameters filled with ids of the owner's own):

    Row("GET", "/v1/things/{thing_id}", READ, 200),

From it follow all roles: 401 without a key in force, 403 for a disabled tenant or without the scope, and for another
tenant `other`: by itself 404 where the path holds an id, else what the owner gets. A path parameter needs a line in
`seeds.SEEDS` too: how to make one that belongs to the tenant, once per call.
"""

from dataclasses import dataclass

from core.scopes import Scope

PUBLIC = None
READ, SUBMIT, ADMIN = Scope.READ, Scope.SUBMIT, Scope.ADMIN


@dataclass(frozen=True, slots=True)
class Row:
    """One route."""

    method: str
    path: str  # as FastAPI has it
    scope: Scope | None
    owner: int  # status
    other: int | None = None  # status for another tenant; None: see the module
    query: str = ""

    @property
    def others(self) -> int:
        """The status that another tenant gets."""
        if self.other is not None:
            return self.other
        holds_id = "{" in self.path and self.scope is not ADMIN
        return 404 if holds_id else self.owner


NO_BODY = 415  # the edge got as far as the body: who may not call never does

ROWS = [
    Row("GET", "/", PUBLIC, 200),
    Row("GET", "/healthz", PUBLIC, 200),
    Row("GET", "/readyz", PUBLIC, 200),
    Row("GET", "/metrics", PUBLIC, 200),  # to this machine only, or by a token of its own
    Row("GET", "/openapi.json", PUBLIC, 200),
    Row("GET", "/docs", PUBLIC, 200),
    Row("GET", "/docs/oauth2-redirect", PUBLIC, 200),
    Row("GET", "/redoc", PUBLIC, 200),
    Row("GET", "/v1/models", READ, 200),
    Row("GET", "/v1/usage", READ, 200),
    Row("GET", "/v1/models/{model:path}", READ, 200),
    Row("POST", "/v1/chat/completions", SUBMIT, NO_BODY),
    Row("POST", "/v1/completions", SUBMIT, NO_BODY),
    Row("POST", "/v1/responses", SUBMIT, NO_BODY),
    Row("GET", "/v1/responses/{response_id}", READ, 200),
    Row("GET", "/v1/responses/{response_id}", READ, 410, query="stream=true"),
    Row("DELETE", "/v1/responses/{response_id}", SUBMIT, 200),
    Row("POST", "/v1/responses/{response_id}/cancel", SUBMIT, 200),
    Row("GET", "/v1/responses/{response_id}/input_items", READ, 200),
    Row("POST", "/v1/tasks", SUBMIT, NO_BODY),
    Row("GET", "/v1/tasks", READ, 200),
    Row("GET", "/v1/tasks", READ, 200, 404, query="after={task_id}"),
    Row("GET", "/v1/tasks/{task_id}", READ, 200),
    Row("GET", "/v1/tasks/{task_id}/events", READ, 410),
    Row("POST", "/v1/tasks/{task_id}/retry", SUBMIT, 409),
    Row("POST", "/v1/tasks/{task_id}/cancel", SUBMIT, 200),
    Row("POST", "/v1/files", SUBMIT, NO_BODY),
    Row("GET", "/v1/files", READ, 200),
    Row("GET", "/v1/files", READ, 200, 404, query="after={file_id}"),
    Row("GET", "/v1/files/{file_id}", READ, 200),
    Row("DELETE", "/v1/files/{file_id}", SUBMIT, 200),
    Row("GET", "/v1/files/{file_id}/content", READ, 200),
    Row("POST", "/v1/webhooks/secrets", SUBMIT, NO_BODY),
    Row("GET", "/v1/webhooks/secrets", READ, 200),
    Row("DELETE", "/v1/webhooks/secrets/{secret_id}", SUBMIT, 200),
    Row("GET", "/v1/webhooks/disabled", READ, 200),
    Row("DELETE", "/v1/webhooks/disabled/{disabled_id}", SUBMIT, 200),
    Row("GET", "/v1/webhooks/deliveries", READ, 200),
    Row("POST", "/v1/batches", SUBMIT, NO_BODY),
    Row("GET", "/v1/batches", READ, 200),
    Row("GET", "/v1/batches", READ, 200, 404, query="after={batch_id}"),
    Row("GET", "/v1/batches/{batch_id}", READ, 200),
    Row("POST", "/v1/batches/{batch_id}/cancel", SUBMIT, 200),
    Row("GET", "/v1/admin/tenants", ADMIN, 200),
    Row("POST", "/v1/admin/tenants", ADMIN, NO_BODY),
    Row("GET", "/v1/admin/tenants/{tenant}", ADMIN, 200),
    Row("PATCH", "/v1/admin/tenants/{tenant}", ADMIN, NO_BODY),
    Row("GET", "/v1/admin/keys", ADMIN, 200),
    Row("POST", "/v1/admin/keys", ADMIN, NO_BODY),
    Row("GET", "/v1/admin/keys/{key}", ADMIN, 200),
    Row("PATCH", "/v1/admin/keys/{key}", ADMIN, NO_BODY),
    Row("POST", "/v1/admin/keys/{key}/rotate", ADMIN, NO_BODY),
    Row("POST", "/v1/admin/keys/{key}/revoke", ADMIN, 200),
    Row("GET", "/v1/admin/grants", ADMIN, 200),
    Row("PUT", "/v1/admin/tenants/{tenant}/grants/{model:path}", ADMIN, NO_BODY),
    Row(
        "DELETE", "/v1/admin/tenants/{tenant}/grants/{model:path}", ADMIN, 404
    ),  # that tenant was granted nothing
    Row("GET", "/v1/admin/models", ADMIN, 200),
    Row("GET", "/v1/admin/models/{model:path}", ADMIN, 200),
    Row("PUT", "/v1/admin/models/{model:path}", ADMIN, NO_BODY),
    Row("DELETE", "/v1/admin/models/{model:path}", ADMIN, 409),  # in use
    Row("GET", "/v1/admin/tasks", ADMIN, 200),
    Row("GET", "/v1/admin/tasks/{task_id}", ADMIN, 200),
    Row("POST", "/v1/admin/tasks/{task_id}/retry", ADMIN, 409),
    Row("GET", "/v1/admin/workers", ADMIN, 200),
    Row("GET", "/v1/admin/overview", ADMIN, 200),
    Row("GET", "/v1/admin/audit", ADMIN, 200),
    Row("GET", "/v1/admin/limits", ADMIN, 200),
    Row("PUT", "/v1/admin/limits", ADMIN, NO_BODY),
    Row("DELETE", "/v1/admin/limits/{limit_id}", ADMIN, 200),
    Row("GET", "/v1/admin/tariffs", ADMIN, 200),
    Row("POST", "/v1/admin/tariffs", ADMIN, NO_BODY),
    Row("POST", "/v1/admin/tariffs/{tariff_id}/end", ADMIN, 200),
    Row("POST", "/v1/admin/ledger/corrections", ADMIN, NO_BODY),
    Row("GET", "/v1/admin/budgets", ADMIN, 200),
    Row("PUT", "/v1/admin/budgets", ADMIN, NO_BODY),
    Row("DELETE", "/v1/admin/budgets/{budget_id}", ADMIN, 200),
    Row("GET", "/v1/admin/usage", ADMIN, 200),
    Row("GET", "/v1/admin/engine-time", ADMIN, 200),
]
