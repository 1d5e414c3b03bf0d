"""LitServe with batches of up to so many requests: `litserve_batched.py MODEL PORT BATCH_SIZE`."""

import sys

import litserve
from fastapi import Request, Response
from hidden import forward, model

BATCH_SECONDS = 0.005  # how long a batch gathers; with 0, the default, an idle worker keeps a core busy


class Hidden(litserve.LitAPI):
    """Decoded JSON in, one Response a call out; the batch is a list of calls, which `forward` pads."""

    def setup(self, device):
        self.directory = sys.argv[1]
        model(self.directory, "sdpa")

    def decode_request(self, request: Request):
        return request

    def batch(self, inputs):
        return inputs

    def predict(self, calls):
        return forward(self.directory, calls)

    def unbatch(self, output):
        return output

    def encode_response(self, output) -> Response:
        return Response(output, media_type="application/octet-stream")


if __name__ == "__main__":
    api = Hidden(max_batch_size=int(sys.argv[3]), batch_timeout=BATCH_SECONDS)
    server = litserve.LitServer(api, accelerator="cpu", timeout=False)
    server.run(
        host="127.0.0.1", port=int(sys.argv[2]), num_api_servers=1, log_level="warning", generate_client_file=False
    )
