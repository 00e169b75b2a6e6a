"""A minimal ctypes binding of librdmacm, for one end of a connection.

Unlike rdma-core's Python bindings, it reports the reason of a rejection. It loads the first
librdmacm that the dynamic linker finds: the distribution's, or Ferroce's.
"""

import ctypes as c
import os
import select
import socket
import struct
import sys
import time

PATIENCE = 60
TCP = 0x0106
RC = 2
SEND, WRITE = 2, 0
SIGNALED = 2
LOCAL_WRITE, REMOTE_WRITE = 1, 2
OK, FLUSHED, RETRIES_EXCEEDED = 0, 5, 12
EVENTS = ["ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST",
          "CONNECT_RESPONSE", "CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED",
          "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN", "MULTICAST_ERROR",
          "ADDR_CHANGE", "TIMEWAIT_EXIT"]
SIZE = 4096
# Indices of operations in a context's table, which follows one pointer.
POLL_CQ, POST_SEND, POST_RECV = 11, 25, 26


class Parameters(c.Structure):
    _fields_ = [("data", c.c_void_p), ("length", c.c_uint8), ("responder_resources", c.c_uint8),
                ("initiator_depth", c.c_uint8), ("flow_control", c.c_uint8),
                ("retry_count", c.c_uint8), ("rnr_retry_count", c.c_uint8), ("srq", c.c_uint8),
                ("qp_num", c.c_uint32)]


class Event(c.Structure):
    _fields_ = [("id", c.c_void_p), ("listener", c.c_void_p), ("kind", c.c_int),
                ("status", c.c_int), ("told", Parameters)]


class Identifier(c.Structure):
    """The first fields of struct rdma_cm_id."""
    _fields_ = [("context", c.c_void_p), ("channel", c.c_void_p), ("user", c.c_void_p),
                ("qp", c.c_void_p)]


class Channel(c.Structure):
    _fields_ = [("fd", c.c_int)]


class QpAttributes(c.Structure):
    _fields_ = [("user", c.c_void_p), ("send_cq", c.c_void_p), ("recv_cq", c.c_void_p),
                ("srq", c.c_void_p), ("max", c.c_uint32 * 5), ("kind", c.c_int),
                ("all_signaled", c.c_int)]


class Region(c.Structure):
    _fields_ = [("context", c.c_void_p), ("pd", c.c_void_p), ("address", c.c_void_p),
                ("length", c.c_size_t), ("handle", c.c_uint32), ("lkey", c.c_uint32),
                ("rkey", c.c_uint32)]


class Piece(c.Structure):
    _fields_ = [("address", c.c_uint64), ("length", c.c_uint32), ("key", c.c_uint32)]


class Request(c.Structure):
    """A send work request; its first four fields are also those of a receive."""
    _fields_ = [("id", c.c_uint64), ("next", c.c_void_p), ("pieces", c.POINTER(Piece)),
                ("count", c.c_int), ("opcode", c.c_int), ("flags", c.c_uint),
                ("immediate", c.c_uint32), ("remote", c.c_uint64), ("key", c.c_uint32),
                ("rest", c.c_uint8 * 80)]


class Completion(c.Structure):
    _fields_ = [("id", c.c_uint64), ("status", c.c_int), ("opcode", c.c_int),
                ("vendor", c.c_uint32), ("length", c.c_uint32), ("rest", c.c_uint8 * 24)]


VERBS = c.CDLL("libibverbs.so.1", use_errno=True)
CM = c.CDLL("librdmacm.so.1", use_errno=True)
POINTERS = {CM: ["rdma_create_event_channel"], VERBS: ["ibv_alloc_pd", "ibv_create_cq"]}
for library, names in POINTERS.items():
    for name in names:
        getattr(library, name).restype = c.c_void_p
VERBS.ibv_reg_mr.restype = c.POINTER(Region)


def well(result, what):
    """Returns the result of a call; exits if it is a null pointer or negative."""
    if result is None or isinstance(result, int) and result < 0:
        sys.exit(f"{what}: {os.strerror(c.get_errno())}")
    return result


def call(name, *arguments):
    well(getattr(CM, name)(*arguments), name)


def address(host, port):
    """Returns a socket address; without a host, the wildcard address."""
    return c.create_string_buffer(
        struct.pack("=H", socket.AF_INET) + struct.pack("!H", port)
        + socket.inet_aton(host or "0.0.0.0") + bytes(8), 16)


def parameters(data, qpn=0):
    """Returns connection parameters with few retries, so that a broken connection fails soon."""
    kept = c.create_string_buffer(data, len(data))
    told = Parameters(c.cast(kept, c.c_void_p), len(data), 1, 1, 0, 2, 7, 0, qpn)
    told.kept = kept
    return told


class Id:
    """One end of a connection, or a listener."""

    def __init__(self, channel, known=None):
        self.channel, self.pointer = channel, c.c_void_p(known)
        if known is None:
            call("rdma_create_id", c.c_void_p(channel.pointer), c.byref(self.pointer), None, TCP)

    def wire(self):
        """Creates a queue pair, and a region that the other end may write to."""
        self.head = c.cast(self.pointer, c.POINTER(Identifier)).contents
        context = c.c_void_p(self.head.context)
        self.pd = c.c_void_p(well(VERBS.ibv_alloc_pd(context), "ibv_alloc_pd"))
        cq = well(VERBS.ibv_create_cq(context, 64, None, None, 0), "ibv_create_cq")
        self.cq = c.c_void_p(cq)
        self.buffer = c.create_string_buffer(SIZE)
        access = LOCAL_WRITE | REMOTE_WRITE
        region = VERBS.ibv_reg_mr(self.pd, self.buffer, c.c_size_t(SIZE), access)
        self.region = well(region, "ibv_reg_mr").contents
        wanted = QpAttributes(None, cq, cq, None, (16, 16, 1, 1, 0), RC, 0)
        call("rdma_create_qp", self.pointer, self.pd, c.byref(wanted))
        return self

    def number(self):
        """Returns the queue pair number. In struct ibv_qp it follows six pointers and the
        handle."""
        return c.cast(self.head.qp, c.POINTER(c.c_uint32))[13]

    def operation(self, number, *arguments):
        table = c.cast(self.head.context, c.POINTER(c.c_void_p))
        function = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_void_p)
        result = function(table[1 + number])(*arguments)
        return well(-result if number != POLL_CQ else result, f"operation {number}")

    def post(self, number, length, opcode=0, remote=(0, 0)):
        piece = Piece(c.addressof(self.buffer), length, self.region.lkey)
        if number == POST_RECV:
            piece.address += SIZE // 2
        request = Request(1, None, c.pointer(piece), 1, opcode, SIGNALED, 0, *remote)
        bad = c.c_void_p()
        self.operation(number, self.head.qp, c.addressof(request), c.addressof(bad))

    def receive(self):
        self.post(POST_RECV, SIZE // 2)

    def send(self, data):
        self.buffer[:len(data)] = data
        self.post(POST_SEND, len(data), SEND)

    def write(self, remote):
        self.post(POST_SEND, 8, WRITE, remote)

    def completion(self, *allowed):
        """Waits for the next completion, whose status must be one of `allowed`."""
        found = Completion()
        end = time.monotonic() + PATIENCE
        while not self.operation(POLL_CQ, self.cq.value, 1, c.addressof(found)):
            if time.monotonic() > end:
                sys.exit("no completion")
        if found.status not in allowed:
            sys.exit(f"a completion with status {found.status}, not one of {allowed}")
        return found

    def heard(self, length):
        return self.buffer[SIZE // 2:SIZE // 2 + length]

    def destroy(self):
        if hasattr(self, "head"):
            CM.rdma_destroy_qp(self.pointer)
        call("rdma_destroy_id", self.pointer)


class Events:
    """An event channel."""

    def __init__(self):
        self.pointer = well(CM.rdma_create_event_channel(), "rdma_create_event_channel")
        self.fd = c.cast(self.pointer, c.POINTER(Channel)).contents.fd

    def pending(self, seconds=PATIENCE):
        return bool(select.select([self.fd], [], [], seconds)[0])

    def next(self, want, status=None, patience=PATIENCE):
        """Waits for the next event, which must be `want`; returns its private data and its id."""
        kind, why, data, known = self.any(want, patience=patience)
        if status is not None and why != status:
            sys.exit(f"expected {want} {status}")
        return data, known

    def any(self, *wanted, patience=PATIENCE):
        """Waits for the next event, which must be one of `wanted`; returns its name, status,
        private data and id."""
        if not self.pending(patience):
            sys.exit(f"no event, expected {' or '.join(wanted)}")
        found = c.POINTER(Event)()
        call("rdma_get_cm_event", c.c_void_p(self.pointer), c.byref(found))
        event = found.contents
        data = c.string_at(event.told.data, event.told.length) if event.told.data else b""
        kind, why, known = EVENTS[event.kind], event.status, event.id
        call("rdma_ack_cm_event", found)
        print("event:", kind, why, flush=True)
        if kind not in wanted:
            sys.exit(f"expected {' or '.join(wanted)}")
        return kind, why, data, known
