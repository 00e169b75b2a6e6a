//! Port spaces of rdma_cm and the service IDs they map to.

/// A port space of rdma_cm. Each has its own port numbers.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub enum PortSpace {
    /// RDMA_PS_IPOIB: datagrams with the Q_Key of IP over InfiniBand.
    Ipoib,
    /// RDMA_PS_TCP: connections.
    Tcp,
    /// RDMA_PS_UDP: datagrams.
    Udp,
    /// RDMA_PS_IB: native InfiniBand addresses.
    Ib,
}

impl PortSpace {
    /// All port spaces.
    pub const ALL: [PortSpace; 4] = [
        PortSpace::Ipoib,
        PortSpace::Tcp,
        PortSpace::Udp,
        PortSpace::Ib,
    ];

    /// Returns the number that `rdma_create_id` uses.
    pub const fn number(self) -> u16 {
        match self {
            PortSpace::Ipoib => 0x0002,
            PortSpace::Tcp => 0x0106,
            PortSpace::Udp => 0x0111,
            PortSpace::Ib => 0x013f,
        }
    }

    /// Returns the port space with this number.
    pub fn from_number(number: u16) -> Option<PortSpace> {
        PortSpace::ALL.into_iter().find(|s| s.number() == number)
    }

    /// Returns the service ID of a port.
    pub const fn service_id(self, port: u16) -> u64 {
        (self.number() as u64) << 16 | port as u64
    }

    /// Returns the port space and port of a service ID, if it is a service of rdma_cm.
    pub fn of_service(service_id: u64) -> Option<(PortSpace, u16)> {
        let number = u16::try_from(service_id >> 16).ok()?;
        Some((PortSpace::from_number(number)?, service_id as u16))
    }

    /// Returns the default Q_Key of datagrams in this port space.
    pub const fn default_qkey(self) -> Option<u32> {
        match self {
            PortSpace::Udp | PortSpace::Ib => Some(0x0123_4567),
            PortSpace::Tcp | PortSpace::Ipoib => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_id_is_port_space_and_port() {
        assert_eq!(PortSpace::Tcp.service_id(7174), 0x0000_0000_0106_1c06);
        for space in PortSpace::ALL {
            let id = space.service_id(7174);
            assert_eq!(PortSpace::of_service(id), Some((space, 7174)));
        }
    }

    #[test]
    fn other_service_ids_belong_to_no_port_space() {
        for id in [0, 7174, 0x0107_0001, 0x1_0106_0001, u64::MAX] {
            assert_eq!(PortSpace::of_service(id), None, "{id:#x}");
        }
    }
}
