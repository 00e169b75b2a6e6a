#!/usr/bin/env python3
"""Times NCCL's collectives between two ranks on one GPU, and checks their data.

Usage: ferroce run python3 collectives.py [BYTES...]

Each rank claims a host of its own (NCCL_HOSTID): otherwise NCCL refuses two ranks on one GPU.
Prints a line for each operation and size: mean time, and bytes per second of one rank.
"""

import os
import subprocess
import sys
import time

SIZES = [4, 64, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]


def main():
    sizes = [int(size) for size in sys.argv[1:]] or SIZES
    if "RANK" not in os.environ:
        sys.exit(start_ranks())
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    if rank == 0:
        print(f"{'operation':12} {'bytes':>10} {'us':>10} {'GB/s':>7}  data")
    for name in ["all_reduce", "all_to_all", "send_recv"]:
        for size in sizes:
            measure(torch, dist, rank, name, size)
    dist.destroy_process_group()


def start_ranks():
    """Runs this program once per rank. Returns the exit status."""
    ranks = []
    for rank in range(2):
        env = dict(os.environ, RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
        env["NCCL_HOSTID"] = f"host{rank}"
        ranks.append(subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], env=env))
    return max(abs(rank.wait()) for rank in ranks)


def values(torch, rank, count, seed):
    """Returns the data of a rank: different for each operation and size."""
    at = torch.arange(count, dtype=torch.int32, device="cuda")
    return (at * 40503 + seed * 7919 + rank * 104729) % 100003


def measure(torch, dist, rank, name, size):
    count, seed = size // 4, size % 9973 + len(name)
    pieces = name == "all_to_all"
    # all_to_all sends a half to each rank.
    count += count % 2 if pieces else 0
    mine, other = (values(torch, r, count, seed) for r in (rank, 1 - rank))
    result = torch.empty_like(mine)
    half = count // 2

    def run():
        if name == "all_reduce":
            result.copy_(mine)
            dist.all_reduce(result)
        elif pieces:
            dist.all_to_all_single(result, mine)
        elif rank == 0:
            dist.send(mine, 1)
            dist.recv(result, 1)
        else:
            dist.recv(result, 0)
            dist.send(mine, 0)

    if name == "all_reduce":
        expected = mine + other
    elif pieces:
        # Half `rank` of either rank, in the order of ranks.
        both = [mine, other] if rank == 0 else [other, mine]
        expected = torch.cat([data[rank * half : (rank + 1) * half] for data in both])
    else:
        expected = other
    result.fill_(-1)
    run()
    torch.cuda.synchronize()
    right = bool(torch.equal(result, expected))
    rounds = 20 if size <= 1 << 20 else 5 if size <= 16 << 20 else 2
    dist.barrier()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(rounds):
        run()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / rounds
    right = right and bool(torch.equal(result, expected))
    if rank == 0 or not right:
        state = "right" if right else f"WRONG at rank {rank}"
        rate = size / seconds / 1e9
        # One write: warnings of the other rank must not come between a line and its end.
        line = f"{name:12} {size:10} {seconds * 1e6:10.1f} {rate:7.3f}  {state}\n"
        sys.stdout.flush()
        os.write(1, line.encode())
    if not right:
        sys.exit(1)


main()
