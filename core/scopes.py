"""What a key may be used for."""

from enum import StrEnum


class Scope(StrEnum):
    """One permission of an API key. None implies another."""

    SUBMIT = "submit"
    """Everything of the key's tenant that makes, changes or ends something: requests, cancels, uploads."""

    READ = "read"
    """Everything of the key's tenant that only looks."""

    ADMIN = "admin"
    """`/v1/admin`: every tenant, key, grant and model of the deployment."""


USUAL = frozenset({Scope.SUBMIT, Scope.READ})
ADMINISTRATORS = frozenset({Scope.ADMIN})
