"""What makes the site of `make docs` from the pages of the repository and from the code. Not part of the package."""
