"""The process that `headrace flower` becomes: Flower, which asks the workers for their lanes again and again.

By itself it asks once when it starts, mostly before any worker is ready, and its broker page stays empty.
"""

import sys

from celery.__main__ import main
from flower import app, command
from tornado.ioloop import PeriodicCallback

ASK_EVERY_MS = 10_000


class AskingFlower(app.Flower):  # type: ignore[misc]  # Flower has no types
    """Flower with that habit."""

    def start(self) -> None:
        """As Flower's: returns when it was stopped."""
        PeriodicCallback(self.update_workers, ASK_EVERY_MS).start()
        super().start()


if __name__ == "__main__":
    command.Flower = AskingFlower
    sys.exit(main())
