"""`bench/gpu.py`, as far as a CPU can show it: its checks hold, and it notices where a number is wrong."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import gpu

ROOT = Path(__file__).parents[1]


def test_the_checks_hold_and_a_table_is_printed() -> None:
    command = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--tiny"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 checks failed" in done.stdout
    assert "| full batch | bfloat16 |" in done.stdout


def test_it_needs_nothing_but_torch_and_numpy() -> None:
    """The GPU machine has no package index: what is imported must be there with torch."""
    code = (
        "import sys; import bench.gpu; "
        "there = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted(there & {'safetensors', 'tokenizers', 'transformers', 'fastapi', 'pydantic', 'orjson', 'httpx'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_wrong_weight_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = gpu.stack_of

    def wrong(*arguments: object) -> object:
        stack = right(*arguments)  # type: ignore[arg-type]
        stack.layers[1].attention.o.weight[0] *= 1.5
        return stack

    monkeypatch.setattr(gpu, "stack_of", wrong)
    assert any("attn_out" in one for one in gpu.check(gpu.TINY, "cpu", "float32"))
    assert gpu.deviation(np.array([[1.0, np.inf]]), np.array([[1.0, 2.0]])) == np.inf
