"""The command line: build, serve, simulate, bench, models, replay."""
