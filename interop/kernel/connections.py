"""Establishment, rejection and end of connections through rdma_cm.

usage: connections.py FLOW --on ferroce|kernel -p PORT            the passive end, first
       connections.py FLOW --on ferroce|kernel -p PORT ADDRESS    the active end

Both ends get --iwarp on links of type siw.

The exit status is 1 if an end sees anything other than the flow expects. Reject reasons
are the numbers of the CM's REJ message.
"""

import errno
import os
import signal
import struct
import sys
import time

import meeting
from cm import (CM, FLUSHED, OK, RETRIES_EXCEEDED, Events, Id, address, c, call, parameters)

NOBODY_LISTENS, STALE, CONSUMER = 8, 10, 28
# With iWARP the status of a rejection is an error of TCP.
IWARP = {NOBODY_LISTENS: -errno.ECONNREFUSED, CONSUMER: -errno.ECONNRESET}
REFUSAL = b"we are closed on Sundays"
PLACE = struct.Struct("!4sQI")


class End:
    """One of the two ends."""

    def __init__(self, meeting):
        self.swap, self.active, self.meeting = meeting.swap, meeting.active, meeting
        self.driver = meeting.driver
        # Distinct from the TCP port of the control connection.
        self.port = meeting.port + 20000
        self.events = None

    def rejected(self, reason):
        """Waits for a rejection; returns its private data."""
        status = IWARP[reason] if self.meeting.iwarp else reason
        return self.events.next("REJECTED", status)[0]

    def close(self):
        """All objects are released when the process ends."""

    def listen(self):
        """Listens, at the passive end; returns at both ends once it listens."""
        if self.events is None:
            self.events = Events()
        if not self.active:
            self.listener = Id(self.events)
            call("rdma_bind_addr", self.listener.pointer, address(None, self.port))
            call("rdma_listen", self.listener.pointer, 8)
        self.swap()

    def dial(self):
        """Returns a new id of the active end with address and route resolved."""
        id = Id(self.events)
        call("rdma_resolve_addr", id.pointer, None, address(self.meeting.address, self.port), 5000)
        self.events.next("ADDR_RESOLVED", 0)
        call("rdma_resolve_route", id.pointer, 5000)
        self.events.next("ROUTE_RESOLVED", 0)
        return id

    def request(self):
        """Waits for a connection request at the passive end; returns its id and private data."""
        data, known = self.events.next("CONNECT_REQUEST", 0)
        return Id(self.events, known), data

    def connect(self):
        """Connects both ends; returns the id of this end."""
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
            sys.exit(f"private data is {data}, not {word}")
        return id

    def place(self, word, id):
        """Returns private data: a word, and the address and rkey of this end's region."""
        return PLACE.pack(word, c.addressof(id.buffer), id.region.rkey)

    def talk(self, id):
        """Sends a message in each direction and compares the bytes."""
        if self.meeting.iwarp:
            # siw's active end may refuse a message that arrives with the Reply.
            self.swap()
        text = os.urandom(1500)
        id.send(text)
        lengths = [id.completion(OK).length, id.completion(OK).length]
        there = bytes.fromhex(self.swap(text.hex()))
        if 1500 not in lengths or id.heard(1500) != there:
            sys.exit("wrong bytes")
        id.receive()
        self.swap()

    def hang_up(self, id, first):
        """Disconnects. Both ends get DISCONNECTED, and their receives are flushed."""
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
    """The client connects, both exchange messages, and the client disconnects."""
    end.listen()
    id = end.connect()
    end.talk(id)
    end.hang_up(id, end.active)


def server_disconnects(end):
    """The server disconnects, twice in a row."""
    end.listen()
    for _ in range(2):
        id = end.connect()
        end.talk(id)
        end.hang_up(id, not end.active)


def both_disconnect(end):
    """Both ends disconnect at once."""
    end.listen()
    id = end.connect()
    end.talk(id)
    call("rdma_disconnect", id.pointer)
    end.events.next("DISCONNECTED")
    id.completion(FLUSHED)
    id.destroy()


def reject(end):
    """The server rejects a request with private data, and accepts the next one."""
    end.listen()
    if end.active:
        id = end.dial().wire()
        call("rdma_connect", id.pointer, c.byref(parameters(b"hello?")))
        data = end.rejected(CONSUMER)
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
    """Connects, at the active end, to a port without a listener."""
    if end.active:
        id = end.dial().wire()
        told = c.byref(parameters(b"hello?"))
        if end.meeting.iwarp and end.driver == "kernel":
            # siw waits for the TCP connection, and reports no event.
            if CM.rdma_connect(id.pointer, told) == 0 or c.get_errno() != errno.ECONNREFUSED:
                sys.exit(f"rdma_connect: {os.strerror(c.get_errno())}")
        else:
            call("rdma_connect", id.pointer, told)
            end.rejected(NOBODY_LISTENS)
        id.destroy()
    end.swap()


def nobody_listens(end):
    """A connection to a port without a listener is refused; with a listener it works."""
    end.events = Events()
    refused(end)
    end.listen()
    end.hang_up(end.connect(), end.active)


def listener_gone(end):
    """The listener is destroyed: its connection stays, and the next request is refused."""
    end.listen()
    id = end.connect()
    if not end.active:
        end.listener.destroy()
    end.swap()
    refused(end)
    end.talk(id)
    end.hang_up(id, end.active)


def listener_gone_early(end):
    """The listener is destroyed before it has read a pending request."""
    end.listen()
    if end.active:
        id = end.dial().wire()
        call("rdma_connect", id.pointer, c.byref(parameters(b"hello?")))
        end.rejected(CONSUMER)
        id.destroy()
    else:
        if not end.events.pending():
            sys.exit("no connection request")
        end.listener.destroy()
    end.swap()


def caller_gone(end):
    """The client destroys its id before the server accepts. The server gets no event, on
    Linux as with Ferroce, because it has not accepted yet. The next request is accepted."""
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
    """The server's process is killed: the kernel or ferroced disconnects for it."""
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
    """A request from a queue pair that the server still holds as connected, as after a reboot
    of the client. The server rejects it as stale and ends the old connection; the next
    request is accepted."""
    end.listen()
    old = end.connect()
    end.swap()
    if end.active:
        new = end.dial()
        call("rdma_connect", new.pointer, c.byref(parameters(b"hello?", old.number())))
        kinds = sorted(end.events.any("REJECTED", "DISCONNECTED")[:2] for _ in range(2))
        if kinds != [("DISCONNECTED", 0), ("REJECTED", STALE)]:
            sys.exit(f"expected DISCONNECTED and REJECTED {STALE}")
        new.destroy()
    else:
        end.events.next("DISCONNECTED")
    call("rdma_disconnect", old.pointer)
    old.completion(FLUSHED)
    old.destroy()
    end.swap()
    end.hang_up(end.connect(), end.active)


def hold(end):
    """Stays connected until the machine of this end stops."""
    end.listen()
    id = end.connect()
    end.talk(id)
    print("connected", flush=True)
    signal.pause()


def bereaved(end):
    """Stays connected until the other end, which runs `hold`, stops. Then its requests fail,
    and its DREQ gets no reply. With iWARP the connection ends when the machine of the other
    end is up again: its TCP resets the connection."""
    end.listen()
    id = end.connect()
    end.talk(id)
    print("connected", flush=True)
    failure = FLUSHED if end.meeting.iwarp else RETRIES_EXCEEDED
    while True:
        id.write(id.remote)
        if id.completion(OK, failure).status != OK:
            break
        time.sleep(0.05)
    if end.meeting.iwarp:
        # The receive and the last WRITE complete in any order.
        id.completion(OK, FLUSHED)
        end.events.next("DISCONNECTED")
        call("rdma_disconnect", id.pointer)
    else:
        id.completion(FLUSHED)
        print("given up", flush=True)
        call("rdma_disconnect", id.pointer)
        # The DREQ is sent sixteen times, every 4.6 seconds.
        end.events.next("DISCONNECTED", patience=120)
    id.destroy()
    return False


FLOWS = [connect, server_disconnects, both_disconnect, reject, nobody_listens, listener_gone,
         listener_gone_early, caller_gone, killed, stale, hold, bereaved]

meeting.run(FLOWS, End)
