//! The local wire in the simulation: hosts of one machine that share memory.
//!
//! The channels run the code of [`ferroce_net::local`]. Only what the kernel does is simulated:
//! the memory, the wakeups, and the end of a process.
//!
//! * `memory` is the memory of a ring. A process dies before any access to it, or in the middle
//!   of a copy.
//! * `channel` has the two ends of a channel, and the packets that the reader must still get.
//! * `hosts` opens and closes channels, puts hosts to sleep, and buries the dead.
//! * `intruder` is a hostile process with channels to some hosts.

pub(crate) mod channel;
pub(crate) mod hosts;
pub(crate) mod intruder;
pub(crate) mod memory;

pub(crate) use channel::SimEnd;
pub(crate) use hosts::OpenChannel;
pub(crate) use intruder::Intruder;
pub(crate) use memory::SimProcess;
