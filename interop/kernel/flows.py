"""Operations and error cases between two queue pairs, one flow per run.

usage: flows.py FLOW --on ferroce|kernel -p PORT            the passive end, first
       flows.py FLOW --on ferroce|kernel -p PORT ADDRESS    the active end

Uses rdma-core's Python bindings, with Ferroce and with the kernel's driver. The exit status
is 1 if an end sees anything other than the flow expects.

`quirk` marks the places where the kernel's rxe differs from the specification.
"""

import socket
import sys
import time

import meeting
import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE = 1 << 16
HALF = SIZE // 2
REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
ALL = REMOTE | e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND
OK = e.IBV_WC_SUCCESS
STATUS = {getattr(e, name): name[7:] for name in dir(e) if name.startswith("IBV_WC_")
          and (name.endswith("_ERR") or name.endswith("SUCCESS"))}
PATIENCE = 40


class End:
    """One of the two ends, with one RC queue pair."""

    def __init__(self, meeting):
        self.swap, self.active, self.driver = meeting.swap, meeting.active, meeting.driver
        self.context = Context(name="rxe0")
        self.pd = PD(self.context)
        self.mr = MR(self.pd, SIZE, ALL)
        self.mr.write(self.pattern(), SIZE)
        self.cq = CQ(self.context, 256)
        cap = QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=2, max_recv_sge=2)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap)
        self.qp = QP(self.pd, init)

    def close(self):
        """Closes all objects, each after the objects that use it."""
        for name in ("qp", "window", "readable", "writable", "mr", "cq", "pd"):
            if hasattr(self, name):
                getattr(self, name).close()

    def pattern(self, active=None):
        active = self.active if active is None else active
        return bytes((7 * i + 1 if active else 255 - 3 * i) & 255 for i in range(SIZE))

    def connect(self, psn=0x1000, rnr_retry=7, retry=7, timeout=14, access=REMOTE, stray=0, key=None):
        """Connects the queue pair. A nonzero `stray` names a peer that does not exist."""
        gid = self.context.query_gid(1, 1)
        mine = {"qpn": self.qp.qp_num, "psn": psn, "gid": gid.gid, "address": self.mr.buf,
                "key": self.mr.rkey if key is None else key, "driver": self.driver}
        self.peer = peer = self.swap(mine)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = peer["qpn"] + stray
        attr.rq_psn, attr.sq_psn = peer["psn"], psn
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer = 22  # 20 ms
        attr.timeout, attr.retry_cnt, attr.rnr_retry = timeout, retry, rnr_retry
        route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=1, hop_limit=64)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rts(attr)
        self.swap()

    def receive(self, length=HALF):
        sge = SGE(self.mr.buf + HALF, length, self.mr.lkey)
        self.qp.post_recv(RecvWR(sg=[sge], num_sge=1))

    def post(self, opcode, length, key=None, offset=0, remote=0, imm=0, atomic=None):
        sge = SGE(self.mr.buf + offset, length, self.mr.lkey)
        wr = SendWR(opcode=opcode, num_sge=1, sg=[sge], imm_data=imm,
                    send_flags=e.IBV_SEND_SIGNALED)
        key = self.peer["key"] if key is None else key
        if atomic:
            wr.set_wr_atomic(key, self.peer["address"] + remote, *atomic)
        elif opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ):
            wr.set_wr_rdma(key, self.peer["address"] + remote)
        self.qp.post_send(wr)

    def completion(self, *allowed):
        """Waits for the next completion, whose status must be one of `allowed`."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            count, completions = self.cq.poll(1)
            if count:
                status = completions[0].status
                print("completion:", STATUS.get(status, status))
                if status not in allowed:
                    names = " or ".join(STATUS[status] for status in allowed)
                    sys.exit(f"expected {names}")
                return completions[0]
        sys.exit("no completion")

    def nothing(self, seconds):
        """Checks that no completion comes for this many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            count, completions = self.cq.poll(1)
            if count:
                sys.exit(f"unexpected completion: {STATUS[completions[0].status]}")

    def state(self, want):
        """Waits until the queue pair is in a state."""
        end = time.monotonic() + PATIENCE
        while self.qp.query(e.IBV_QP_STATE)[0].qp_state != want:
            if time.monotonic() > end:
                sys.exit(f"the queue pair does not reach state {want}")

    def write(self, length=100, *allowed, **more):
        self.post(e.IBV_WR_RDMA_WRITE, length, **more)
        self.completion(*(allowed or (OK,)))

    def expect(self, offset, data):
        if bytes(self.mr.read(len(data), offset)) != data:
            sys.exit(f"wrong bytes at {offset}")


def quirk(driver, kernel, specified):
    """Returns the behaviour of the kernel's rxe, or the specified one, by the driver."""
    return kernel if driver == "kernel" else specified


def operations(end, psn=0x1000):
    """Every operation in sizes around the MTU; both ends check every byte."""
    end.connect(psn)
    sizes = (0, 1, 63, 1023, 1024, 1025, 5000)
    for size in sizes:
        if not end.active:
            end.receive()
            end.receive()
        end.swap()
        if end.active:
            end.post(e.IBV_WR_SEND, size)
            end.completion(OK)
            end.post(e.IBV_WR_SEND_WITH_IMM, size, imm=socket.htonl(0xA1B2C300 + size % 256))
            end.completion(OK)
        else:
            end.completion(OK)
            wc = end.completion(OK)
            if socket.ntohl(wc.imm_data) != 0xA1B2C300 + size % 256 or wc.byte_len != size:
                sys.exit("wrong immediate data or length")
            end.expect(HALF, end.pattern(True)[:size])
            end.receive()
        end.swap()
        if end.active:
            end.write(size, remote=1000)
            end.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, size, remote=9000, imm=socket.htonl(7))
            end.completion(OK)
            end.post(e.IBV_WR_RDMA_READ, size, offset=HALF, remote=20000)
            end.completion(OK)
            end.expect(HALF, end.pattern(False)[20000:20000 + size])
        else:
            end.completion(OK)
            end.expect(1000, end.pattern(True)[:size])
            end.expect(9000, end.pattern(True)[:size])
        end.swap()
    if not end.active:
        end.mr.write((40).to_bytes(8, "little"), 8)
    end.swap()
    if end.active:
        for opcode, atomic, old in [(e.IBV_WR_ATOMIC_FETCH_AND_ADD, (2, 0), 40),
                                    (e.IBV_WR_ATOMIC_CMP_AND_SWP, (42, 77), 42),
                                    (e.IBV_WR_ATOMIC_CMP_AND_SWP, (42, 78), 77)]:
            end.post(opcode, 8, offset=HALF, atomic=atomic)
            end.completion(OK)
            end.expect(HALF, old.to_bytes(8, "little"))
    end.swap()
    if not end.active:
        end.expect(0, (77).to_bytes(8, "little"))


def psn_wrap(end):
    """Runs `operations` across the wrap of the PSN, at both ends."""
    operations(end, 0xFFFFFD)


def pipeline(end):
    """Requests of all kinds in flight together, from both ends at once."""
    end.connect()
    for _ in range(16):
        end.receive()
    end.swap()
    for i in range(16):
        end.post(e.IBV_WR_SEND, 3000)
        end.post(e.IBV_WR_RDMA_READ, 3000, offset=HALF + 4096, remote=1024 * i)
        end.post(e.IBV_WR_RDMA_WRITE, 3000, offset=512, remote=HALF + 8192)
    for _ in range(64):
        end.completion(OK)
    end.swap()
    end.expect(HALF, end.pattern(not end.active)[:3000])
    end.expect(HALF + 8192, end.pattern(not end.active)[512:3512])
    end.expect(HALF + 4096, end.pattern(not end.active)[15360:18360])


def refused(end, opcode, status=e.IBV_WC_REM_ACCESS_ERR, length=100, **more):
    """Posts a request that the passive end must refuse. Both queue pairs are then in ERR; the
    request posted after it and the passive end's receive are flushed."""
    if not end.active:
        end.receive()
    end.swap()
    if end.active:
        end.post(opcode, length, **more)
        end.post(e.IBV_WR_SEND, 10)
        end.completion(status)
        end.completion(e.IBV_WC_WR_FLUSH_ERR)
        end.state(e.IBV_QPS_ERR)
    end.swap()
    if not end.active:
        end.expect(0, end.pattern()[:HALF])
        end.completion(e.IBV_WC_WR_FLUSH_ERR)
        end.state(e.IBV_QPS_ERR)


def bad_key_write(end):
    """A WRITE with an rkey that does not exist."""
    end.connect()
    refused(end, e.IBV_WR_RDMA_WRITE, key=end.peer["key"] ^ 0x5500)


def bad_key_read(end):
    """A READ with an rkey that does not exist."""
    end.connect()
    refused(end, e.IBV_WR_RDMA_READ, offset=HALF, key=end.peer["key"] ^ 0x5500)


def bad_key_atomic(end):
    """An atomic with an rkey that does not exist."""
    end.connect()
    refused(end, e.IBV_WR_ATOMIC_FETCH_AND_ADD, length=8, offset=HALF, atomic=(1, 0),
            key=end.peer["key"] ^ 0x5500)


def range_write(end):
    """A WRITE of several packets that begins inside the region and ends outside."""
    end.connect()
    refused(end, e.IBV_WR_RDMA_WRITE, length=4096, remote=SIZE - 4000)


def range_read(end):
    """A READ of several packets that begins inside the region and ends outside."""
    end.connect()
    refused(end, e.IBV_WR_RDMA_READ, length=4096, offset=HALF, remote=SIZE - 4000)


def permission_write(end):
    """A WRITE to a region that may only be read."""
    end.readable = MR(end.pd, SIZE, e.IBV_ACCESS_REMOTE_READ, address=end.mr.buf)
    end.connect(key=end.readable.rkey)
    refused(end, e.IBV_WR_RDMA_WRITE)


def permission_read(end):
    """A READ of a region that may only be written."""
    access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
    end.writable = MR(end.pd, SIZE, access, address=end.mr.buf)
    end.connect(key=end.writable.rkey)
    refused(end, e.IBV_WR_RDMA_READ, offset=HALF)


def permission_qp(end):
    """A READ from a queue pair that does not permit READs."""
    end.connect(access=e.IBV_ACCESS_REMOTE_WRITE)
    refused(end, e.IBV_WR_RDMA_READ, status=e.IBV_WC_REM_INV_REQ_ERR, offset=HALF)


def deregistered(end):
    """A WRITE to a region that was deregistered."""
    if not end.active:
        end.other = MR(end.pd, 4096, ALL)
        key = end.other.rkey
        end.other.close()
        end.connect(key=key)
    else:
        end.connect()
    refused(end, e.IBV_WR_RDMA_WRITE)


def rnr(end):
    """A SEND while no receive is posted: the requester retries, and then succeeds."""
    end.connect(rnr_retry=7)
    if end.active:
        end.post(e.IBV_WR_SEND, 3000)
        end.post(e.IBV_WR_SEND, 100)
        end.nothing(0.2)
    end.swap()
    if not end.active:
        end.receive()
        end.receive()
    end.completion(OK)
    end.completion(OK)
    # Both receives have the same buffer: the second message overwrites the first.
    if not end.active:
        end.expect(HALF + 100, end.pattern(True)[100:3000])


def rnr_exceeded(end):
    """A SEND while no receive is ever posted: the RNR retries run out."""
    end.connect(rnr_retry=2)
    if end.active:
        end.post(e.IBV_WR_SEND, 100)
        end.completion(e.IBV_WC_RNR_RETRY_EXC_ERR)
        end.state(e.IBV_QPS_ERR)


def short_receive(end):
    """A message longer than the receive."""
    end.connect()
    if not end.active:
        end.receive(2000)
    end.swap()
    if end.active:
        end.post(e.IBV_WR_SEND, 3000)
        # quirk: rxe sends NAK 0x63 instead of 0x61.
        end.completion(quirk(end.peer["driver"], e.IBV_WC_REM_OP_ERR, e.IBV_WC_REM_INV_REQ_ERR))
    else:
        end.completion(quirk(end.driver, e.IBV_WC_LOC_QP_OP_ERR, e.IBV_WC_LOC_LEN_ERR))
        end.state(e.IBV_QPS_ERR)


def window_2(end):
    """Binds a type 2 memory window at the passive end; returns its rkey at both ends."""
    key = None
    if not end.active:
        end.window = MW(end.pd, e.IBV_MW_TYPE_2)
        wr = SendWR(opcode=e.IBV_WR_BIND_MW, num_sge=0, send_flags=e.IBV_SEND_SIGNALED)
        info = MWBindInfo(end.mr, end.mr.buf + 4096, 4096,
                          e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ)
        wr.set_bind_wr(end.window, info)
        end.qp.post_send(wr)
        end.completion(OK)
        # The bind increments the low byte of the rkey.
        key = end.window.rkey & ~0xFF | end.window.rkey + 1 & 0xFF
    return end.swap(key) or key


def window_invalidate(end):
    """A type 2 memory window is used, then invalidated by a SEND of the active end."""
    end.connect()
    if not end.active:
        end.receive()
        end.receive()
    key = window_2(end)
    if end.active:
        end.write(2000, key=key, remote=4096)
        end.post(e.IBV_WR_RDMA_READ, 2000, key=key, offset=HALF, remote=4096)
        end.completion(OK)
        end.expect(HALF, end.pattern()[:2000])
        end.post(e.IBV_WR_SEND_WITH_INV, 40, imm=key)
        end.completion(OK)
    else:
        wc = end.completion(OK)
        # quirk: rxe returns the kernel's internal flag bit to programs.
        if not wc.wc_flags & quirk(end.driver, e.IBV_WC_IP_CSUM_OK, e.IBV_WC_WITH_INV):
            sys.exit("the completion does not report the invalidation")
        end.expect(4096, end.pattern(True)[:2000])
    end.swap()
    if end.active:
        end.write(16, e.IBV_WC_REM_ACCESS_ERR, key=key, remote=4096)
    elif end.driver == "ferroce":
        end.completion(e.IBV_WC_WR_FLUSH_ERR)


def window_range(end):
    """A type 2 memory window permits no access to the rest of its region. quirk: rxe
    releases the window only after 50 seconds."""
    end.connect()
    key = window_2(end)
    if end.active:
        end.write(4096, key=key, remote=4096)
        # quirk: rxe checks the range of the region, not that of the window.
        status = quirk(end.peer["driver"], OK, e.IBV_WC_REM_ACCESS_ERR)
        end.write(100, status, key=key, remote=4000)


def window_local_invalidate(end):
    """A type 2 memory window is used, then invalidated by its owner."""
    end.connect()
    key = window_2(end)
    if end.active:
        end.write(100, key=key, remote=4096)
    end.swap()
    if not end.active:
        wr = SendWR(opcode=e.IBV_WR_LOCAL_INV, num_sge=0, imm_data=key,
                    send_flags=e.IBV_SEND_SIGNALED)
        end.qp.post_send(wr)
        end.completion(OK)
    end.swap()
    if end.active:
        end.write(100, e.IBV_WC_REM_ACCESS_ERR, key=key, remote=4096)


def window_1(end):
    """A type 1 memory window is bound, used and bound again: the old rkey is refused."""
    end.connect()
    keys = []
    if not end.active:
        end.window = MW(end.pd, e.IBV_MW_TYPE_1)
        for _ in range(2):
            info = MWBindInfo(end.mr, end.mr.buf, 8192, e.IBV_ACCESS_REMOTE_WRITE)
            end.qp.bind_mw(end.window, MWBind(info, send_flags=e.IBV_SEND_SIGNALED))
            end.completion(OK)
            keys.append(end.window.rkey)
            end.swap(keys[-1])
            end.swap()
    else:
        keys.append(end.swap())
        end.write(100, key=keys[0])
        end.swap()
        keys.append(end.swap())
        end.write(100, key=keys[1])
        end.swap()
        end.write(100, e.IBV_WC_REM_ACCESS_ERR, key=keys[0])


def invalidate_nothing(end):
    """A SEND that invalidates an rkey which does not exist."""
    end.connect(retry=2, timeout=14)
    if not end.active:
        end.receive()
    end.swap()
    if end.active:
        end.post(e.IBV_WR_SEND_WITH_INV, 40, imm=0x12345678)
        # quirk: rxe logs an error, but acknowledges.
        end.completion(quirk(end.peer["driver"], OK, e.IBV_WC_REM_ACCESS_ERR))
    elif end.driver == "ferroce":
        end.completion(e.IBV_WC_REM_ACCESS_ERR)


def destroyed(end):
    """The passive queue pair is destroyed while WRITEs are in flight."""
    end.connect(retry=3, timeout=14)
    end.swap()
    if not end.active:
        end.qp.close()
        end.swap()
    else:
        for _ in range(20):
            end.post(e.IBV_WR_RDMA_WRITE, 20000)
        end.swap()
        end.post(e.IBV_WR_RDMA_WRITE, 100)
        status = OK
        for _ in range(21):
            allowed = (OK, e.IBV_WC_RETRY_EXC_ERR) if status == OK else (e.IBV_WC_WR_FLUSH_ERR,)
            status = end.completion(*allowed).status
        if status == OK:
            sys.exit("all WRITEs succeeded")


def silent(end):
    """A WRITE to a queue pair that does not exist: the retries run out."""
    end.connect(stray=0x100, retry=2, timeout=14)
    if end.active:
        end.write(100, e.IBV_WC_RETRY_EXC_ERR)
        end.state(e.IBV_QPS_ERR)


def silent_7(end):
    """A WRITE to a queue pair that does not exist, with retry_cnt 7."""
    end.connect(stray=0x100, retry=7, timeout=12)
    if end.active:
        end.post(e.IBV_WR_RDMA_WRITE, 100)
        if end.driver == "kernel":
            # quirk: rxe takes 7 for infinite.
            end.nothing(2)
        else:
            end.completion(e.IBV_WC_RETRY_EXC_ERR)


def rnr_pipeline(end):
    """Many SENDs, while receives are posted late, a few at a time. quirk: after an RNR NAK,
    rxe reports each following packet as out of sequence; that must not use up retries."""
    # quirk: rxe's ACK timer runs during an RNR wait, and RNR NAKs do not reset its retries.
    end.connect(rnr_retry=7, retry=quirk(end.driver, 7, 1))
    if end.active:
        for _ in range(30):
            end.post(e.IBV_WR_SEND, 2500)
    end.swap()
    for round in range(10):
        if not end.active:
            time.sleep(0.05)
            for _ in range(3):
                end.receive()
        for _ in range(3):
            end.completion(OK)


def read_replay(end):
    """READs of many packets. On a lossy network, the requester requests missing packets again.
    quirk: rxe detects a lost response only by its timer, and its repeated response may begin in
    the middle of a message."""
    end.connect(timeout=12)
    length = 24 * 1024
    if end.active:
        for offset in range(0, SIZE - length, 2560):
            end.post(e.IBV_WR_RDMA_READ, length, offset=HALF, remote=offset)
            end.completion(OK)
            end.expect(HALF, end.pattern(False)[offset:offset + length])


def qkey_rule(end):
    """UD: a Q_Key with its highest bit set stands for the Q_Key of the sender's queue pair."""
    cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
    init = QPInitAttr(qp_type=e.IBV_QPT_UD, scq=end.cq, rcq=end.cq, cap=cap)
    attr = QPAttr(port_num=1)
    attr.qkey = 0x1234567
    qp = QP(end.pd, init, attr)
    gid = end.context.query_gid(1, 1).gid
    peer = end.swap({"qpn": qp.qp_num, "gid": gid, "driver": end.driver})
    if not end.active:
        sge = SGE(end.mr.buf + HALF, 1000, end.mr.lkey)
        qp.post_recv(RecvWR(sg=[sge], num_sge=1))
    end.swap()
    if end.active:
        route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=1, hop_limit=64)
        ah = AH(end.pd, attr=AHAttr(port_num=1, is_global=1, gr=route))
        sge = SGE(end.mr.buf, 500, end.mr.lkey)
        wr = SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge], send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_ud(ah, peer["qpn"], 0x80000000)
        qp.post_send(wr)
        end.completion(OK)
    end.swap()
    if not end.active:
        # quirk: rxe sends this Q_Key itself, which the receiver does not accept.
        if quirk(peer["driver"], True, False):
            end.nothing(1)
        else:
            end.completion(OK)
            end.expect(HALF + 40, end.pattern(True)[:500])
    qp.close()


FLOWS = [operations, psn_wrap, pipeline, bad_key_write, bad_key_read, bad_key_atomic,
         range_write, range_read, permission_write, permission_read, permission_qp, deregistered,
         rnr, rnr_exceeded, rnr_pipeline, short_receive, window_invalidate, window_range,
         window_local_invalidate, window_1, invalidate_nothing, destroyed, silent, silent_7,
         read_replay, qkey_rule]


meeting.run(FLOWS, End)
