"""Use cases named by verb; one database transaction each."""
