"""HTTP edge (FastAPI): one file a resource; exceptions become responses in one place."""
