"""The command line: `main` finds a command as a module of this folder."""
