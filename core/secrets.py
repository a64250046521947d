"""Texts that must not be kept or shown, and taking them out of what is."""

import re
from functools import lru_cache

# What every such secret contains, and the pattern of the whole: looking for the first costs next to nothing, and
# each line of the log is looked through. Groups stay: an API key keeps what it is looked up by.
_SECRETS = tuple(
    (mark, re.compile(pattern))
    for mark, pattern in (
        ("earer ", r"([Bb]earer )[A-Za-z0-9._~+/=-]{8,}"),
        ("asic ", r"([Bb]asic )[A-Za-z0-9._~+/=-]{8,}"),
        ("hr_", r"(hr_[a-z2-9]{12})[a-z2-9]{32}"),  # see core.keys
        ("whsec_", r"(whsec_)[A-Za-z0-9+/=_-]{8,}"),  # a webhook's secret
        (  # password in a URL
            "://",
            r"((?:postgresql|postgres|redis|rediss|amqp|https?)(?:\+\w+)?://[^\s:/@\"]*:)[^\s/@\"]+(?=@)",
        ),
    )
)
# names of values that are secret whatever they look like; `*_tokens` are counts
_NAMES = re.compile(r"(?:^|_)(?:authorization|password|passwd|secret|pepper|api_key|credentials?)$")
HIDDEN = "[secret]"


def scrub(text: str) -> str:
    """Replace every secret in a text, JSON or not, by a sign that there was one."""
    for mark, pattern in _SECRETS:
        if mark in text:
            text = pattern.sub(lambda found: found[1] + HIDDEN, text)
    return text


@lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Say whether a value of that name is not to be shown."""
    return _NAMES.search(name.lower().replace("-", "_")) is not None
