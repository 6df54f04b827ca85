"""What the trivial environments of both implementations answer with."""

from __future__ import annotations

import base64
import random
from typing import Any

PAYLOADS: dict[str, Any] = {
    "100B": "x" * 40,
    "10kB": "x" * 10_000,
    "1MB": base64.b64encode(random.Random(0).randbytes(750_000)).decode(),
    "ints": [[[(r * c + k) % 256 for k in range(3)] for c in range(84)] for r in range(84)],
}
