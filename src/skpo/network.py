"""Whether the Hugging Face hub can be reached at all."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies


def hub_reachable(seconds: float = 3.0) -> bool:
    """False where the hub certainly can't be reached; spares the user huggingface_hub's minute of retries."""
    if getproxies():
        return True
    url = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        socket.create_connection((url.hostname or "", url.port or 443), timeout=seconds).close()
    except OSError:
        return False
    return True
