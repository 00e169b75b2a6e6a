//! Listening and accepting.

use super::Stream;
use super::state::{Phase, State};
use crate::cm::{Id, Request};
use crate::connection::Connection;
use crate::wire::Greeting;
use crate::{Errno, Result};

impl Stream {
    /// Waits for connection requests; up to `backlog` of them are queued.
    ///
    /// # Errors
    ///
    /// EINVAL if the socket is connected; EALREADY while another thread binds it or makes it
    /// listen; EBADF if another thread closes it meanwhile.
    pub fn listen(&self, backlog: i32) -> Result<()> {
        {
            let mut state = self.lock();
            match state.phase {
                _ if state.calls_ferroced => return Err(Errno::ALREADY),
                // The backlog of the first call stays.
                Phase::Listening => return Ok(()),
                Phase::New => {}
                _ => return Err(Errno::INVAL),
            }
            // Before the call: a request may arrive as soon as ferroced listens, and another
            // thread may take it.
            state.phase = Phase::Listening;
            state.calls_ferroced = true;
        }
        let listening = self.id.listen(backlog);
        let mut state = self.lock();
        state.calls_ferroced = false;
        match (state.phase, listening) {
            (Phase::Listening, Ok(())) => Ok(()),
            (Phase::Listening, Err(errno)) => {
                state.phase = Phase::New;
                // Threads in `accept` return.
                state.waiters.wake_all();
                Err(errno)
            }
            _ => Err(Errno::BADF),
        }
    }

    /// Accepts the next connection request. The new socket has the options of this one.
    ///
    /// # Errors
    ///
    /// EAGAIN if the socket is non-blocking and there is no request; EINVAL if the socket
    /// does not listen.
    pub fn accept(&self) -> Result<Stream> {
        loop {
            let (request, greeting, options) =
                self.wait(self.nonblocking(), |state| match state.phase {
                    Phase::Listening => {
                        let (request, greeting) = state.requests.pop_front()?;
                        Some(Ok((request, greeting, state.options.clone())))
                    }
                    _ => Some(Err(Errno::INVAL)),
                })?;
            match self.take(request, greeting, State::new(options)) {
                Ok(stream) => return Ok(stream),
                // The caller can free resources. Other failures concern one peer only.
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                    return Err(errno);
                }
                Err(errno) => tracing::info!("a connection request was not accepted: {errno}"),
            }
        }
    }

    fn take(&self, request: Request, greeting: Greeting, mut state: State) -> Result<Stream> {
        let id = Id::from_request(request)?;
        let mut connection = Connection::new(&id, state.options.plan())?;
        connection.begin(greeting);
        id.accept(&connection.greeting().encode())?;
        state.connection = Some(connection);
        state.phase = Phase::Accepting;
        state.bound = true;
        Ok(Stream::with(id, self.family, state))
    }
}
