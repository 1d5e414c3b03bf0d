"""What the service should reach."""

from bench.peers.figures import Target
from bench.peers.loads import C8, C32, LAYERS, LIMIT, MAPS, OURS, P50, REQUESTS, STACK
from bench.peers.models import GPT2, SMALL, SMOLLM2
from bench.peers.peers import LITSERVE_4, LITSERVE_16, ONNX, PEERS, RAY

LITSERVE = (LITSERVE_4.name, LITSERVE_16.name)
ON_TORCH = tuple(peer.name for peer in PEERS if peer.runs_torch)

TARGETS = (
    Target("throughput at c=32 / the limit", GPT2, OURS, C32, (LIMIT,), 0.82, 0.90),
    Target("throughput at c=32 / the best torch peer", GPT2, OURS, C32, ON_TORCH, 1.5),
    Target("throughput at c=32 / ONNX Runtime", GPT2, OURS, C32, (ONNX.name,), 1.1, 1.25),
    Target("throughput at c=32 / LitServe's best batch size", GPT2, OURS, C32, LITSERVE, 2.0),
    Target("throughput at c=32 / Ray Serve", GPT2, OURS, C32, (RAY.name,), 5.0),
    Target("all layers returned / final states, c=8", GPT2, OURS, LAYERS, (OURS,), 0.85, against_column=C8),
    Target("maps of one layer returned / final states, c=8", GPT2, OURS, MAPS, (OURS,), 0.85, against_column=C8),
    Target("p50 at c=1 / the best torch peer's", GPT2, OURS, P50, ON_TORCH, 0.75, 0.6, at_most=True),
    Target("p50 at c=1 / our stack in process", GPT2, OURS, P50, (STACK,), 1.10, at_most=True),
    Target("small model, requests/s at c=32 / the best peer", SMALL, OURS, REQUESTS, tuple(p.name for p in PEERS), 5.0),
    Target("SmolLM2-135M, throughput at c=32 / its limit", SMOLLM2, OURS, C32, (LIMIT,), 0.80),
)
