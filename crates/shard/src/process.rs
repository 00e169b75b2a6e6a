//! The surroundings of a core.

use ferroce_faults::Provoked;
use ferroce_roce::{Batch, Datagram, Decision, Event, Fault, Memory, Received, Run};

/// The process that a core runs in: its memory and its event queue.
///
/// The methods with an empty default are for observers such as the simulator, which checks
/// every packet. The compiler removes the empty ones.
pub trait Process {
    /// Returns access to the registered memory of the program.
    fn memory(&self) -> &dyn Memory;

    /// Takes an event of the engine.
    fn report(&mut self, event: Event);

    /// Takes an event of the device that faults have caused.
    fn provoked(&mut self, _event: Provoked) {}

    /// Returns true if the process observes packets. The others of the methods that observe are
    /// called only then, so that a process decides at run time.
    #[inline]
    fn observes(&self) -> bool {
        true
    }

    /// Observes decisions of the engine that belong to no received packet.
    #[inline]
    fn decided(&mut self, _decisions: &[(u32, Decision)]) {}

    /// Observes a datagram just before the engine receives it.
    #[inline]
    fn receiving(&mut self, _datagram: &Datagram<'_>) {}

    /// Observes the result of a datagram that the engine has received, and the decisions about
    /// it.
    #[inline]
    fn received(
        &mut self,
        _datagram: &Datagram<'_>,
        _result: Received,
        _decisions: &[(u32, Decision)],
    ) {
    }

    /// Observes what a fault did to the datagram that the engine receives next; an empty text if the
    /// engine receives another one before. It is called even if the process observes no packets.
    #[inline]
    fn met_fault(&mut self, _fate: &str) {}

    /// Observes a datagram that a fault loses: the engine does not receive it. It is called even if
    /// the process observes no packets.
    #[inline]
    fn lost(&mut self, _datagram: &Datagram<'_>, _fate: &str) {}

    /// Observes the first `packets` packets of a run, which header prediction accepted.
    #[inline]
    fn predicted(&mut self, _run: &Datagram<'_>, _segment: usize, _packets: usize) {}

    /// Observes a run of a batch in the form in which it will be sent. Packets whose number
    /// is in `faults` are not part of `bytes`. `fates` tells in words what provoked faults do to
    /// packets, by their index in `bytes`.
    #[inline]
    fn assembled(
        &mut self,
        _batch: &Batch,
        _run: &Run,
        _bytes: &[u8],
        _faults: &[(usize, Fault)],
        _fates: &[(usize, String)],
    ) {
    }
}
