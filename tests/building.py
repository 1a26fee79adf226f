"""Model directories for tests: eager, cut at every boundary, quickly built."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from latebind.program.build import BuildReport, build_program


def build_stages(
    module: nn.Module, examples: Mapping[str, Tensor], directory: Path, *, name: str, max_batch: int
) -> BuildReport:
    return build_program(
        module,
        examples,
        directory=directory,
        name=name,
        backends=["eager"],
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=max_batch,
    )
