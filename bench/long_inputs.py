"""Peak memory and time of one long x, against its length: `make bench-long` prints the table of docs/long-inputs.md.

A server of its own for each length, so that its peak is that length's. X [N, 64] is posted as safetensors; resid_post
of the last layer and attn_probs of four rows come back.
"""

import argparse
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import safetensors.numpy

from model.checkpoint.initialise import initialise
from tests.server import Server, serving

D, LAYERS, HEADS, WIDTH = 64, 2, 2, 16
REQUEST = '{"outputs": ["layers.1.resid_post", {"name": "layers.1.attn_probs", "rows": [0, 1, -2, -1], "as": "map"}]}'


def peak_bytes(server: Server) -> int:
    """The largest resident memory that the server has had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def measure(model: Path, n: int) -> tuple[int, int, float]:
    """Resident memory before, its peak after, and the seconds that the call took."""
    x = np.random.default_rng(n).standard_normal((n, D)).astype(np.float32)
    body = safetensors.numpy.save({"x": x}, {"request": REQUEST})
    headers = {"Content-Type": "application/x-safetensors", "Accept": "application/x-safetensors"}
    with serving(model, "--deadline-seconds", "3000") as server:
        with httpx.Client(base_url=server.url, timeout=3000, trust_env=False) as client:
            client.post("/forward", content=safetensors.numpy.save({"x": x[:7]}, {"request": REQUEST}), headers=headers)
            before, began = peak_bytes(server), time.monotonic()
            response = client.post("/forward", content=body, headers=headers)
            seconds = time.monotonic() - began
        response.raise_for_status()
        found = safetensors.numpy.load(response.content)
        assert found["layers.1.resid_post"].shape == (n, D)
        assert found["map"].shape == (HEADS, 4, n)
        assert np.allclose(found["map"].sum(-1), 1, atol=1e-4)
        return before, peak_bytes(server), seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lengths", type=int, nargs="*", default=[16_384, 32_768, 65_536, 131_072])
    lengths = parser.parse_args().lengths
    print("| N | x, MB | peak above idle, MB | per row, bytes | N x N x 4, MB | seconds |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        initialise(model, seed=0, n_layers=LAYERS, d_model=D, n_heads=HEADS, d_k=WIDTH, d_v=WIDTH)
        for n in lengths:
            before, peak, seconds = measure(model, n)
            grown = peak - before
            print(
                f"| {n:,} | {n * D * 4 / 1e6:.0f} | {grown / 1e6:.0f} | {grown / n:,.0f} "
                f"| {n * n * 4 / 1e6:,.0f} | {seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
