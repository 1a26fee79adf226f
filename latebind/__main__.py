"""`python -m latebind` is the command line."""

from latebind.cli.main import app

if __name__ == "__main__":
    app()
