"""Runs commands in the guest for the harness on the host.

Each TCP connection runs one command. The client sends it, terminated by a zero byte, and
receives frames: a letter, a length (four bytes, big-endian), and that many bytes. `o` is
output; `x` is the exit status in decimal, and the last frame. When the client closes the
connection, the command's process group is killed.

`listen PORT` is not a shell command: it ends when a process listens on that TCP port.
"""

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time


def frame(client, kind, data):
    client.sendall(kind + struct.pack("!I", len(data)) + data)


def command_of(client):
    text = b""
    while not text.endswith(b"\0"):
        part = client.recv(65536)
        if not part:
            return None
        text += part
    return text[:-1].decode()


def is_gone(client):
    """Returns whether the client has closed the connection. Readable means closed, because a
    client sends nothing after its command."""
    return bool(select.select([client], [], [], 0)[0])


def listening(port):
    wanted = f":{port:04X}"
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(name) as table:
            for row in list(table)[1:]:
                fields = row.split()
                if fields[1].endswith(wanted) and fields[3] == "0A":
                    return True
    return False


def await_listener(client, port):
    while not listening(port):
        if is_gone(client):
            return
        time.sleep(0.02)
    frame(client, b"x", b"0")


def run(client, text):
    process = subprocess.Popen(
        ["/bin/sh", "-c", text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, cwd="/tmp")
    try:
        output = process.stdout.fileno()
        while True:
            ready, _, _ = select.select([output, client], [], [])
            if client in ready:
                return
            data = os.read(output, 65536)
            if not data:
                break
            frame(client, b"o", data)
        frame(client, b"x", str(process.wait()).encode())
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.stdout.close()
        process.wait()


def serve(client):
    with client:
        try:
            text = command_of(client)
            if text is None:
                return
            if text.startswith("listen "):
                await_listener(client, int(text.split()[1]))
            else:
                run(client, text)
        except OSError as error:
            print("agent:", error, flush=True)


def main():
    server = socket.create_server(("", int(sys.argv[1])))
    while True:
        client, _ = server.accept()
        threading.Thread(target=serve, args=(client,), daemon=True).start()


main()
