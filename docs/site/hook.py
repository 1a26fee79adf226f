"""Gives mkdocs the pages and their order: the pages in memory alone, so that nothing is copied."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from docs.site.pages import nav, pages


def on_config(config: Any) -> Any:
    """Put the pages in the order of docs/README.md."""
    config.nav = nav()
    return config


def on_files(files: Any, config: Any) -> Any:
    """Put all pages in the place of what lies in docs/."""
    for file in list(files):
        if file.src_dir is not None and Path(file.src_dir) == Path(config.docs_dir):
            files.remove(file)
    for path, text in pages(config.repo_url or "").items():
        files.append(File.generated(config, path, content=text))
    return files
