"""Calls made up from /openapi.json find no fault of ours, and no answer that the document does not tell of."""

import os
import subprocess
import sys
from pathlib import Path

from tests.server import Server

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_no_call_that_the_document_allows_or_forbids_gets_an_undocumented_answer(
    tiny_server: Server, tmp_path: Path
) -> None:
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{tiny_server.url}/openapi.json",
        "--checks", CHECKS, "--max-examples", "40", "--seed", "7", "--phases", "examples,coverage,fuzzing",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=150, cwd=tmp_path, env=os.environ | {"NO_PROXY": "127.0.0.1"}
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
