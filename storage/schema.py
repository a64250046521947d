"""All tables: what a migrated database is held against."""

from storage import batch_tables, money_tables, queue_tables, tables

metadata = tables.metadata

__all__ = ["batch_tables", "metadata", "money_tables", "queue_tables", "tables"]
