//! Packets crafted by the test, with valid ICRCs.

use ferroce_roce::QpType;
use ferroce_wire::{
    Aeth, Bth, Flow, HeaderBuf, ICRC_LEN, Opcode, Operation, Psn, Reth, Syndrome, Transport, icrc,
    padding,
};

use crate::pair::{Pair, Path, Sent};

impl Pair {
    /// Returns a packet of a host with the given extension headers and payload.
    pub fn craft(
        &self,
        from: usize,
        operation: Operation,
        psn: u32,
        extend: impl FnOnce(HeaderBuf) -> HeaderBuf,
        payload: &[u8],
    ) -> Sent {
        let transport = match self.hosts[from].query().qp_type {
            QpType::Rc => Transport::Rc,
            QpType::Uc => Transport::Uc,
            QpType::Ud | QpType::Gsi => Transport::Ud,
            QpType::XrcInitiator | QpType::XrcTarget => Transport::Xrc,
        };
        let opcode = Opcode::new(transport, operation).unwrap();
        let mut bth = Bth::new(opcode, self.hosts[1 - from].qpn, Psn::new(psn));
        bth.ack_req = opcode.is_request();
        bth.pad = padding(payload.len()) as u8;
        let header = extend(HeaderBuf::new(&bth)).finish();
        let mut bytes = [header.as_bytes(), payload].concat();
        bytes.resize(bytes.len() + padding(payload.len()), 0);
        let sent = Sent {
            from,
            path: Path::new(self.flow(from), 0, 64),
            ip_id: 0,
            bytes: [bytes, vec![0; ICRC_LEN]].concat(),
        };
        sent.edited(|_| {})
    }

    pub fn flow(&self, from: usize) -> Flow {
        Flow {
            source: self.hosts[from].address,
            destination: self.hosts[1 - from].address,
            source_port: 0xc000,
        }
    }

    /// Returns an ACK or NAK of host 1 that its engine did not send.
    pub fn ack(&self, psn: u32, syndrome: Syndrome) -> Sent {
        let aeth = Aeth { syndrome, msn: 1 };
        self.craft(1, Operation::Acknowledge, psn, |mut h| *h.aeth(&aeth), &[])
    }

    /// Returns a READ request of host 0.
    pub fn read_request(&self, psn: u32, va: u64, length: u32) -> Sent {
        let rkey = self.rkey();
        let reth = Reth { va, rkey, length };
        self.craft(0, Operation::ReadRequest, psn, |mut h| *h.reth(&reth), &[])
    }
}

impl Sent {
    /// Returns the packet with changed bytes and a new, valid ICRC.
    pub fn edited(&self, change: impl FnOnce(&mut Vec<u8>)) -> Sent {
        let mut sent = self.clone();
        sent.bytes.truncate(self.bytes.len() - ICRC_LEN);
        change(&mut sent.bytes);
        let crc = icrc::compute(&sent.path.flow, sent.ip_id, &sent.bytes);
        sent.bytes.extend_from_slice(&crc);
        sent
    }
}
