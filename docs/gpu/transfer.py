#!/usr/bin/env python3
"""Moves memory of a GPU between two processes with NIXL or Mooncake, and checks the data.

Usage: ferroce run python3 transfer.py nixl|mooncake gpu|host [BYTES...]

One process initiates, the other owns the remote memory. Each size is written and read. Prints a line for each
operation and size: bytes per second of the fastest of five transfers, and whether the data is right at the end.
"""

import hashlib
import importlib
import multiprocessing
import sys
import time

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
DEVICE = "rxe0"
REPEATS = 5


class Memory:
    """One block of memory, of the host or of GPU 0."""

    def __init__(self, kind, size):
        import numpy

        self.numpy = numpy
        self.kind = kind
        self.size = size
        if kind == "gpu":
            import torch

            self.torch = torch
            self.block = torch.zeros(size, dtype=torch.uint8, device="cuda:0")
            self.address = self.block.data_ptr()
            torch.cuda.synchronize()
        else:
            self.block = numpy.zeros(size, numpy.uint8)
            self.address = self.block.ctypes.data

    def fill(self, seed, size):
        data = self.numpy.random.default_rng(seed).integers(0, 256, size, self.numpy.uint8)
        if self.kind == "gpu":
            self.block[:size].copy_(self.torch.from_numpy(data))
            self.torch.cuda.synchronize()
        else:
            self.block[:size] = data

    def digest(self, size):
        data = self.block[:size].cpu().numpy() if self.kind == "gpu" else self.block[:size]
        return hashlib.sha256(data.tobytes()).hexdigest()


class Nixl:
    """A NIXL agent with the UCX backend."""

    def __init__(self, name, memory):
        for package in ("nixl_cu13", "nixl_cu12"):
            try:
                api = importlib.import_module(f"{package}._api")
                break
            except ModuleNotFoundError:
                continue
        else:
            sys.exit("error: neither nixl-cu13 nor nixl-cu12 is installed")
        self.agent = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
        self.type = "VRAM" if memory.kind == "gpu" else "DRAM"
        self.memory = memory
        self.agent.register_memory([(memory.address, memory.size, 0, "")], self.type)

    def describe(self):
        return self.agent.get_agent_metadata(), self.memory.address

    def connect(self, description):
        metadata, self.remote = description
        self.peer = self.agent.add_remote_agent(metadata)

    def transfer(self, operation, size):
        local = self.agent.get_xfer_descs([(self.memory.address, size, 0)], self.type)
        remote = self.agent.get_xfer_descs([(self.remote, size, 0)], self.type)
        handle = self.agent.initialize_xfer(operation, local, remote, self.peer)
        state = self.agent.transfer(handle)
        while state not in ("DONE", "ERR"):
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            sys.exit(f"error: {operation} of {size} bytes ended with {state}")


class Mooncake:
    """Mooncake's transfer engine with protocol rdma."""

    def __init__(self, name, memory):
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        result = self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", DEVICE)
        if result != 0:
            sys.exit(f"error: TransferEngine.initialize returned {result}")
        self.memory = memory
        result = self.engine.register_memory(memory.address, memory.size)
        if result != 0:
            sys.exit(f"error: register_memory returned {result}")

    def describe(self):
        return f"127.0.0.1:{self.engine.get_rpc_port()}", self.memory.address

    def connect(self, description):
        self.peer, self.remote = description

    def transfer(self, operation, size):
        call = {"WRITE": self.engine.transfer_sync_write, "READ": self.engine.transfer_sync_read}[operation]
        result = call(self.peer, self.memory.address, self.remote, size)
        if result != 0:
            sys.exit(f"error: {operation} of {size} bytes returned {result}")


LIBRARIES = {"nixl": Nixl, "mooncake": Mooncake}


def own_remote_memory(library, kind, size, pipe):
    """The process whose memory the other one accesses. It fills its memory, and returns digests of it."""
    memory = Memory(kind, size)
    end = LIBRARIES[library]("owner", memory)
    pipe.send(end.describe())
    while (request := pipe.recv()) is not None:
        word, *arguments = request
        if word == "fill":
            memory.fill(*arguments)
        pipe.send(memory.digest(arguments[-1]))


def main():
    library, kind, *sizes = sys.argv[1:]
    sizes = [int(size) for size in sizes] or SIZES
    if library not in LIBRARIES or kind not in ("gpu", "host"):
        sys.exit(__doc__)
    context = multiprocessing.get_context("spawn")
    pipe, far = context.Pipe()
    owner = context.Process(target=own_remote_memory, args=(library, kind, max(sizes), far))
    owner.start()
    far.close()
    memory = Memory(kind, max(sizes))
    end = LIBRARIES[library]("initiator", memory)
    end.connect(pipe.recv())
    wrong = 0
    print(f"{'library':9} {'memory':6} {'operation':9} {'bytes':>10} {'us':>10} {'GB/s':>7}  data", flush=True)
    for operation in ("WRITE", "READ"):
        for size in sizes:
            seed = size + len(operation)
            if operation == "WRITE":
                memory.fill(seed, size)
                expected = memory.digest(size)
            else:
                pipe.send(("fill", seed, size))
                expected = pipe.recv()
            best = float("inf")
            for _ in range(REPEATS):
                begun = time.perf_counter()
                end.transfer(operation, size)
                best = min(best, time.perf_counter() - begun)
            if operation == "WRITE":
                pipe.send(("digest", size))
                found = pipe.recv()
            else:
                found = memory.digest(size)
            right = found == expected
            wrong += not right
            print(f"{library:9} {kind:6} {operation:9} {size:10} {best * 1e6:10.1f} {size / best / 1e9:7.3f}  "
                  f"{'right' if right else 'WRONG'}", flush=True)
    pipe.send(None)
    owner.join()
    sys.exit(1 if wrong or owner.exitcode else 0)


if __name__ == "__main__":
    main()
