"""Without its library an integration says which to install; `import strata` imports none of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

WITHOUT = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
import strata.integrations.{module}
"""


def run(program: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("module", "hidden", "advice"),
    [
        (
            "lightning",
            ["lightning", "lightning_fabric", "pytorch_lightning"],
            "pip install 'strata-runtime[lightning]'",
        ),
        ("huggingface", ["accelerate"], "needs accelerate: pip install 'strata-runtime[huggingface]'"),
        ("huggingface", ["transformers"], "needs transformers: pip install 'strata-runtime[huggingface]'"),
        ("ray", ["ray"], "pip install 'strata-runtime[ray]'"),
        ("lightning", ["torch"], "needs torch: pip install 'strata-runtime[lightning]'"),
        ("huggingface", ["torch", "accelerate"], "needs accelerate: pip install 'strata-runtime[huggingface]'"),
        ("dcp", ["torch"], "needs torch: pip install 'strata-runtime[torch]'"),
    ],
)
def test_it_says_what_to_install(module: str, hidden: list[str], advice: str) -> None:
    if hidden == ["transformers"]:
        pytest.importorskip("accelerate")  # which is asked for first
    told = run(WITHOUT.format(module=module, hidden=hidden))
    assert told.returncode == 1
    last = told.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: strata.integrations.{module} needs ")
    assert last.endswith(advice)


def test_the_package_for_pytorch_says_what_to_install() -> None:
    told = run(WITHOUT.replace("integrations.{module}", "torch").format(hidden=["torch"]))
    assert told.stderr.strip().splitlines()[-1] == (
        "ModuleNotFoundError: strata.torch needs torch: pip install 'strata-runtime[torch]'"
    )


def test_nobody_else_imports_them() -> None:
    told = run("import strata, sys; strata.CheckpointManager; print(*sys.modules)")
    heavy = {"accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "ray", "transformers", "torch"}
    assert told.returncode == 0
    assert heavy.isdisjoint(told.stdout.split())
