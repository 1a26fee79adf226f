"""`nox`, or `make matrix`: the tests that are not slow, on each Python of the classifiers that this machine has.

A Python that is not there is skipped with a note. Words after `--` go to pytest in place of "everything not slow".
"""

import nox

PYTHONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))

nox.options.error_on_missing_interpreters = False
nox.options.download_python = "never"


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run tests in an environment of its own, with the versions of constraints.txt."""
    session.install("--constraint", "constraints.txt", "--editable", ".[dev]")
    session.run("python", "-m", "pytest", *(session.posargs or ("-n", "2", "--dist", "loadfile", "-m", "not slow")))
