"""How two ends find each other: a TCP connection, on which they tell each other what
they must know, one line of JSON each way, and wait for each other the same way."""

import argparse
import json
import socket
import sys


class Meeting:
    """One end of it. `active` is the end that was given an address."""

    def __init__(self, stream, active, driver, port, address):
        self.stream, self.lines = stream, stream.makefile("r")
        self.active, self.driver = active, driver
        self.port, self.address = port, address

    def tell(self, mine=None):
        self.stream.sendall(json.dumps(mine).encode() + b"\n")

    def hear(self):
        line = self.lines.readline()
        if not line:
            sys.exit("the other end has gone away")
        return json.loads(line)

    def swap(self, mine=None):
        """Tells the other end something, and returns what it tells."""
        self.tell(mine)
        return self.hear()


def run(flows, end_of):
    """Takes part in the flow that the command line names. It may return False: then the
    other end is not there any more, and there is nobody to agree with at the end."""
    flows = {flow.__name__: flow for flow in flows}
    parser = argparse.ArgumentParser()
    parser.add_argument("flow", choices=flows)
    parser.add_argument("--on", choices=["ferroce", "kernel"], required=True)
    parser.add_argument("-p", type=int, required=True)
    parser.add_argument("address", nargs="?")
    told = parser.parse_intermixed_args()
    if told.address:
        stream = socket.create_connection((told.address, told.p), timeout=60)
    else:
        with socket.create_server(("", told.p)) as server:
            stream, _ = server.accept()
    meeting = Meeting(stream, bool(told.address), told.on, told.p, told.address)
    # What the end holds must live until the other end is done.
    end = end_of(meeting)
    if flows[told.flow](end) is not False:
        meeting.swap()
    end.close()
    print("as it should be")
