//! Sockets that are connected to.

use core::ffi::c_int;

use super::Stream;
use super::core::{Core, Phase};
use crate::rsocket::connection::Connection;
use crate::rsocket::id::{Id, Request};
use crate::rsocket::wire::Greeting;

impl Stream {
    pub(crate) fn listen(&self, backlog: c_int) -> Result<(), c_int> {
        let mut core = self.lock();
        match core.phase {
            // Another backlog: the first one stays.
            Phase::Listening => return Ok(()),
            Phase::New => {}
            _ => return Err(libc::EINVAL),
        }
        self.id.listen(backlog)?;
        core.phase = Phase::Listening;
        Ok(())
    }

    /// The next connection.
    pub(crate) fn accept(&self) -> Result<Stream, c_int> {
        loop {
            let (request, greeting, options) =
                self.wait(self.nonblocking(), |core| match core.phase {
                    Phase::Listening => {
                        let (request, greeting) = core.requests.pop_front()?;
                        Some(Ok((request, greeting, core.options.clone())))
                    }
                    _ => Some(Err(libc::EINVAL)),
                })?;
            match self.take(request, greeting, Core::new(options)) {
                Ok(stream) => return Ok(stream),
                // Out of something: the program should know.
                Err(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)) => {
                    return Err(errno);
                }
                Err(errno) => tracing::info!("a connection was not accepted: errno {errno}"),
            }
        }
    }

    fn take(&self, request: Request, greeting: Greeting, mut core: Core) -> Result<Stream, c_int> {
        let id = Id::from_request(request)?;
        let mut connection = Connection::new(&id, core.options.plan())?;
        connection.begin(greeting);
        id.accept(&connection.greeting().encode())?;
        core.connection = Some(connection);
        core.phase = Phase::Accepting;
        core.bound = true;
        Ok(Stream::with(id, self.family, core))
    }
}
