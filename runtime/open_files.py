"""How many files a process may have open: as many as the system lets it, for each connection is one."""

import resource

import structlog

ENOUGH = 65_536
log = structlog.get_logger()


def raise_open_files() -> int:
    """Raise the soft limit as far as is allowed; return it. Warn where it is not enough for many streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < ENOUGH:
        log.warning("few_open_files", limit=soft, enough=ENOUGH)
    return soft
