"""Run on two ranks: the second is killed some seconds into a swap of large messages in pieces."""

import os
import signal
import sys
import threading

import torch

from outsize.errors import LostRanksError
from outsize.ranks.collectives import ProcessRanks, process_group

_BYTES = 1 << 24

os.environ["LOCAL_WORLD_SIZE"] = "1"  # as on several machines
try:
    with process_group(torch.device("cpu")):
        ranks = ProcessRanks()
        sent = [torch.zeros(_BYTES, dtype=torch.uint8)] * 2
        for turn in range(10_000):
            if ranks.rank == 1 and turn == 5:
                threading.Timer(float(sys.argv[1]), os.kill, (os.getpid(), signal.SIGKILL)).start()
            ranks.swap_bytes(sent, [_BYTES] * 2)
except LostRanksError as error:
    print(error, file=sys.stderr, flush=True)
    os._exit(3)
