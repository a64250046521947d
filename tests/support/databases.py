"""A fresh, migrated database per test, cloned from a template that was migrated once."""

import itertools

from cli.stack.postgres import PostgresServer


class Databases:
    """Clones of one migrated template."""

    TEMPLATE = "headrace_template"

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._numbers = itertools.count(1)
        self._migrated = False

    def create(self) -> str:
        """The name of a new database with the newest schema and no rows."""
        if not self._migrated:
            from migrations import upgrade

            self.server.create_database(self.TEMPLATE)
            upgrade(self.server.url_of(self.TEMPLATE))
            self._migrated = True
        name = f"test_{next(self._numbers)}"
        self.server.create_database(name, template=self.TEMPLATE)
        return name

    def create_empty(self) -> str:
        """The name of a new database without a schema, for tests of migrations."""
        name = f"empty_{next(self._numbers)}"
        self.server.create_database(name)
        return name
