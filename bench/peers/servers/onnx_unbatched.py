"""ONNX Runtime behind the same FastAPI as `unbatched.py`: `onnx_unbatched.py MODEL PORT`. Final states alone."""

import asyncio
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, Request, Response
from onnx_graph import write

DIRECTORY, PORT = sys.argv[1], int(sys.argv[2])

app = FastAPI()
thread = ThreadPoolExecutor(max_workers=1)


def session():
    """Of the graph, with all optimizations, on all cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        write(DIRECTORY, path)
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def forward(call):
    """The final states of one call, as bytes."""
    ids = np.array([call["tokens"]], dtype=np.int64)
    (final,) = stack.run(["final"], {"ids": ids, "positions": np.arange(ids.shape[1])[None]})
    return final.tobytes()


@app.post("/predict")
async def predict(request: Request) -> Response:
    answer = await asyncio.get_running_loop().run_in_executor(thread, forward, await request.json())
    return Response(answer, media_type="application/octet-stream")


if __name__ == "__main__":
    stack = session()
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning", access_log=False)
