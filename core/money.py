"""Money for people. Everything else counts integer micro-USD."""


def usd(micros: int) -> str:
    """Write micro-USD as dollars, exactly and without trailing zeros."""
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    whole, part = divmod(micros, 1_000_000)
    return f"{sign}{whole}" + (f".{part:06d}".rstrip("0") if part else "")
