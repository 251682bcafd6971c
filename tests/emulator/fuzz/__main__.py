"""`make fuzz`: sends mutated frames and requests from a seed; prints JSON, or stops at the first failure."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

from tests.emulator.fuzz.frames import fuzz_frames
from tests.emulator.fuzz.requests import fuzz_requests
from tests.emulator.fuzz.watch import MAX_GROWTH, Watch

SHARE_OVER_SOCKETS = 50  # one frame in this many


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="mutated frames [1000000]")
    parser.add_argument("--requests", type=int, default=100_000, help="mutated HTTP requests [100000]")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.monotonic()
    over_sockets = arguments.frames // SHARE_OVER_SOCKETS
    growth = []
    with Watch(exit_on_hang=True, say=say) as watch:
        frames = asyncio.run(fuzz_frames(arguments.seed, arguments.frames - over_sockets, watch))
        growth.append(watch.growth)
    with Watch(exit_on_hang=True, say=say) as watch:
        sockets = asyncio.run(fuzz_frames(arguments.seed + 1, over_sockets, watch, over_sockets=True))
    with Watch(exit_on_hang=True, say=say) as watch:
        statuses = asyncio.run(fuzz_requests(arguments.seed, arguments.requests, watch))
        growth.append(watch.growth)
    result = {
        "seed": arguments.seed,
        "changed_frames": frames.changed + sockets.changed,
        "frames": frames.frames + sockets.frames,
        "over_sockets": sockets.changed,
        "conversations": frames.conversations + sockets.conversations,
        "slowest_conversation_seconds": round(frames.slowest, 3),
        "requests": arguments.requests,
        "statuses": dict(sorted(statuses.items())),
        "memory_growth_mb": [round(size / 2**20, 1) for size in growth],
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(result))
    return 0 if max(growth) <= MAX_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
