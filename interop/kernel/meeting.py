"""The control connection of two ends: they exchange lines of JSON over TCP, one each way,
to pass addresses and keys and to synchronise."""

import argparse
import json
import socket
import sys


class Meeting:
    """One end of the control connection. The `active` end was given an address."""

    def __init__(self, stream, active, driver, port, address, iwarp):
        self.stream, self.lines = stream, stream.makefile("r")
        self.active, self.driver = active, driver
        self.port, self.address, self.iwarp = port, address, iwarp

    def tell(self, mine=None):
        self.stream.sendall(json.dumps(mine).encode() + b"\n")

    def hear(self):
        line = self.lines.readline()
        if not line:
            sys.exit("the other end closed the control connection")
        return json.loads(line)

    def swap(self, mine=None):
        """Sends a message to the other end, and returns the message of the other end."""
        self.tell(mine)
        return self.hear()


def run(flows, end_of):
    """Runs the flow that the command line names. A flow may return False: then the other
    end has ended, and this end does not synchronise with it."""
    flows = {flow.__name__: flow for flow in flows}
    parser = argparse.ArgumentParser()
    parser.add_argument("flow", choices=flows)
    parser.add_argument("--on", choices=["ferroce", "kernel"], required=True)
    parser.add_argument("--iwarp", action="store_true")
    parser.add_argument("-p", type=int, required=True)
    parser.add_argument("address", nargs="?")
    told = parser.parse_intermixed_args()
    if told.address:
        stream = socket.create_connection((told.address, told.p), timeout=60)
    else:
        with socket.create_server(("", told.p)) as server:
            stream, _ = server.accept()
    meeting = Meeting(stream, bool(told.address), told.on, told.p, told.address, told.iwarp)
    # Keep this end's objects until the other end is done.
    end = end_of(meeting)
    if flows[told.flow](end) is not False:
        meeting.swap()
    end.close()
    print("as it should be")
