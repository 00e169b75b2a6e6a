"""The answers of a device to calls that iWARP, or siw, does not support.

usage: refusals.py DEVICE ADDRESS

Prints one line per call: `works`, the name of an errno, or the completion of a work request. The
runner compares the lines of siw and of Ferroce. ADDRESS is an address of the device.
"""

import errno
import os
import sys
import tempfile

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CqInitAttrEx
from pyverbs.device import DM, AllocDmAttr, Context
from pyverbs.flow import Flow, FlowAttr
from pyverbs.mr import MR, MW
from pyverbs.pd import PD, ParentDomain, ParentDomainInitAttr
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from pyverbs.wq import WQ, WQInitAttr
from pyverbs.xrcd import XRCD, XRCDInitAttr

import cm
from cm import CM, POST_RECV, POST_SEND, POLL_CQ, VERBS, Completion, Events, Id, Piece, Request
from cm import address, c, call, parameters

DEVICE, ADDRESS = sys.argv[1:]
PORT = 26000
TYPES = ["RC", "UC", "UD", "RAW_PACKET", "XRC_SEND", "XRC_RECV", "DRIVER"]
OPCODES = {"WRITE_WITH_IMM": 1, "SEND_WITH_IMM": 3, "ATOMIC_CMP_AND_SWP": 5,
           "ATOMIC_FETCH_AND_ADD": 6, "LOCAL_INV": 7, "BIND_MW": 8, "TSO": 10, "DRIVER1": 11,
           "unknown": 77}
ACCESS = ["REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND", "ZERO_BASED", "ON_DEMAND", "RELAXED_ORDERING",
          "REMOTE_WRITE without LOCAL_WRITE", "unknown"]
UDP, IB = 0x0111, 0x013F


def name(number):
    """Returns the name of an errno."""
    return errno.errorcode.get(number, str(number))


def ask(question, function):
    """Prints the answer to a question."""
    try:
        result = function()
    except PyverbsRDMAError as error:
        answer = name(error.error_code)
    except PyverbsError as error:
        answer = str(error)
    else:
        answer = result if isinstance(result, str) else "works"
        if hasattr(result, "close"):
            result.close()
    print(f"{question}: {answer}", flush=True)


def number(result):
    """Returns the answer of a function that returns an errno."""
    return "works" if result == 0 else name(result)


def set_errno(result):
    """Returns the answer of a function that sets errno."""
    return "works" if result == 0 else name(c.get_errno())


def unconnected():
    """Asks for objects."""
    context = Context(name=DEVICE)
    pd, cq = PD(context), CQ(context, 16)
    cap = QPCap(max_send_wr=4, max_recv_wr=4)

    def qp(kind):
        value = getattr(e, f"IBV_QPT_{kind}")
        return QP(pd, QPInitAttr(qp_type=value, scq=cq, rcq=cq, cap=cap))

    def extended_qp(kind):
        value = getattr(e, f"IBV_QPT_{kind}")
        mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        init = QPInitAttrEx(qp_type=value, scq=cq, rcq=cq, cap=cap, pd=pd, comp_mask=mask,
                            send_ops_flags=e.IBV_QP_EX_WITH_SEND)
        return QP(context, init)

    def sized_qp(**sizes):
        return QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(**sizes)))

    for kind in TYPES:
        ask(f"ibv_create_qp {kind}", lambda: qp(kind))
        ask(f"ibv_create_qp_ex {kind} with send_ops_flags", lambda: extended_qp(kind))
    ask("ibv_create_qp_ex RC without flags", lambda: QP(context, QPInitAttrEx(
        qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, pd=pd, comp_mask=e.IBV_QP_INIT_ATTR_PD)))
    limits = context.query_device()
    ask("ibv_create_qp with too many sends", lambda: sized_qp(max_send_wr=limits.max_qp_wr + 1))
    ask("ibv_create_qp with too many receives",
        lambda: sized_qp(max_recv_wr=limits.max_qp_wr + 1))
    ask("ibv_create_qp with too many send elements",
        lambda: sized_qp(max_send_sge=limits.max_sge + 1))
    ask("ibv_create_qp with too many receive elements",
        lambda: sized_qp(max_recv_sge=limits.max_sge + 1))
    ask("ibv_create_qp with too much inline data", lambda: sized_qp(max_inline_data=4096))

    gid = context.query_gid(1, 0)
    route = GlobalRoute(dgid=gid, sgid_index=0)
    ask("ibv_create_ah", lambda: AH(pd, attr=AHAttr(gr=route, is_global=1, port_num=1)))
    ask("ibv_create_ah by LID", lambda: AH(pd, attr=AHAttr(dlid=1, is_global=0, port_num=1)))
    rc = qp("RC")

    def to_state(*states):
        made = qp("RC")
        for state in states:
            made.modify(QPAttr(qp_state=getattr(e, f"IBV_QPS_{state}")), e.IBV_QP_STATE)
        return made

    for states in (["INIT"], ["RTR"], ["RTS"], ["SQD"], ["ERR"], ["INIT", "RTR"],
                   ["INIT", "RTS"], ["ERR", "RESET"], ["ERR", "INIT"]):
        ask(f"ibv_modify_qp to {' and '.join(states)}", lambda: to_state(*states))

    def region(flag):
        access = e.IBV_ACCESS_LOCAL_WRITE
        if flag == "unknown":
            return MR(pd, 4096, access | 1 << 15)
        if " " in flag:
            return MR(pd, 4096, e.IBV_ACCESS_REMOTE_WRITE)
        return MR(pd, 4096, access | getattr(e, f"IBV_ACCESS_{flag}"))

    for flag in ACCESS:
        ask(f"ibv_reg_mr {flag}", lambda: region(flag))
    mr = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
    ask("ibv_rereg_mr access", lambda: mr.rereg(flags=e.IBV_REREG_MR_CHANGE_ACCESS, pd=None, addr=0,
                                                length=0, access=e.IBV_ACCESS_REMOTE_READ))
    for kind in (1, 2):
        ask(f"ibv_alloc_mw type {kind}", lambda: MW(pd, kind))

    def xrcd():
        with tempfile.NamedTemporaryFile() as file:
            mask = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
            return XRCD(context, XRCDInitAttr(mask, os.O_CREAT, file.fileno()))

    def srq(kind):
        init = SrqInitAttrEx(max_wr=8)
        init.srq_type, init.pd, init.cq = kind, pd, cq
        init.comp_mask = e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD
        if kind != e.IBV_SRQT_BASIC:
            init.comp_mask |= e.IBV_SRQ_INIT_ATTR_CQ
        return SRQ(context, init)

    def limited_srq(limit):
        made = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=8)))
        made.modify(SrqAttr(srq_limit=limit), e.IBV_SRQ_LIMIT)
        return made

    def resized_srq():
        made = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=8)))
        made.modify(SrqAttr(max_wr=16), e.IBV_SRQ_MAX_WR)
        return made

    ask("ibv_open_xrcd", xrcd)
    ask("ibv_create_srq", lambda: SRQ(pd, SrqInitAttr(SrqAttr(max_wr=8))))
    ask("ibv_create_srq_ex BASIC", lambda: srq(e.IBV_SRQT_BASIC))
    ask("ibv_create_srq_ex XRC", lambda: srq(e.IBV_SRQT_XRC))
    ask("ibv_create_srq_ex TM", lambda: srq(e.IBV_SRQT_TM))
    ask("ibv_modify_srq with a limit", lambda: limited_srq(4))
    ask("ibv_modify_srq with a limit above its size", lambda: limited_srq(1000))
    ask("ibv_modify_srq with a size", resized_srq)
    ask("ibv_create_cq without entries", lambda: CQ(context, 0))
    ask("ibv_create_cq with too many entries", lambda: CQ(context, limits.max_cqe + 1))
    ask("ibv_create_cq_ex", lambda: CQEX(context, CqInitAttrEx(cqe=8)))
    ask("ibv_resize_cq", lambda: cq.resize(32))
    ask("ibv_alloc_dm", lambda: DM(context, AllocDmAttr(length=64)))
    ask("ibv_create_wq", lambda: WQ(context, WQInitAttr(wq_pd=pd, wq_cq=cq)))
    ask("ibv_create_flow", lambda: Flow(rc, FlowAttr(num_of_specs=0)))
    ask("ibv_alloc_parent_domain",
        lambda: ParentDomain(context, ParentDomainInitAttr(pd=pd)))
    ask("ibv_query_port 2", lambda: str(context.query_port(2).state))
    ask("ibv_query_gid_ex 1", lambda: str(context.query_gid_ex(1, 1)))
    ask("ibv_query_gid_type 1", lambda: str(context.query_gid_type(1, 1)))
    ask("ibv_query_rt_values_ex", lambda: context.query_rt_values_ex() and None)


class Pair:
    """Two connected queue pairs of this process."""
    port = PORT

    def __init__(self):
        Pair.port += 1
        self.here, self.there = Events(), Events()
        self.listener = Id(self.there)
        call("rdma_bind_addr", self.listener.pointer, address(ADDRESS, Pair.port))
        call("rdma_listen", self.listener.pointer, 4)
        self.active = Id(self.here)
        call("rdma_resolve_addr", self.active.pointer, None, address(ADDRESS, Pair.port), 5000)
        self.here.next("ADDR_RESOLVED", 0)
        call("rdma_resolve_route", self.active.pointer, 5000)
        self.here.next("ROUTE_RESOLVED", 0)
        self.active.wire()

    def connect(self):
        call("rdma_connect", self.active.pointer, c.byref(parameters(b"x")))
        _, known = self.there.next("CONNECT_REQUEST", 0)
        self.passive = Id(self.there, known).wire()
        self.passive.receive()
        call("rdma_accept", self.passive.pointer, c.byref(parameters(b"x")))
        self.there.next("ESTABLISHED", 0)
        self.here.next("ESTABLISHED", 0)
        return self


def posted(id, which, opcode=0, count=1, flags=2, length=8, remote=(0, 0)):
    """Posts a work request; returns the errno, or the status of its completion."""
    pieces = (Piece * max(count, 1))()
    for piece in pieces:
        piece.address, piece.length = c.addressof(id.buffer), length
        piece.key = id.region.lkey
    request = Request(1, None, pieces, count, opcode, flags, 0, *remote)
    bad = c.c_void_p()
    table = c.cast(id.head.context, c.POINTER(c.c_void_p))
    kind = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_void_p, use_errno=True)
    function = kind(table[1 + which])
    result = function(id.head.qp, c.addressof(request), c.addressof(bad))
    if result:
        # siw's provider returns negative numbers, and -1 if the kernel refuses.
        return name(abs(result) if result != -1 else c.get_errno())
    if which == POST_RECV:
        return "works"
    return f"completes with status {id.completion(*range(23)).status}"


def connected():
    """Posts work requests."""
    group = bytes.fromhex("00000000000000000000ffffef4e0001")
    head = Pair().active.head
    context, qp, place = c.c_void_p(head.context), c.c_void_p(head.qp), bytes(16)
    ask("ibv_query_gid 1", lambda: set_errno(VERBS.ibv_query_gid(context, 1, 1, place)))
    ask("ibv_query_pkey", lambda: set_errno(VERBS.ibv_query_pkey(context, 1, 0, place)))
    ask("ibv_get_pkey_index", lambda: set_errno(VERBS.ibv_get_pkey_index(context, 1, 0xffff)))
    ask("ibv_attach_mcast", lambda: number(VERBS.ibv_attach_mcast(qp, group, 0)))
    ask("ibv_detach_mcast", lambda: number(VERBS.ibv_detach_mcast(qp, group, 0)))
    ask("post_send before the connection", lambda: posted(Pair().active, POST_SEND, opcode=2))
    for opcode, value in OPCODES.items():
        ask(f"post_send {opcode}", lambda: posted(Pair().connect().active, POST_SEND, value))
    ask("post_send with too many elements",
        lambda: posted(Pair().connect().active, POST_SEND, 2, count=7, length=1))
    ask("post_send with too much inline data",
        lambda: posted(Pair().connect().active, POST_SEND, 2, flags=2 | 8, length=2000))
    ask("post_send READ of two elements",
        lambda: posted(Pair().connect().active, POST_SEND, 4, count=2))
    ask("post_send READ inline",
        lambda: posted(Pair().connect().active, POST_SEND, 4, flags=2 | 8))
    ask("post_recv with too many elements",
        lambda: posted(Pair().connect().active, POST_RECV, count=7, length=1))


def managed():
    """Asks rdma_cm."""
    events = Events()
    for space, value in (("UDP", UDP), ("IB", IB)):
        pointer = c.c_void_p()
        result = CM.rdma_create_id(c.c_void_p(events.pointer), c.byref(pointer), None, value)
        print(f"rdma_create_id {space}: {set_errno(result)}")
        if result or space != "UDP":
            continue
        result = CM.rdma_bind_addr(pointer, address(ADDRESS, 0))
        print(f"rdma_bind_addr UDP: {set_errno(result)}")
        result = CM.rdma_listen(pointer, 1)
        print(f"rdma_listen UDP: {set_errno(result)}")
        pointer = c.c_void_p()
        call("rdma_create_id", c.c_void_p(events.pointer), c.byref(pointer), None, value)
        result = CM.rdma_resolve_addr(pointer, None, address(ADDRESS, PORT), 1000)
        print(f"rdma_resolve_addr UDP: {set_errno(result)}")
        if result == 0:
            print("rdma_resolve_addr UDP:", *events.any("ADDR_RESOLVED", "ADDR_ERROR")[:2])
    pointer = c.c_void_p()
    call("rdma_create_id", c.c_void_p(events.pointer), c.byref(pointer), None, cm.TCP)
    call("rdma_bind_addr", pointer, address(ADDRESS, 0))
    result = CM.rdma_join_multicast(pointer, address("239.78.0.1", 0), None)
    print(f"rdma_join_multicast: {set_errno(result)}")
    result = CM.rdma_notify(pointer, 4)
    print(f"rdma_notify: {set_errno(result)}")


unconnected()
connected()
managed()
