"""Python's collector of cycles, and the pauses it makes.

Its oldest generation is everything a process loaded: looking through vLLM and torch takes a third of a second and more,
in which no token is passed on. What is there when a process is ready stays until its end.
"""

import gc


def spare_what_is_there() -> None:
    """Collect once and have the collector leave alone what is left. Again after much was replaced."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
