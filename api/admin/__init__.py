"""/v1/admin: the deployment's tenants, keys, grants and models, for keys of scope `admin`.

One file a resource. A new one: make its router with `admin_router`, take `Administrator` where something is
changed, change it under `services.change.changing`, return pages as `page_object`, and name the module here.
"""

from api.admin import (
    audit,
    budgets,
    grants,
    keys,
    limits,
    models,
    overview,
    tariffs,
    tasks,
    tenants,
    usage,
    workers,
)

RESOURCES = (
    *(tenants, keys, grants, models, tasks, workers, overview, audit),
    *(limits, tariffs, budgets, usage),
)
