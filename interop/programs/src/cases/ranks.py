# Ranks in a ring send messages to their neighbours and check every byte.
import struct
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
left, right = (rank - 1) % size, (rank + 1) % size


def message(sender, length):
    return bytes((sender + place) % 251 for place in range(length))


for length in (0, 1, 1000, 10_000, 100_000, 1_000_000):
    received = bytearray(length)
    world.Sendrecv(message(rank, length), right, recvbuf=received, source=left)
    assert received == message(left, length), f"{length} bytes arrived changed"
total = world.allreduce(rank + 1)

# Each rank adds 1 ten times in the memory of rank 0.
memory = bytearray(8)
window = MPI.Win.Create(memory, 1, MPI.INFO_NULL, world)
one = bytearray(struct.pack("q", 1))
window.Lock_all()
for _ in range(10):
    window.Accumulate([one, MPI.INT64_T], 0, op=MPI.SUM)
window.Unlock_all()
world.Barrier()
if rank == 0:
    print(f"{size} ranks, sum {total}, counted {struct.unpack('q', memory)[0]}")
window.Free()
