//! The links that a process has opened: an attachment for each open device.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use super::calls::{Answer, Hook, detach};
use super::shared::Shared;
use super::streams::StreamIntroduction;
use super::{Client, SlotNumbers, lock, note_closed};
use crate::attach::{AttachedSlot, ResumeDescriptors, unpack};
use crate::connection::{next_request_number, unexpected};
use crate::error::Error;
use crate::generation::generation;
use crate::link::{LinkEvent, LinkEventKind, LinkInfo};
use crate::protocol::{AttachmentNumber, Reply, Request, SlotKind};

/// The user of an open link: a device. The client's thread calls it.
pub trait LinkUser: Send + Sync + core::fmt::Debug {
    /// Handles an event of the link.
    fn changed(&self, event: LinkEvent);
    /// Handles a restart of ferroced. `link` is the present state of the link; None if the
    /// link was deleted.
    fn resumed(&self, link: Option<LinkInfo>);
    /// Handles a restarted ferroced that does not give the slots back. Queue pairs go on
    /// without ferroced.
    fn refused(&self);
    /// Takes a channel that another program has asked for.
    fn introduced(&self, introduction: Introduction);
    /// Takes a channel for a connection that this program has offered.
    fn stream_introduced(&self, introduction: StreamIntroduction);
    /// Takes memory to which the program writes its packets and failures on the link.
    fn tapped(&self, tap: Tap);
    /// Returns the program's objects on the link: a list of
    /// [`Resources`](crate::Resources) as JSON, one for each open device.
    fn report(&self, keys: bool) -> Vec<u8>;
}

/// A channel through shared memory to another program.
#[derive(Debug)]
pub struct Introduction {
    /// The slot of this program.
    pub slot: u8,
    /// The slot of the other program.
    pub peer: u8,
    /// True if this program asked for the channel.
    pub asked: bool,
    /// The shared memory.
    pub memory: OwnedFd,
    /// This program's socket for wakeups.
    pub socket: OwnedFd,
}

impl Introduction {
    /// Returns a channel with these descriptors; none if one is missing.
    pub(super) fn new(slot: u8, peer: u8, asked: bool, fds: Vec<OwnedFd>) -> Option<Introduction> {
        let [memory, socket] = fds.try_into().ok()?;
        Some(Introduction {
            slot,
            peer,
            asked,
            memory,
            socket,
        })
    }
}

/// Memory for packets and failures of an attachment.
#[derive(Debug)]
pub enum Tap {
    /// A ring for a capture.
    Ring {
        /// The shared memory.
        ring: OwnedFd,
        /// The socket to wake the reader.
        socket: OwnedFd,
    },
    /// The journal, which takes the place of an earlier one.
    Journal(OwnedFd),
}

impl Tap {
    /// Returns a ring with these descriptors; none if one is missing.
    pub(super) fn new(fds: Vec<OwnedFd>) -> Option<Tap> {
        let [ring, socket] = fds.try_into().ok()?;
        Some(Tap::Ring { ring, socket })
    }
}

/// A link that this process has opened. ferroced takes the slots back when it is dropped. So
/// stop using the sockets before.
#[derive(Debug)]
pub struct OpenLink {
    /// The link at the time of the attachment; events carry newer versions.
    pub link: LinkInfo,
    /// The slots, one per requested shard.
    pub slots: Vec<AttachedSlot>,
    /// Descriptors that the next ferroced needs.
    pub descriptors: Arc<ResumeDescriptors>,
    number: AttachmentNumber,
    client: Client,
}

/// The open links of a process.
#[derive(Debug, Default)]
pub(super) struct OpenLinks {
    entries: Mutex<BTreeMap<AttachmentNumber, Entry>>,
    /// Memory of attachments that have no user yet.
    taps: Mutex<Vec<(AttachmentNumber, Tap)>>,
}

#[derive(Debug)]
struct Entry {
    /// Index and name of the link.
    index: u32,
    name: String,
    slots: Vec<u8>,
    descriptors: Arc<ResumeDescriptors>,
    user: Option<Arc<dyn LinkUser>>,
    /// Events from before there was a user.
    events: Vec<UserEvent>,
}

/// An event for the user of an open link.
#[derive(Debug)]
enum UserEvent {
    Changed(LinkEvent),
    Resumed(Option<LinkInfo>),
    Refused,
}

/// The facts by which ferroced resumes an attachment.
#[derive(Debug)]
pub(super) struct Resumption {
    pub(super) number: AttachmentNumber,
    pub(super) link: String,
    pub(super) slots: Vec<u8>,
    pub(super) descriptors: Arc<ResumeDescriptors>,
}

impl Entry {
    fn deliver(&mut self, event: UserEvent) {
        match &event {
            UserEvent::Changed(LinkEvent { link, .. }) | UserEvent::Resumed(Some(link)) => {
                self.index = link.index;
                self.name.clone_from(&link.name);
            }
            UserEvent::Resumed(None) | UserEvent::Refused => {}
        }
        match (&self.user, event) {
            (Some(user), UserEvent::Changed(event)) => user.changed(event),
            (Some(user), UserEvent::Resumed(link)) => user.resumed(link),
            (Some(user), UserEvent::Refused) => user.refused(),
            (None, event) => self.events.push(event),
        }
    }
}

impl OpenLinks {
    /// Hands an event to the users of its link.
    pub(super) fn changed(&self, event: &LinkEvent) {
        // A new link has no users.
        if event.kind == LinkEventKind::Added {
            return;
        }
        let mut links = lock(&self.entries);
        for entry in links.values_mut() {
            if entry.index == event.link.index {
                entry.deliver(UserEvent::Changed(event.clone()));
            }
        }
    }

    /// Hands a channel to the user of an attachment. Without a user the channel is closed.
    pub(super) fn introduced(&self, number: AttachmentNumber, introduction: Introduction) {
        let links = lock(&self.entries);
        if let Some(user) = links.get(&number).and_then(|entry| entry.user.as_ref()) {
            user.introduced(introduction);
        }
    }

    /// Hands a channel for a connection to the user of an attachment. Without a user the channel
    /// is closed.
    pub(super) fn stream_introduced(
        &self,
        number: AttachmentNumber,
        introduction: StreamIntroduction,
    ) {
        let links = lock(&self.entries);
        if let Some(user) = links.get(&number).and_then(|entry| entry.user.as_ref()) {
            user.stream_introduced(introduction);
        }
    }

    /// Hands memory to the user of an attachment, or keeps it until there is one.
    pub(super) fn tapped(&self, number: AttachmentNumber, tap: Tap) {
        let links = lock(&self.entries);
        match links.get(&number).and_then(|entry| entry.user.as_ref()) {
            Some(user) => user.tapped(tap),
            None => lock(&self.taps).push((number, tap)),
        }
    }

    /// Returns the objects of an attachment. One that is being opened, or was closed meanwhile,
    /// has none.
    pub(super) fn report(&self, number: AttachmentNumber, keys: bool) -> Vec<u8> {
        let links = lock(&self.entries);
        let user = links.get(&number).and_then(|entry| entry.user.as_ref());
        user.map_or_else(|| b"[]".to_vec(), |user| user.report(keys))
    }

    /// Returns what ferroced must know after a restart.
    pub(super) fn resumptions(&self) -> Vec<Resumption> {
        let links = lock(&self.entries);
        let resumptions = links.iter().map(|(number, entry)| Resumption {
            number: *number,
            link: entry.name.clone(),
            slots: entry.slots.clone(),
            descriptors: Arc::clone(&entry.descriptors),
        });
        resumptions.collect()
    }

    /// Tells the user of an attachment that ferroced was restarted.
    pub(super) fn resumed(&self, number: AttachmentNumber, link: Option<LinkInfo>) {
        if let Some(entry) = lock(&self.entries).get_mut(&number) {
            entry.deliver(UserEvent::Resumed(link));
        }
    }

    /// Tells the user of an attachment that a restarted ferroced does not give its slots back.
    pub(super) fn refused(&self, number: AttachmentNumber) {
        if let Some(entry) = lock(&self.entries).get_mut(&number) {
            entry.deliver(UserEvent::Refused);
        }
    }

    pub(super) fn contains(&self, number: AttachmentNumber) -> bool {
        lock(&self.entries).contains_key(&number)
    }

    fn add(&self, number: AttachmentNumber, entry: Entry) {
        lock(&self.entries).insert(number, entry);
    }

    fn set_user(&self, number: AttachmentNumber, user: Arc<dyn LinkUser>) {
        let mut links = lock(&self.entries);
        let Some(entry) = links.get_mut(&number) else {
            return;
        };
        let mut taps = lock(&self.taps);
        // Attachments that were refused have none, and the others get theirs here.
        for (_, tap) in taps.extract_if(.., |(of, _)| *of == number) {
            user.tapped(tap);
        }
        drop(taps);
        entry.user = Some(user);
        for event in core::mem::take(&mut entry.events) {
            entry.deliver(event);
        }
    }

    /// Removes an attachment, and returns its slots.
    fn remove(&self, number: AttachmentNumber) -> SlotNumbers {
        let entry = lock(&self.entries).remove(&number);
        lock(&self.taps).retain(|(of, _)| *of != number);
        // The user is dropped without the lock.
        entry
            .map(|entry| (entry.descriptors.kind(), entry.slots))
            .unwrap_or_default()
    }
}

/// The parts of an answer for the thread that attaches.
type Parts = (LinkInfo, Vec<AttachedSlot>, Arc<ResumeDescriptors>);

pub(super) fn attach(client: Client, link: &str, shards: u8) -> Result<OpenLink, Error> {
    let taken: Arc<Mutex<Option<(AttachmentNumber, Parts)>>> = Arc::default();
    client.shared.call_running(|| {
        let number = next_request_number();
        let request = Request::Attach {
            attachment: number,
            link: link.to_owned(),
            shards,
        };
        let (shared, taken) = (Arc::clone(&client.shared), Arc::clone(&taken));
        let hook: Hook = Box::new(move |answer| {
            let answer = answer?;
            match take(&shared, number, answer) {
                Ok(parts) => *lock(&taken) = Some((number, parts)),
                Err(error) => {
                    shared.notify(None, &detach(number), None);
                    return Err(error);
                }
            }
            Ok(Answer {
                items: Vec::new(),
                last: Reply::Done,
                fds: Vec::new(),
            })
        });
        (request, Some(hook))
    })?;
    let taken = lock(&taken).take();
    let (number, (link, slots, descriptors)) =
        taken.ok_or_else(|| Error::Unexpected("an Attach without an answer".into()))?;
    Ok(OpenLink {
        link,
        slots,
        descriptors,
        number,
        client,
    })
}

/// Takes the parts of an answer, and adds the attachment to those that get events.
fn take(shared: &Shared, number: AttachmentNumber, answer: Answer) -> Result<Parts, Error> {
    let (link, grants) = match answer.last {
        Reply::Attached { link, slots, .. } => (link, slots),
        other => return Err(unexpected(&other)),
    };
    let (descriptors, slots) = unpack(SlotKind::of(&link), &grants, answer.fds)?;
    let descriptors = Arc::new(descriptors);
    let entry = Entry {
        index: link.index,
        name: link.name.clone(),
        slots: slots.iter().map(|slot| slot.slot).collect(),
        descriptors: Arc::clone(&descriptors),
        user: None,
        events: Vec::new(),
    };
    shared.links.add(number, entry);
    Ok((link, slots, descriptors))
}

impl OpenLink {
    /// Sets the user, which gets the events of the link from now on, and those from before.
    pub fn set_user(&self, user: Arc<dyn LinkUser>) {
        self.client.shared.links.set_user(self.number, user);
    }

    /// Asks ferroced for a channel from a slot of this link to another program, without waiting
    /// for the answer. A thread of the client passes the channel to `take`, or the reason why
    /// there is none. Returns false if there is no connection to ferroced.
    pub fn introduce(
        &self,
        slot: u8,
        peer: u8,
        take: impl FnOnce(Result<Introduction, Error>) + Send + 'static,
    ) -> bool {
        let request = Request::Introduce {
            attachment: self.number,
            slot,
            peer,
        };
        self.ask(&request, move |answer| {
            take(answer.and_then(|(last, fds)| {
                match last {
                    Reply::Introduced { asked, .. } => Introduction::new(slot, peer, asked, fds)
                        .ok_or_else(|| Error::Unexpected("a channel without descriptors".into())),
                    other => Err(unexpected(&other)),
                }
            }));
        })
    }

    /// Sends a request without waiting for the answer. A thread of the client passes the last
    /// reply with its descriptors to `take`. Returns false if there is no connection to ferroced.
    pub(super) fn ask(
        &self,
        request: &Request,
        take: impl FnOnce(Result<(Reply, Vec<OwnedFd>), Error>) + Send + 'static,
    ) -> bool {
        let hook: Hook = Box::new(move |answer| {
            take(answer.map(|Answer { last, fds, .. }| (last, fds)));
            Ok(Answer {
                items: Vec::new(),
                last: Reply::Done,
                fds: Vec::new(),
            })
        });
        self.client.shared.notify(None, request, Some(hook))
    }

    /// Returns the number of the attachment.
    pub(super) fn number(&self) -> AttachmentNumber {
        self.number
    }
}

impl Drop for OpenLink {
    fn drop(&mut self) {
        let shared = &self.client.shared;
        if shared.process != generation() {
            // A forked child: the attachment is its parent's.
            return;
        }
        let (netns, slots) = (shared.netns, shared.links.remove(self.number));
        let of_hook = slots.clone();
        let hook: Hook = Box::new(move |answer| {
            if matches!(answer, Err(Error::Closed)) {
                note_closed(netns, of_hook);
            }
            answer
        });
        if !shared.notify(None, &detach(self.number), Some(hook)) {
            note_closed(netns, slots);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resources;

    /// ferroced may ask before the program has opened its device, or after it has closed it.
    #[test]
    fn attachment_without_a_user_reports_no_objects() {
        let report = OpenLinks::default().report(7, true);
        let report: Vec<Resources> = serde_json::from_slice(&report).expect("a list");
        assert_eq!(report, []);
    }
}
