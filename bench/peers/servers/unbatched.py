"""FastAPI and transformers as most would write it, without the usual faults: one thread owns the model, one request
runs at a time, answers are binary: `unbatched.py MODEL PORT`."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from fastapi import FastAPI, Request, Response
from hidden import forward, model

DIRECTORY, PORT = sys.argv[1], int(sys.argv[2])

app = FastAPI()
thread = ThreadPoolExecutor(max_workers=1)


@app.post("/predict")
async def predict(request: Request) -> Response:
    call = await request.json()
    loop = asyncio.get_running_loop()
    (answer,) = await loop.run_in_executor(thread, forward, DIRECTORY, [call])
    return Response(answer, media_type="application/octet-stream")


if __name__ == "__main__":
    model(DIRECTORY, "sdpa")
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning", access_log=False)
