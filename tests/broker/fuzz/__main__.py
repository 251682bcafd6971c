"""`make fuzz`: changed frames and requests by the million, from a seed. Ends with a line of JSON, or at a surprise."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

from tests.broker.fuzz.frames import fuzz_frames
from tests.broker.fuzz.requests import fuzz_requests
from tests.broker.fuzz.watch import MAX_GROWTH, Watch

SHARE_OVER_SOCKETS = 50  # one frame in so many


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.broker.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="changed frames [1000000]")
    parser.add_argument("--requests", type=int, default=100_000, help="changed requests over HTTP [100000]")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    started = time.monotonic()
    over_sockets = asked.frames // SHARE_OVER_SOCKETS
    growth = []
    with Watch(hangs_end=True, say=say) as watch:
        frames = asyncio.run(fuzz_frames(asked.seed, asked.frames - over_sockets, watch))
        growth.append(watch.growth)
    with Watch(hangs_end=True, say=say) as watch:
        sockets = asyncio.run(fuzz_frames(asked.seed + 1, over_sockets, watch, over_sockets=True))
    with Watch(hangs_end=True, say=say) as watch:
        statuses = asyncio.run(fuzz_requests(asked.seed, asked.requests, watch))
        growth.append(watch.growth)
    result = {
        "seed": asked.seed,
        "changed_frames": frames.changed + sockets.changed,
        "frames": frames.frames + sockets.frames,
        "over_sockets": sockets.changed,
        "conversations": frames.conversations + sockets.conversations,
        "slowest_conversation_seconds": round(frames.slowest, 3),
        "requests": asked.requests,
        "statuses": dict(sorted(statuses.items())),
        "memory_growth_mb": [round(one / 2**20, 1) for one in growth],
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(result))
    return 0 if max(growth) <= MAX_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
