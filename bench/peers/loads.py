"""The loads, and what rows and columns of the tables are called."""

from bench.peers.prompts import Want

OURS, LIMIT = "Headwater", "limit: all products at the best rate"
STACK, PACKED, TRANSFORMERS = (
    "in process: our stack, one by one",
    "in process: our stack, all in one matrix",
    "in process: transformers, one by one",
)
C1, C8, C32, LAYERS, MAPS = "c=1", "c=8", "c=32", "all layers, c=8", "maps of one layer, c=8"
P50, REQUESTS = "p50 at c=1, ms", "requests/s, c=32"

# what is wanted, and by how many clients at a time
LOADS: dict[str, tuple[Want, int]] = {
    C1: ("final", 1),
    C8: ("final", 8),
    LAYERS: ("layers", 8),
    MAPS: ("maps", 8),
    C32: ("final", 32),
}
