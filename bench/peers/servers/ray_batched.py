"""Ray Serve with @serve.batch: `ray_batched.py MODEL PORT BATCH_SIZE`."""

import os
import signal
import sys
import tempfile

DIRECTORY, PORT, BATCH_SIZE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
CORES = os.cpu_count() or 1
WAIT_SECONDS = 0.005

import ray  # noqa: E402
from ray import serve  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import Response  # noqa: E402

QUIET = {"log_level": "WARNING", "enable_access_log": False}


@serve.deployment(num_replicas=1, max_ongoing_requests=256, ray_actor_options={"num_cpus": CORES}, logging_config=QUIET)
class Hidden:
    """One replica with all cores; its batches are padded."""

    def __init__(self, directory, servers):
        import sys

        sys.path.insert(0, servers)
        import torch
        from hidden import forward, model

        torch.set_num_threads(CORES)
        self.forward, self.directory = forward, directory
        model(directory, "sdpa")

    @serve.batch(max_batch_size=BATCH_SIZE, batch_wait_timeout_s=WAIT_SECONDS)
    async def run(self, calls):
        return self.forward(self.directory, calls)

    async def __call__(self, request: Request) -> Response:
        return Response(await self.run(await request.json()), media_type="application/octet-stream")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        ray.init(
            address="local",
            num_cpus=CORES + 1,
            include_dashboard=False,
            object_store_memory=200 << 20,
            _temp_dir=folder,
            logging_level="WARNING",
        )
        serve.start(http_options={"host": "127.0.0.1", "port": PORT}, logging_config=QUIET)
        here = os.path.dirname(os.path.abspath(__file__))
        serve.run(Hidden.bind(DIRECTORY, here), route_prefix="/predict")
        signal.pause()
