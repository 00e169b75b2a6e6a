//! Records of packets and decisions, and the shared memory through which a program passes them
//! to `ferroce capture`.
//!
//! ```text
//!   program                                            ferroce capture
//!   shard -> Record -> RingWriter == shared memory ==> RingReader -> Record -> pcapng, text
//!                          \------- socket: wakes the reader -------/
//! ```
//!
//! ferroced creates the memory and the sockets, and passes one end to each process. It carries
//! no records itself. A program never waits for the reader: a record that finds no room is
//! counted as lost.
//!
//! The [`JournalFile`] of a program is memory, too. The program writes the failures and the last
//! packets of its queue pairs there (the flight recorder). ferroced keeps the file after the end
//! of the program, for `ferroce explain`.

mod file;
mod journal;
mod mapping;
mod record;
mod ring;

pub use journal::{
    JournalFile, JournalReader, JournalWriter, PacketRecord, PathRecord, QpRing, QpStory, STORY,
};
pub use record::{Direction, HEADER_LEN, Record};
pub use ring::{Filter, RingFile, RingReader, RingWriter};
