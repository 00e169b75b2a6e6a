"""Checks every RoCEv2 packet of a capture, without using Ferroce's code.

usage: check_capture.py FILE.pcapng [OPERATION...]

Computes the invariant CRC from the captured IP header. Lengths, padding and the IPv4
checksum must be right, and no packet may be a fragment. Each named operation (send,
write, read, atomic, invalidate, immediate) must occur. Prints the number of packets of
each kind; the exit status is 1 if anything is wrong.
"""

import collections
import struct
import sys
import zlib

PORT = 4791
ETHERNET = 1
NAMES = [
    "SEND first", "SEND middle", "SEND last", "SEND last, immediate", "SEND only",
    "SEND only, immediate", "WRITE first", "WRITE middle", "WRITE last",
    "WRITE last, immediate", "WRITE only", "WRITE only, immediate", "READ request",
    "READ response first", "READ response middle", "READ response last",
    "READ response only", "ACK", "ATOMIC ACK", "CMP&SWAP", "FETCH&ADD", "reserved",
    "SEND last, invalidate", "SEND only, invalidate"]
TRANSPORTS = {0: "RC", 1: "UC", 3: "UD", 5: "XRC"}
# Bytes of extension headers, by opcode without its transport.
DATAGRAM, REMOTE, IMMEDIATE, ACK, ATOMIC, ATOMIC_ACK, KEY = 8, 16, 4, 4, 28, 8, 4
EXTRA = {3: IMMEDIATE, 5: IMMEDIATE, 6: REMOTE, 9: IMMEDIATE, 10: REMOTE,
         11: REMOTE + IMMEDIATE, 12: REMOTE, 13: ACK, 15: ACK, 16: ACK, 17: ACK,
         18: ACK + ATOMIC_ACK, 19: ATOMIC, 20: ATOMIC, 22: KEY, 23: KEY}
# Packets that carry no payload.
EMPTY = {12, 17, 18, 19, 20}
WORDS = {"send": {0, 1, 2, 3, 4, 5, 22, 23}, "write": {6, 7, 8, 9, 10, 11},
         "read": {12}, "atomic": {19, 20}, "invalidate": {22, 23},
         "immediate": {3, 5, 9, 11}}


def frames(path):
    """Yields the Ethernet frames of a pcapng file, in either byte order."""
    with open(path, "rb") as file:
        data = file.read()
    at, order, links = 0, "<", []
    while at + 12 <= len(data):
        kind = struct.unpack_from("<I", data, at)[0]
        if kind == 0x0A0D0D0A:
            order = "<" if data[at + 8:at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            links = []
        kind, length = struct.unpack_from(order + "II", data, at)
        if kind == 1:
            links.append(struct.unpack_from(order + "H", data, at + 8)[0])
        elif kind == 6:
            link, _, _, kept, full = struct.unpack_from(order + "IIIII", data, at + 8)
            if links[link] == ETHERNET:
                if kept != full:
                    raise ValueError("the capture contains truncated packets")
                yield data[at + 28:at + 28 + kept]
        at += length


def internet_sum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def invariant_crc(ip, udp):
    """Returns the ICRC of a packet. Eight bytes of ones replace the link header that RoCEv2
    does not have; fields that routers may change count as ones."""
    masked = bytearray(ip[:-4])
    if ip[0] >> 4 == 4:
        masked[1] = masked[8] = 0xFF
        masked[10:12] = b"\xff\xff"
    else:
        masked[0] |= 0x0F
        masked[1:4] = b"\xff\xff\xff"
        masked[7] = 0xFF
    masked[udp + 6:udp + 8] = b"\xff\xff"
    masked[udp + 12] = 0xFF
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(masked)))


def datagram(frame):
    """Returns the IP packet, the offset of its UDP header and its source address; None if it
    is not RoCEv2."""
    kind = struct.unpack_from("!H", frame, 12)[0]
    ip = frame[14:]
    if kind == 0x0800 and ip[9] == 17:
        udp, length, sender = (ip[0] & 15) * 4, struct.unpack_from("!H", ip, 2)[0], ip[12:16]
    elif kind == 0x86DD and ip[6] == 17:
        udp, length, sender = 40, 40 + struct.unpack_from("!H", ip, 4)[0], ip[8:24]
    else:
        return None
    if struct.unpack_from("!H", ip, udp + 2)[0] != PORT:
        return None
    return ip[:length], udp, sender


def complaints(ip, udp):
    """Yields the errors of a packet."""
    if ip[0] >> 4 == 4:
        if internet_sum(ip[:udp]) != 0xFFFF:
            yield "IPv4 checksum"
        if struct.unpack_from("!H", ip, 6)[0] & 0x3FFF:
            yield "a fragment"
    if struct.unpack_from("!H", ip, udp + 4)[0] != len(ip) - udp:
        yield "UDP length"
    if ip[-4:] != invariant_crc(ip, udp):
        yield "ICRC"
    opcode, flags = ip[udp + 8], ip[udp + 9]
    transport, operation = opcode >> 5, opcode & 31
    if opcode == 0x81:
        return
    if transport not in TRANSPORTS or operation >= len(NAMES):
        yield f"opcode {opcode:#x}"
        return
    if flags & 15:
        yield "header version"
    extra = EXTRA.get(operation, 0) + (DATAGRAM if transport == 3 else 0)
    extra += 4 if transport == 5 and operation not in (13, 14, 15, 16, 17, 18) else 0
    payload = len(ip) - udp - 8 - 12 - extra - 4
    if payload < 0 or payload % 4 or payload < flags >> 4 & 3:
        yield f"{payload} bytes of payload"
    if operation in EMPTY and payload:
        yield "a payload in a packet that must have none"


def main():
    path, wanted = sys.argv[1], sys.argv[2:]
    seen, senders, wrong = collections.Counter(), set(), 0
    for number, frame in enumerate(frames(path), 1):
        found = datagram(frame)
        if not found:
            continue
        ip, udp, sender = found
        senders.add(sender)
        opcode = ip[udp + 8]
        seen[opcode] += 1
        for complaint in complaints(ip, udp):
            wrong += 1
            print(f"packet {number}: {complaint}: {ip.hex()}")
    for opcode, count in sorted(seen.items()):
        name = NAMES[opcode & 31] if opcode & 31 < len(NAMES) else "?"
        print(f"{count:6} {TRANSPORTS.get(opcode >> 5, '?')} {name}")
    for word in wanted:
        if not any(opcode & 31 in WORDS[word] for opcode in seen):
            wrong += 1
            print(f"there was no {word}")
    if len(senders) != 2:
        wrong += 1
        print(f"there were {len(senders)} senders, not two")
    print(f"{sum(seen.values())} packets, {wrong} errors")
    return wrong != 0


sys.exit(main())
