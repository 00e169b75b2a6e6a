//! The line to ferroced's connection manager: one for the process.
//!
//! Calls go one at a time: ask, and wait until the line's thread has heard the
//! answer. Events that it hears go to the channel of the id they concern. A
//! forked child opens a line of its own and leaves its parent's alone.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferroce_cm::{ConnId, Event, SidrId};
use ferroce_control::{
    ANSWER_TIMEOUT, CmAnswer, CmCall, CmEvent, CmId, CmPort, Connection, LinkEventKind, Reply,
    ReplyReceiver as Hearer, Request, RequestSender, find_daemon, next_request_number,
};
use ferroce_device::block_all;

use super::channel::Happening;
use super::devices;
use super::id::Id;
use super::unexpected;
use super::{Outcome, lock, recover};
use crate::errno::refuse;
use crate::ffi::RDMA_CM_EVENT_DEVICE_REMOVAL;

/// How long a call waits for a ferroced that is away.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a call waits for an answer while ferroced has left another one unanswered.
const SILENT_TIMEOUT: Duration = Duration::from_secs(1);

type Asker = RequestSender;

/// Asks, and does not wait for the answer.
pub(super) fn ask(asker: &Asker, request: &Request) -> Result<(), ferroce_control::Error> {
    let number = next_request_number();
    let bytes = ferroce_control::protocol::encode_numbered(Some(number), request);
    match asker.try_send(&bytes)? {
        true => Ok(()),
        false => Err(asker.timeout_error()),
    }
}

/// The line, and who is who on it.
#[derive(Debug)]
pub(crate) struct Line {
    process: u32,
    /// Held by the one call that is under way.
    turn: Mutex<()>,
    exchange: Mutex<Exchange>,
    /// The exchange has changed.
    changed: Condvar,
    who: Mutex<Who>,
}

#[derive(Debug)]
struct Exchange {
    /// None while ferroced is away.
    asker: Option<Asker>,
    /// How often it went away.
    losses: u64,
    call: Call,
    /// Calls that were given up: their answers come before that of the call under way.
    given_up: usize,
    /// A call was given up, and nothing has been heard since.
    silent: bool,
    /// Calls that take back what ferroced did for calls that were given up. They are sent
    /// by whoever has the turn, so that answers come in the order of calls.
    undo: Vec<CmCall>,
}

#[derive(Debug)]
enum Call {
    None,
    /// The answer is awaited; what it names will be this id's.
    Waiting(Option<Arc<Id>>),
    Answered(Outcome<CmAnswer>),
    /// ferroced died, perhaps before it heard the question.
    Lost,
}

/// Whom names in messages mean.
#[derive(Debug, Default)]
pub(crate) struct Who {
    pub(crate) ids: BTreeMap<usize, Arc<Id>>,
    pub(crate) ports: BTreeMap<CmPort, Arc<Id>>,
    pub(crate) conns: BTreeMap<CmId<ConnId>, Arc<Id>>,
    pub(crate) questions: BTreeMap<CmId<SidrId>, Arc<Id>>,
}

impl Who {
    /// A new id.
    pub(crate) fn add(&mut self, id: &Arc<Id>) {
        self.ids.insert(Arc::as_ptr(id) as usize, Arc::clone(id));
    }

    /// Whether an id has not gone.
    pub(crate) fn knows(&self, id: &Arc<Id>) -> bool {
        self.ids.contains_key(&(Arc::as_ptr(id) as usize))
    }

    /// An id goes: nothing more is told to it.
    pub(crate) fn remove(&mut self, id: &Arc<Id>) {
        self.ids.remove(&(Arc::as_ptr(id) as usize));
        let inner = id.inner();
        if let Some(port) = inner.port.filter(|port| !port.borrowed) {
            self.ports.remove(&port.name);
        }
        if let Some(conn) = inner.conn {
            self.conns.remove(&conn);
        }
        if let Some(question) = inner.question {
            self.questions.remove(&question);
        }
    }

    /// What an answer names is this id's from now on. The thread that hears it says so
    /// to the id, before it hears of events.
    pub(crate) fn learn(&mut self, id: &Arc<Id>, answer: &CmAnswer) {
        match answer {
            CmAnswer::Bound { port, .. } => drop(self.ports.insert(*port, Arc::clone(id))),
            CmAnswer::Connection { conn } => {
                self.conns.insert(*conn, Arc::clone(id));
                id.inner().conn = Some(*conn);
            }
            CmAnswer::SidrRequested { sidr } => {
                self.questions.insert(*sidr, Arc::clone(id));
                id.inner().question = Some(*sidr);
            }
            CmAnswer::Done | CmAnswer::Established { .. } => {}
        }
    }

    /// Queues an event for the id it concerns.
    pub(crate) fn dispatch(&mut self, event: Box<CmEvent>) {
        let link = event.link;
        let conn = event.event.conn().map(|id| CmId { link, id });
        let question = event.event.sidr().map(|id| CmId { link, id });
        let id = match &event.event {
            Event::Request(_) | Event::SidrRequest(_) => {
                event.port.and_then(|port| self.ports.get(&port))
            }
            _ => conn
                .and_then(|conn| self.conns.get(&conn))
                .or_else(|| question.and_then(|question| self.questions.get(&question))),
        };
        let Some(id) = id.map(Arc::clone) else {
            tracing::debug!("nobody is told of {:?}", event.event);
            return;
        };
        let over = match &event.event {
            Event::Rejected { timewait, .. } => !timewait,
            Event::Unreachable { .. } | Event::TimewaitExit { .. } => true,
            _ => false,
        };
        {
            let mut inner = id.inner();
            match &event.event {
                Event::Established { .. } => inner.snapshot = event.snapshot,
                Event::Disconnected { .. } | Event::Rejected { .. } => inner.snapshot = None,
                Event::SidrReply { .. } | Event::SidrUnreachable { .. } => inner.question = None,
                _ => {}
            }
            inner.ended |= over;
        }
        if let Some(conn) = conn.filter(|_| over) {
            self.conns.remove(&conn);
        }
        if let Some(question) = question {
            self.questions.remove(&question);
        }
        id.post(Happening::Cm(event));
    }

    /// A link is gone, and with it the device of these ids.
    pub(crate) fn link_removed(&mut self, link: u32) {
        let theirs = |id: &&Arc<Id>| id.inner().device.is_some_and(|d| d.index == link);
        for id in self.ids.values().filter(theirs) {
            id.post(Happening::Plain(RDMA_CM_EVENT_DEVICE_REMOVAL, 0));
        }
    }
}

/// The line of this process, or of its parent.
static LINE: AtomicPtr<Line> = AtomicPtr::new(ptr::null_mut());
static OPENING: Mutex<()> = Mutex::new(());

impl Line {
    /// The line of this process, which is opened if there is none.
    pub(crate) fn get() -> Outcome<&'static Line> {
        if let Some(line) = Line::current() {
            return Ok(line);
        }
        let _opening = lock(&OPENING);
        if let Some(line) = Line::current() {
            return Ok(line);
        }
        let line = Line::open().map_err(|error| {
            tracing::warn!("no connections: {error}");
            error.errno()
        })?;
        LINE.store(ptr::from_ref(line).cast_mut(), Ordering::Release);
        Ok(line)
    }

    pub(crate) fn current() -> Option<&'static Line> {
        // SAFETY: lines are never freed.
        let line = unsafe { LINE.load(Ordering::Acquire).as_ref() };
        line.filter(|line| line.process == std::process::id())
    }

    fn open() -> Result<&'static Line, ferroce_control::Error> {
        let mut connection = find_daemon()?.ok_or(ferroce_control::Error::NoDaemon)?;
        Line::introduce(&mut connection)?;
        let (asker, hearer) = connection.split();
        let line: &'static Line = Box::leak(Box::new(Line {
            process: std::process::id(),
            turn: Mutex::new(()),
            exchange: Mutex::new(Exchange {
                asker: Some(asker),
                losses: 0,
                call: Call::None,
                given_up: 0,
                silent: false,
                undo: Vec::new(),
            }),
            changed: Condvar::new(),
            who: Mutex::default(),
        }));
        let _blocked = block_all();
        #[allow(clippy::disallowed_methods)] // somebody has to listen
        std::thread::Builder::new()
            .name("ferroce-cm".into())
            .spawn(move || line.listen(hearer))
            .map_err(|error| ferroce_control::Error::system("thread", error))?;
        Ok(line)
    }

    /// Who is who. While it is held, no event is queued.
    pub(crate) fn who(&self) -> MutexGuard<'_, Who> {
        lock(&self.who)
    }

    /// Asks, and waits for the answer. What the answer names is `id`'s. ECONNRESET if
    /// ferroced dies meanwhile: nobody knows what it has done. ETIMEDOUT if it does not
    /// answer: it is stopped, and will do it when it is continued.
    pub(crate) fn call(&self, call: CmCall, id: Option<&Arc<Id>>) -> Outcome<CmAnswer> {
        self.request(Request::Cm(call), id)
    }

    fn request(&self, request: Request, id: Option<&Arc<Id>>) -> Outcome<CmAnswer> {
        let _turn = lock(&self.turn);
        let (asker, _) = self.asker()?;
        self.ask(&asker, request, id)?
            .ok_or_else(|| refuse(libc::ECONNRESET, "ferroced went away during the call"))
    }

    /// Whether ferroced answers at all: ETIMEDOUT if it does not.
    pub(crate) fn probe(&self) -> Outcome {
        // Asked again, it changes nothing.
        self.request(Request::Subscribe, None).map(drop)
    }

    /// As [`Line::call`], for what may be said twice: if ferroced dies, the next one is
    /// asked. By then names have changed, so each question is made anew.
    pub(crate) fn insist(
        &self,
        call: impl Fn() -> Outcome<CmCall>,
        id: Option<&Arc<Id>>,
    ) -> Outcome<CmAnswer> {
        let _turn = lock(&self.turn);
        loop {
            let (asker, losses) = self.asker()?;
            if let Some(answer) = self.ask(&asker, Request::Cm(call()?), id)? {
                return Ok(answer);
            }
            self.await_loss(losses);
        }
    }

    /// None if ferroced died. The caller has the turn.
    fn ask(
        &self,
        asker: &Asker,
        request: Request,
        id: Option<&Arc<Id>>,
    ) -> Outcome<Option<CmAnswer>> {
        self.take_back(asker);
        let timeout = {
            let mut exchange = lock(&self.exchange);
            exchange.call = Call::Waiting(id.map(Arc::clone));
            match exchange.silent {
                true => SILENT_TIMEOUT,
                false => ANSWER_TIMEOUT,
            }
        };
        if let Err(error) = ask(asker, &request) {
            tracing::warn!("ferroced cannot be asked: {error}");
            lock(&self.exchange).call = Call::None;
            return match error {
                ferroce_control::Error::Timeout { .. } => Err(error.errno()),
                _ => Ok(None),
            };
        }
        let waiting = |exchange: &mut Exchange| matches!(exchange.call, Call::Waiting(_));
        let guard = lock(&self.exchange);
        let waited = self.changed.wait_timeout_while(guard, timeout, waiting);
        let (mut exchange, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match core::mem::replace(&mut exchange.call, Call::None) {
            Call::Answered(answer) => answer.map(Some),
            Call::Lost => Ok(None),
            Call::Waiting(_) => {
                exchange.given_up += 1;
                exchange.silent = true;
                let error = asker.timeout_error();
                tracing::warn!("{error}");
                Err(error.errno())
            }
            Call::None => Err(refuse(libc::EIO, "the call was taken back")),
        }
    }

    /// Takes back what ferroced did for calls that were given up. The caller has the turn.
    fn take_back(&self, asker: &Asker) {
        let calls = core::mem::take(&mut lock(&self.exchange).undo);
        for call in calls {
            // Counted before it is sent: the answer may come at once.
            let losses = {
                let mut exchange = lock(&self.exchange);
                exchange.given_up += 1;
                exchange.losses
            };
            if ask(asker, &Request::Cm(call)).is_err() {
                let mut exchange = lock(&self.exchange);
                if exchange.losses == losses {
                    exchange.given_up = exchange.given_up.saturating_sub(1);
                }
            }
        }
    }

    /// Waits until the line's thread has noticed that ferroced is gone.
    fn await_loss(&self, losses: u64) {
        let unaware = |exchange: &mut Exchange| exchange.losses == losses;
        let guard = lock(&self.exchange);
        drop(self.changed.wait_timeout_while(guard, PATIENCE, unaware));
    }

    /// A ferroced is there, or comes back soon.
    pub(crate) fn await_ferroced(&self) -> Outcome {
        self.asker().map(drop)
    }

    /// As [`Line::call`], for what is answered by [`CmAnswer::Done`].
    pub(crate) fn perform(&self, call: CmCall) -> Outcome {
        match self.call(call, None)? {
            CmAnswer::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Waits for a ferroced that is away.
    fn asker(&self) -> Outcome<(Asker, u64)> {
        let away = |exchange: &mut Exchange| exchange.asker.is_none();
        let guard = lock(&self.exchange);
        let waited = self.changed.wait_timeout_while(guard, PATIENCE, away);
        let (exchange, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let asker = exchange
            .asker
            .clone()
            .ok_or_else(|| refuse(libc::ETIMEDOUT, "ferroced is away"))?;
        Ok((asker, exchange.losses))
    }

    /// The thread: hears, for as long as the process lives.
    fn listen(&'static self, mut hearer: Hearer) {
        loop {
            match hearer.receive() {
                Ok((_, reply)) => self.heard(reply),
                Err(error) => {
                    tracing::info!("ferroced is gone ({error}); connections go on without it");
                    self.broken();
                    let dir = hearer.dir().to_owned();
                    drop(hearer);
                    match recover::recover(self, &dir) {
                        Some((asker, new)) => {
                            hearer = new;
                            lock(&self.exchange).asker = Some(asker);
                            self.changed.notify_all();
                        }
                        None => return,
                    }
                }
            }
        }
    }

    fn heard(&self, reply: Reply) {
        match reply {
            Reply::CmEvent(event) => self.who().dispatch(event),
            Reply::CmAnswer(answer) => self.answered(Ok(answer)),
            Reply::Done => self.answered(Ok(CmAnswer::Done)),
            Reply::Error { errno, message } => {
                tracing::debug!("refused: {message}");
                self.answered(Err(errno));
            }
            Reply::Event(event) => {
                if event.kind == LinkEventKind::Removed {
                    self.who().link_removed(event.link.index);
                    devices::forget(event.link.index);
                }
            }
            other => {
                tracing::warn!("unexpected: {other:?}");
                self.answered(Err(unexpected()));
            }
        }
    }

    fn answered(&self, answer: Outcome<CmAnswer>) {
        let waiting = {
            let mut exchange = lock(&self.exchange);
            exchange.silent = false;
            if exchange.given_up > 0 {
                exchange.given_up -= 1;
                exchange.undo.extend(answer.ok().as_ref().and_then(undoing));
                drop(exchange);
                return self.tidy_up();
            }
            match &exchange.call {
                Call::Waiting(id) => id.clone(),
                _ => return,
            }
        };
        if let (Some(id), Ok(answer)) = (&waiting, &answer) {
            self.who().learn(id, answer);
        }
        let mut exchange = lock(&self.exchange);
        if matches!(exchange.call, Call::Waiting(_)) {
            exchange.call = Call::Answered(answer);
            self.changed.notify_all();
        }
    }

    /// Takes back what calls did that were given up, unless a call is under way: then the
    /// next one does it.
    fn tidy_up(&self) {
        let Ok(_turn) = self.turn.try_lock() else {
            return;
        };
        let asker = lock(&self.exchange).asker.clone();
        if let Some(asker) = asker {
            self.take_back(&asker);
        }
    }

    /// Who waits for an answer will not get it.
    fn broken(&self) {
        let mut exchange = lock(&self.exchange);
        exchange.asker = None;
        exchange.losses += 1;
        // The next one knows nothing of earlier calls.
        exchange.given_up = 0;
        exchange.silent = false;
        exchange.undo.clear();
        if matches!(exchange.call, Call::Waiting(_)) {
            exchange.call = Call::Lost;
        }
        self.changed.notify_all();
    }

    /// What a new connection to ferroced needs first.
    pub(crate) fn introduce(connection: &mut Connection) -> Result<(), ferroce_control::Error> {
        connection.perform(&Request::Subscribe)
    }
}

/// The call that ends what an answer has made.
fn undoing(answer: &CmAnswer) -> Option<CmCall> {
    match *answer {
        CmAnswer::Bound { port, .. } => Some(CmCall::Release { port }),
        CmAnswer::Connection { conn } => Some(CmCall::Destroy { conn }),
        CmAnswer::SidrRequested { sidr } => Some(CmCall::SidrDestroy { sidr }),
        CmAnswer::Done | CmAnswer::Established { .. } => None,
    }
}
