import json
from pathlib import Path

import pytest

from examples.architectures.__main__ import main

pytestmark = pytest.mark.slow


def test_a_network_is_built_served_and_compared_and_a_refusal_is_told_from_a_failure(tmp_path: Path) -> None:
    words = [
        "--out",
        str(tmp_path),
        "--source",
        "plain",
        "--backend",
        "eager",
        "--only",
        "mlp_fp16",
        "--only",
        "branch",
    ]
    assert main(words) == 0
    found = json.loads((tmp_path / "plain.json").read_text())
    assert found["mlp_fp16"]["result"] == "served"
    assert found["branch"]["result"] == "refused"
    assert "torch.where" in found["branch"]["said"]
