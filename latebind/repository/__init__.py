"""Models on disk: one directory a version, every file under a sha256 manifest, nothing in it is ever executed."""
