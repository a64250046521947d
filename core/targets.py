"""Where a webhook may go: public addresses over HTTPS. Names are checked by what they resolve to, at each delivery.

Source: OWASP's SSRF prevention cheat sheet; IANA's special-purpose address registries, by `ipaddress`.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
MAX_URL = 2048  # characters

# A host of the platform's own network behind a public address: Azure's WireServer.
_METADATA = frozenset({ip_address("168.63.129.16")})
# Python takes some of the protocol assignments for global: a cloud's metadata is among them.
_SPECIAL = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"))
_NAT64 = IPv6Network("64:ff9b::/96")
_6TO4 = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")


def is_public(address: Address) -> bool:
    """Say whether an address is out on the internet, also as an IPv4 one that stands inside an IPv6 one."""
    if isinstance(address, IPv6Address):
        inner = _inner(address)
        if inner is not None:
            return is_public(inner)
        if address in _TEREDO or address.is_site_local:
            return False
    if any(address in network for network in _SPECIAL):
        return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and address not in _METADATA
    )


def _inner(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64 or int(address) >> 32 == 0:  # the latter: IPv4-compatible, ::a.b.c.d
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour if address in _6TO4 else None


def check_url(url: str, *, private_allowed: bool) -> None:
    """Refuse a URL that nothing is sent to, as far as the text tells. Raises: ValueError saying why.

    `private_allowed`: a development setup; plain HTTP and addresses of the own network are fine.
    """
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"must be an ASCII URL of at most {MAX_URL} characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError("is not a URL") from error
    if parts.scheme not in ("https", "http") or not host:
        raise ValueError("must be an absolute https:// URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must hold no user and password: deliveries are signed")
    if port == 0:
        raise ValueError("has no usable port")
    if private_allowed:
        return
    if parts.scheme != "https":
        raise ValueError("must be an https:// URL")
    literal = _literal(host)
    if (literal is not None and not is_public(literal)) or host.rstrip(".") == "localhost":
        raise ValueError("must not point into a private network")


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None
