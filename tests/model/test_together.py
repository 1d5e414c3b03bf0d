"""Attention of all sequences by one kernel call: what is asked of the kernels, which run on a GPU alone."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import model.together
from model.attention import attend
from model.mask import Mask
from model.packing import Packing
from model.together import attend_together, by_efficient, by_flash, is_right
from tests.model.kernels import stand_in

LENGTHS = (5, 1, 9, 30)
MASKS = [Mask(causal=True), Mask(causal=False), Mask(causal=True, window=4)]


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def heads(dtype: torch.dtype, width: int = 12) -> tuple[Tensor, Tensor, Tensor, Packing]:
    torch.manual_seed(width)
    q, k, v = (torch.randn(sum(LENGTHS), count, width).to(dtype) for count in (6, 2, 2))
    return q, k, v, Packing(tuple(range(len(LENGTHS))), LENGTHS)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_each_sequence_has_its_attention_and_no_other(mask: Mask, dtype: torch.dtype) -> None:
    q, k, v, packing = heads(dtype)
    with torch.inference_mode():
        expected = attend(q.float(), k.float(), v.float(), packing, 0.3, mask)
        found = attend_together(q, k, v, packing, 0.3, mask)
    if dtype == torch.float32 and mask.window is not None:
        assert found is None, "the kernel for float32 knows no window"
        return
    assert found is not None
    assert (found.float() - expected).abs().max() < 16 * torch.finfo(dtype).eps


def test_heads_too_wide_for_the_flash_kernel_go_to_the_other() -> None:
    q, k, v, packing = heads(torch.bfloat16, width=264)
    found = attend_together(q, k, v, packing, 0.05, Mask(causal=True))
    assert found is not None
    assert found.shape == q.shape


@pytest.mark.parametrize("kernel", [by_flash, by_efficient])
def test_a_kernel_that_is_missing_or_wrong_is_not_used(
    kernel: model.together.Kernel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dtype = torch.bfloat16 if kernel is by_flash else torch.float32
    q, k, v, packing = heads(dtype)

    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("no kernel for this card")

    def mixing(q: Tensor, *_: Any, **__: Any) -> Any:
        return q * torch.nan if kernel is by_flash else (q * torch.nan, None)

    for planted, said in ((missing, "cannot be used"), (mixing, "is wrong")):
        monkeypatch.setattr(model.together, "flash_kernel", lambda planted=planted: planted)
        monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", planted)
        is_right.cache_clear()
        assert attend_together(q, k, v, packing, 0.3, Mask(causal=True)) is None
        assert said in caplog.text


def test_the_places_of_sequences_are_made_once_for_all_layers() -> None:
    packing = Packing((0, 1), (3, 4))
    first = packing.offsets(torch.device("cpu"))
    assert first.tolist() == [0, 3, 7]
    assert packing.offsets(torch.device("cpu")) is first


def test_a_start_without_a_gpu_does_not_wait_for_torchs_compiler(mgm_directory: Path) -> None:
    """It comes with the flash kernel, and with random numbers on the meta device; its import takes a second."""
    code = (
        "import sys, service.cli; from pathlib import Path; from model.checkpoint.load import load_model; "
        "load_model(Path(sys.argv[1]), name='mgm'); print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, mgm_directory], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
