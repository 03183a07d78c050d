"""Run as three processes: one is killed when the others have said goodbye and wait for its own."""

import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist

from outsize.errors import OwnerError
from outsize.stores.served.request_channel import RequestChannel
from outsize.testing.checks import refusal

folder, number = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=number, world_size=3)
channel = RequestChannel(lambda source, request: request.content)
if number == 2:
    channel.barrier()
    channel._server.join()  # it has ended: both others have said goodbye
    os.kill(os.getpid(), signal.SIGKILL)
print(f"rank {number} was told: {refusal(OwnerError, channel.close)}", flush=True)
os._exit(0)
