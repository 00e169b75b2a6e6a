"""Connections of two ends through rdma_cm: made, refused, ended, forgotten.

usage: connections.py FLOW --on ferroce|kernel -p PORT            the passive end, first
       connections.py FLOW --on ferroce|kernel -p PORT ADDRESS    the active end

Exit status 1 if an end is told anything but what the flow says. Why a connection was
refused is told in the numbers of the wire.
"""

import os
import signal
import struct
import sys
import time

import meeting
from cm import (FLUSHED, OK, RETRIES_EXCEEDED, Events, Id, address, c, call, parameters)

NOBODY_LISTENS, STALE, CONSUMER = 8, 10, 28
REFUSAL = b"we are closed on Sundays"
PLACE = struct.Struct("!4sQI")


class End:
    """One of the two ends."""

    def __init__(self, meeting):
        self.swap, self.active, self.meeting = meeting.swap, meeting.active, meeting
        self.driver = meeting.driver
        # Beside the TCP port on which the ends meet.
        self.port = meeting.port + 20000
        self.events = None

    def close(self):
        """Whatever is left goes with the process."""

    def listen(self):
        """Begins to listen, at the passive end; returns when somebody does."""
        if self.events is None:
            self.events = Events()
        if not self.active:
            self.listener = Id(self.events)
            call("rdma_bind_addr", self.listener.pointer, address(None, self.port))
            call("rdma_listen", self.listener.pointer, 8)
        self.swap()

    def dial(self):
        """A new id of the active end that knows its way."""
        id = Id(self.events)
        call("rdma_resolve_addr", id.pointer, None, address(self.meeting.address, self.port), 5000)
        self.events.next("ADDR_RESOLVED", 0)
        call("rdma_resolve_route", id.pointer, 5000)
        self.events.next("ROUTE_RESOLVED", 0)
        return id

    def request(self):
        """What somebody wants of the passive end."""
        data, known = self.events.next("CONNECT_REQUEST", 0)
        return Id(self.events, known), data

    def connect(self):
        """A connection, at both ends."""
        if self.active:
            id = self.dial().wire()
            id.receive()
            call("rdma_connect", id.pointer, c.byref(parameters(self.place(b"call", id))))
            data, _ = self.events.next("ESTABLISHED", 0)
            word = b"come"
        else:
            id, data = self.request()
            id.wire().receive()
            call("rdma_accept", id.pointer, c.byref(parameters(self.place(b"come", id))))
            self.events.next("ESTABLISHED", 0)
            word = b"call"
        said, *id.remote = PLACE.unpack(data[:PLACE.size])
        if said != word:
            sys.exit(f"private data {data}, not {word}")
        return id

    def place(self, word, id):
        """Private data: a word, and where the other end may write."""
        return PLACE.pack(word, c.addressof(id.buffer), id.region.rkey)

    def talk(self, id):
        """Messages both ways."""
        text = os.urandom(1500)
        id.send(text)
        lengths = [id.completion(OK).length, id.completion(OK).length]
        there = bytes.fromhex(self.swap(text.hex()))
        if 1500 not in lengths or id.heard(1500) != there:
            sys.exit("wrong bytes")
        id.receive()
        self.swap()

    def hang_up(self, id, first):
        """Both ends learn that it is over; what they waited for is flushed."""
        if first:
            call("rdma_disconnect", id.pointer)
            self.events.next("DISCONNECTED")
        else:
            self.events.next("DISCONNECTED")
            call("rdma_disconnect", id.pointer)
        id.completion(FLUSHED)
        id.destroy()
        self.swap()


def connect(end):
    """Made, used, and ended by the client."""
    end.listen()
    id = end.connect()
    end.talk(id)
    end.hang_up(id, end.active)


def server_disconnects(end):
    """Made, used, and ended by the server; then made once more."""
    end.listen()
    for _ in range(2):
        id = end.connect()
        end.talk(id)
        end.hang_up(id, not end.active)


def both_disconnect(end):
    """Ended by both at once."""
    end.listen()
    id = end.connect()
    end.talk(id)
    call("rdma_disconnect", id.pointer)
    end.events.next("DISCONNECTED")
    id.completion(FLUSHED)
    id.destroy()


def reject(end):
    """Refused, with a reason of the server's own; the next call is answered."""
    end.listen()
    if end.active:
        id = end.dial().wire()
        call("rdma_connect", id.pointer, c.byref(parameters(b"hello?")))
        data, _ = end.events.next("REJECTED", CONSUMER)
        if not data.startswith(REFUSAL):
            sys.exit(f"private data {data}")
        id.destroy()
    else:
        id, data = end.request()
        if not data.startswith(b"hello?"):
            sys.exit(f"private data {data}")
        call("rdma_reject", id.pointer, REFUSAL, len(REFUSAL))
        id.destroy()
    end.swap()
    end.hang_up(end.connect(), end.active)


def refused(end):
    """Calls, at the active end, where nobody listens."""
    if end.active:
        id = end.dial().wire()
        call("rdma_connect", id.pointer, c.byref(parameters(b"hello?")))
        end.events.next("REJECTED", NOBODY_LISTENS)
        id.destroy()
    end.swap()


def nobody_listens(end):
    """Nobody listens, then somebody does."""
    end.events = Events()
    refused(end)
    end.listen()
    end.hang_up(end.connect(), end.active)


def listener_gone(end):
    """The listener goes: whom it has connected stays connected, the next is refused."""
    end.listen()
    id = end.connect()
    if not end.active:
        end.listener.destroy()
    end.swap()
    refused(end)
    end.talk(id)
    end.hang_up(id, end.active)


def listener_gone_early(end):
    """The listener goes before it has looked at a call."""
    end.listen()
    if end.active:
        id = end.dial().wire()
        call("rdma_connect", id.pointer, c.byref(parameters(b"hello?")))
        end.events.next("REJECTED", CONSUMER)
        id.destroy()
    else:
        if not end.events.pending():
            sys.exit("nobody calls")
        end.listener.destroy()
    end.swap()


def caller_gone(end):
    """The caller goes before it is answered. The server is told nothing, on Linux as here:
    it has not taken the call yet. The next one is answered."""
    end.listen()
    if end.active:
        id = end.dial().wire()
        call("rdma_connect", id.pointer, c.byref(parameters(b"hello?")))
        end.swap()
        id.destroy()
        end.swap()
    else:
        id, _ = end.request()
        end.swap()
        end.swap()
        id.destroy()
    end.swap()
    end.hang_up(end.connect(), end.active)


def killed(end):
    """The server's process is killed: its system takes leave for it."""
    if end.active:
        end.listen()
        id = end.connect()
        end.talk(id)
        end.swap()
        end.events.next("DISCONNECTED")
        call("rdma_disconnect", id.pointer)
        id.completion(FLUSHED)
        id.destroy()
        return
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            sys.exit("the server failed")
        return
    end.listen()
    end.talk(end.connect())
    end.swap()
    os.kill(os.getpid(), signal.SIGKILL)


def stale(end):
    """A second call from a queue pair that is connected as far as the server knows, as one
    from a machine that has been started anew: the call is refused, the old connection ends,
    and then calls are answered."""
    end.listen()
    old = end.connect()
    end.swap()
    if end.active:
        new = end.dial()
        call("rdma_connect", new.pointer, c.byref(parameters(b"hello?", old.number())))
        kinds = sorted(end.events.any("REJECTED", "DISCONNECTED")[:2] for _ in range(2))
        if kinds != [("DISCONNECTED", 0), ("REJECTED", STALE)]:
            sys.exit(f"that should be DISCONNECTED and REJECTED {STALE}")
        new.destroy()
    else:
        end.events.next("DISCONNECTED")
    call("rdma_disconnect", old.pointer)
    old.completion(FLUSHED)
    old.destroy()
    end.swap()
    end.hang_up(end.connect(), end.active)


def hold(end):
    """Stays connected until its machine stops."""
    end.listen()
    id = end.connect()
    end.talk(id)
    print("connected", flush=True)
    signal.pause()


def bereaved(end):
    """Stays connected until the other end, which is at `hold`, does not answer any more.
    Then its requests fail, and it can take leave of nobody."""
    end.listen()
    id = end.connect()
    end.talk(id)
    print("connected", flush=True)
    while True:
        id.write(id.remote)
        if id.completion(OK, RETRIES_EXCEEDED).status != OK:
            break
        time.sleep(0.05)
    id.completion(FLUSHED)
    print("given up", flush=True)
    call("rdma_disconnect", id.pointer)
    # A request to disconnect is sent sixteen times, every 4.6 seconds.
    end.events.next("DISCONNECTED", patience=120)
    id.destroy()
    return False


FLOWS = [connect, server_disconnects, both_disconnect, reject, nobody_listens, listener_gone,
         listener_gone_early, caller_gone, killed, stale, hold, bereaved]

meeting.run(FLOWS, End)
