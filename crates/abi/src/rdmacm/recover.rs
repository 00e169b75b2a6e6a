//! After ferroced was restarted: ports, listeners and connections are made known to
//! the new one.
//!
//! An established connection needs its manager for its end only, so its record is
//! enough. What was just being set up is lost, and its id is told so.

use std::path::Path;
use std::sync::Arc;

use ferroce_control::{
    CmAnswer, CmCall, CmId, Connection, Error, LinkEventKind, Reply, ReplyReceiver as Hearer,
    Request, RequestSender as Asker, Watch,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::channel::Happening;
use super::id::{Id, State};
use super::line::{Line, ask};
use crate::ffi::*;

/// How soon to look again at a ferroced that is there and does not answer.
const RETRY: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Waits for the next ferroced, and tells it what is ours.
pub(crate) fn recover(line: &'static Line, dir: &Path) -> Option<(Asker, Hearer)> {
    let watch = match Watch::new(dir) {
        Ok(watch) => watch,
        Err(error) => {
            tracing::warn!("cannot wait for another ferroced: {error}");
            return None;
        }
    };
    loop {
        watch.clear();
        let error = match again(line, dir) {
            Ok(ends) => {
                tracing::info!("ferroced is back");
                return Some(ends);
            }
            Err(error) => error,
        };
        tracing::debug!("no ferroced yet: {error}");
        // Nothing shows when one that is stopped goes on.
        let timeout = matches!(error, Error::Timeout { .. }).then_some(RETRY);
        let mut fds = [PollFd::new(&watch, PollFlags::IN)];
        let _interrupted = poll(&mut fds, timeout.as_ref());
    }
}

fn again(line: &'static Line, dir: &Path) -> Result<(Asker, Hearer), Error> {
    let mut connection = Connection::connect(dir)?;
    Line::introduce(&mut connection)?;
    let (asker, hearer) = connection.split();
    let mut talk = Talk {
        line,
        asker,
        hearer,
    };
    let ids: Vec<Arc<Id>> = {
        let mut who = line.who();
        who.ports.clear();
        who.conns.clear();
        who.questions.clear();
        who.ids.values().cloned().collect()
    };
    for id in &ids {
        talk.port(id)?;
    }
    for id in &ids {
        talk.connection(id)?;
    }
    Ok((talk.asker, talk.hearer))
}

struct Talk {
    line: &'static Line,
    asker: Asker,
    hearer: Hearer,
}

impl Talk {
    /// Asks, and takes in what comes before the answer.
    fn call(&mut self, call: CmCall, id: &Arc<Id>) -> Result<Result<CmAnswer, i32>, Error> {
        ask(&self.asker, &Request::Cm(call))?;
        loop {
            match self.hearer.receive()?.1 {
                Reply::CmEvent(event) => self.line.who().dispatch(event),
                Reply::CmAnswer(answer) => {
                    self.line.who().learn(id, &answer);
                    return Ok(Ok(answer));
                }
                Reply::Error { errno, message } => {
                    tracing::warn!("not resumed: {message}");
                    return Ok(Err(errno));
                }
                Reply::Event(event) if event.kind == LinkEventKind::Removed => {
                    self.line.who().link_removed(event.link.index);
                }
                _ => {}
            }
        }
    }

    fn port(&mut self, id: &Arc<Id>) -> Result<(), Error> {
        let (port, options, backlog) = {
            let inner = id.inner();
            (inner.port, inner.options, inner.backlog)
        };
        let Some(mut port) = port.filter(|port| !port.borrowed) else {
            return Ok(());
        };
        let bind = CmCall::Bind {
            space: id.space,
            source: port.source,
            port: port.number,
            destination: port.destination,
            reuse: options.reuse,
            af_only: options.af_only,
        };
        if let Ok(CmAnswer::Bound { port: name, .. }) = self.call(bind, id)? {
            port.name = name;
            id.inner().port = Some(port);
            if let Some(backlog) = backlog {
                let listen = CmCall::Listen {
                    port: name,
                    backlog,
                };
                let _said = self.call(listen, id)?;
            }
        }
        Ok(())
    }

    fn connection(&mut self, id: &Arc<Id>) -> Result<(), Error> {
        let (conn, snapshot, question) = {
            let mut inner = id.inner();
            let conn = inner.conn.filter(|_| !inner.ended);
            (conn, inner.snapshot, inner.question.take())
        };
        if question.is_some() {
            lost(id, RDMA_CM_EVENT_UNREACHABLE);
        }
        let Some(CmId { link, .. }) = conn else {
            return Ok(());
        };
        let Some(snapshot) = snapshot else {
            id.inner().ended = true;
            lost(id, RDMA_CM_EVENT_CONNECT_ERROR);
            return Ok(());
        };
        let resume = CmCall::Resume {
            link,
            snapshot: Box::new(snapshot),
        };
        match self.call(resume, id)? {
            Ok(CmAnswer::Connection { .. }) => {}
            _ => {
                id.inner().ended = true;
                lost(id, RDMA_CM_EVENT_DISCONNECTED);
            }
        }
        Ok(())
    }
}

fn lost(id: &Arc<Id>, event: rdma_cm_event_type) {
    if id.inner().state == State::Connect {
        id.post(Happening::Plain(event, -libc::ECONNRESET));
    }
}
