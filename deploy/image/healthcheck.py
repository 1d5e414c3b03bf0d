"""Whether the service in this container lives: exit code 0 where /livez says 200, else 1 and one line that says why.

It asks at HEADWATER_HOST and HEADWATER_PORT, so it does not see what the command line says instead of them.
"""

import http.client
import os
import sys

LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
SECONDS = 4.0


def main() -> int:
    """Ask once."""
    host = os.environ.get("HEADWATER_HOST", "")
    port = int(os.environ.get("HEADWATER_PORT") or 8000)
    connection = http.client.HTTPConnection(LOOPBACK.get(host, host), port, timeout=SECONDS)
    try:
        connection.request("GET", "/livez")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        print(f"/livez: {error!r}")
        return 1
    finally:
        connection.close()
    print(f"/livez: {status}")
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
