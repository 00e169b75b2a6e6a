//! Streams as readers and writers of the standard library.

use std::io::{IoSlice, IoSliceMut, Read, Result, Write};

use rustix::net::{RecvFlags, SendFlags};

use super::Stream;

impl Read for &Stream {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        Ok(self.receive(bytes, RecvFlags::empty())?)
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize> {
        Ok(self.receive_vectored(parts, RecvFlags::empty())?)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        Ok(self.send(bytes, SendFlags::empty())?)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        Ok(self.send_vectored(parts, SendFlags::empty())?)
    }

    /// Does nothing: a write starts to send at once.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        (&*self).read(bytes)
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize> {
        (&*self).read_vectored(parts)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        (&*self).write_vectored(parts)
    }

    /// Does nothing: a write starts to send at once.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
