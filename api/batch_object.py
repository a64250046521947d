"""The batch as its owner sees it."""

from datetime import datetime
from typing import Any

from storage.batches import Batch


def batch_object(batch: Batch) -> dict[str, Any]:
    """Build the wire form."""
    usage = batch.usage
    errors = None if batch.errors is None else {"object": "list", "data": batch.errors}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": errors,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.state,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(batch.created_at.timestamp()),
        "expires_at": int(batch.expires_at.timestamp()),
        **{f"{state}_at": _seconds(at) for state, at in batch.at.items()},
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {},  # reasoning is counted in the lines' own usage, where it is at all
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
        },
        "cost_usd_micros": batch.cost_usd_micros,
        "order": "file" if batch.in_file_order else "prefix",
        "metadata": batch.metadata,
    }


def _seconds(at: datetime | None) -> int | None:
    return int(at.timestamp()) if at else None
