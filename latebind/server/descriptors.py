"""File descriptors: each connection takes one, and a process starts with a lower limit than it may have."""

import logging
import resource

OTHERS = 256  # descriptors that are no connections: models, engines, logs

log = logging.getLogger(__name__)


def raise_file_limit(connections: int) -> None:
    """Raise this process's limit of open files; warn if that many connections may need more than is allowed."""
    wanted = connections + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(soft, wanted) if hard == resource.RLIM_INFINITY else hard
    if soft not in (most, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        log.warning(
            "this process may open %d files, and %d connections need %d: raise the limit (ulimit -Hn, LimitNOFILE)",
            most,
            connections,
            wanted,
        )
