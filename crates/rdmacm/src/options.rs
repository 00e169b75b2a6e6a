//! Options of ids, and enhanced connection establishment (ECE).

use ferroce_cm::Ece;
use ferroce_device::transport::QpType;

use crate::error::Error;
use crate::id::{Id, State};

impl Id {
    /// Sets the type of service of packets.
    pub fn set_type_of_service(&self, value: u8) -> Result<(), Error> {
        self.usable()?.inner().options.type_of_service = value;
        Ok(())
    }

    /// Allows the id to share its port with other ids that allow it. Must be set before the
    /// id is bound; an id that does not listen may also set it to true later.
    pub fn set_reuse_address(&self, reuse: bool) -> Result<(), Error> {
        let mut inner = self.usable()?.inner();
        if inner.state != State::Idle && !(reuse && inner.state != State::Listen) {
            return Err(Error::invalid(
                "the option to reuse an address must be set before the address is bound",
            ));
        }
        inner.options.reuse_address = reuse;
        Ok(())
    }

    /// Restricts a wildcard address to its own IP version. Must be set before the address is
    /// resolved.
    pub fn set_af_only(&self, af_only: bool) -> Result<(), Error> {
        let mut inner = self.usable()?.inner();
        if !matches!(inner.state, State::Idle | State::Bound) {
            return Err(Error::invalid(
                "the option for one address family must be set before the address is resolved",
            ));
        }
        inner.options.af_only = af_only;
        Ok(())
    }

    /// Sets the ACK timeout of the queue pair, as a time code of up to 31; 0 for the default.
    pub fn set_ack_timeout(&self, timeout: u8) -> Result<(), Error> {
        let id = self.usable()?;
        if !matches!(id.qp_type, QpType::Rc | QpType::XrcInitiator) || timeout > 31 {
            return Err(Error::invalid(format!(
                "ACK timeout {timeout}: 0 to 31, for RC and XRC ids"
            )));
        }
        id.inner().options.ack_timeout = (timeout > 0).then_some(timeout);
        Ok(())
    }

    /// Sets the ECE options for the peer.
    pub fn set_local_ece(&self, ece: Ece) -> Result<(), Error> {
        self.usable()?.inner().local_ece = ece;
        Ok(())
    }

    /// Returns the ECE options of the peer.
    pub fn remote_ece(&self) -> Ece {
        self.shared().inner().remote_ece
    }
}
