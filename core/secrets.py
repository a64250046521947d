"""Texts that must not be kept or shown, and taking them out of what is."""

import re

# An API key keeps what it is looked up by; of the others nothing stays.
_SECRETS = re.compile(
    r"(hr_[a-z2-9]{12})[a-z2-9]{32}"  # see core.keys
    r"|(whsec_)[A-Za-z0-9+/=_-]{8,}"  # a webhook's secret
    r"|((?:postgresql|postgres|redis|rediss|amqp|https?)(?:\+\w+)?://[^\s:/@\"]*:)[^\s/@\"]+(?=@)"  # password in a URL
    r"|((?:[Bb]earer|[Bb]asic) )[A-Za-z0-9._~+/=-]{8,}"
)
# names of values that are secret whatever they look like; `*_tokens` are counts
_NAMES = re.compile(r"(?:^|_)(?:authorization|password|passwd|secret|pepper|api_key|credentials?)$")
HIDDEN = "[secret]"


def scrub(text: str) -> str:
    """Replace every secret in a text, JSON or not, by a sign that there was one."""
    return _SECRETS.sub(lambda found: "".join(part for part in found.groups() if part) + HIDDEN, text)


def is_secret_name(name: str) -> bool:
    """Say whether a value of that name is not to be shown."""
    return _NAMES.search(name.lower().replace("-", "_")) is not None
