//! The grammar of faults.
//!
//! A text consists of statements, separated by semicolons or line ends. A statement begins
//! with a fault; the words that select packets and times follow in any order:
//!
//! ```text
//!   loss 1% [burst N | gilbert P% R% [BAD% [GOOD%]]]     drop the 3rd ACK
//!   duplicate 1%     corrupt 1% [undetected]             duplicate the 2nd SEND
//!   reorder 1% [by N]                                    corrupt every 10th WRITE
//!   delay 2ms [jitter 1ms]                               delay the 1st REP 2s
//!   rate 100mbit [queue 50ms]   partition   blackhole 1500   slow completions 5ms
//!   rnr 20%     nak access|invalid|operation the 2nd ACK     reject the 1st REQ
//!   reset the 3rd SEND (type siw)
//!   qp error | cq overrun | srq limit | port down | gid removed | device fatal
//!   fail VERB [N] ERRNO
//!
//!   packets:  in | out   qp N   peer ADDRESS   rc | uc | ud | xrc   ACK, SEND, REQ ...
//!   times:    at TIME   for TIME   after N packets   times N
//!   anywhere: seed N
//! ```

use ferroce_wire::Transport;

use crate::counts::MAX_RULES;
use crate::errno::errno_number;
use crate::plan::{Answer, Effect, EventKind, Rule, Trigger, Window};
use crate::random::Chance;
use crate::selector::{CmMessage, Direction, PacketKind, Select};
use crate::verbs::VERBS;
use crate::words;

/// The reason why a text is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("faults: `{statement}`: {reason}")]
pub struct ParseError {
    /// The statement with the mistake.
    pub statement: String,
    /// The mistake and the remedy.
    pub reason: String,
}

const HEADS: &str = "loss, drop, duplicate, corrupt, reorder, delay, rate, partition, blackhole, \
     slow completions, rnr, nak, reject, reset, qp error, cq overrun, srq limit, port down, gid removed, \
     device fatal, fail, seed";
const OPTIONS: &str = "in, out, qp N, peer ADDRESS, rc, uc, ud, xrc, a kind of packets (packet, \
     request, ACK, NAK, SEND, WRITE, READ, RESPONSE, ATOMIC, CNP, CM, REQ, REP, RTU, DREQ, DREP, \
     or an opcode such as SEND_ONLY), the Nth, every Nth, N%, at TIME, for TIME, after N packets, \
     times N, seed N";
/// Longest queue of `rate` by default: 50 ms.
const QUEUE_NS: u64 = 50_000_000;

/// Returns a statement without comment and surrounding space.
pub(crate) fn without_comment(statement: &str) -> &str {
    statement.split('#').next().unwrap_or_default().trim()
}

/// Parses a text. Returns the seed and the rules.
pub(crate) fn parse(text: &str) -> Result<(u64, Vec<Rule>), ParseError> {
    let mut seed = None;
    let mut rules = Vec::new();
    for statement in text.split(['\n', ';']).map(without_comment) {
        if statement.is_empty() {
            continue;
        }
        let fails = |reason| ParseError {
            statement: statement.into(),
            reason,
        };
        let rule = Parser::new(statement, &mut seed)
            .statement()
            .map_err(fails)?;
        rules.extend(rule);
        if rules.len() > MAX_RULES {
            return Err(fails(format!(
                "this is fault number {}, and there may be {MAX_RULES}; remove some",
                rules.len()
            )));
        }
    }
    Ok((seed.unwrap_or(0), rules))
}

/// The words of a statement, and what they have said so far.
struct Parser<'a> {
    text: &'a str,
    words: core::iter::Peekable<std::str::SplitWhitespace<'a>>,
    seed: &'a mut Option<u64>,
    select: Select,
    trigger: Option<Trigger>,
    window: Window,
    burst: Option<u64>,
    by: Option<u64>,
    time: Option<u64>,
    jitter: u64,
    queue: Option<u64>,
    undetected: bool,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, seed: &'a mut Option<u64>) -> Parser<'a> {
        Parser {
            text,
            words: text.split_whitespace().peekable(),
            seed,
            select: Select::default(),
            trigger: None,
            window: Window::default(),
            burst: None,
            by: None,
            time: None,
            jitter: 0,
            queue: None,
            undetected: false,
        }
    }

    /// Parses the whole statement. Returns none for one that only sets the seed.
    fn statement(mut self) -> Result<Option<Rule>, String> {
        let head = self.words.next().unwrap_or_default();
        let effect = match head {
            "seed" => {
                self.set_seed()?;
                return match self.words.next() {
                    None => Ok(None),
                    Some(word) => Err(format!(
                        "unexpected word `{word}` after the seed; separate \
                         faults by `;`"
                    )),
                };
            }
            "fail" => return self.fail().map(Some),
            "loss" | "drop" => Effect::Drop,
            "partition" => {
                self.select.kind = PacketKind::All;
                Effect::Drop
            }
            "duplicate" => Effect::Duplicate,
            "corrupt" => Effect::Corrupt { undetected: false },
            "reorder" => Effect::Reorder { by: 1 },
            "delay" => Effect::Delay { ns: 0, jitter: 0 },
            "slow" => {
                self.expect("completions")?;
                self.select.direction = Some(Direction::In);
                Effect::Delay { ns: 0, jitter: 0 }
            }
            "rate" => Effect::Rate {
                bits: self.next("a rate such as 100mbit", words::rate)?,
                queue: QUEUE_NS,
            },
            "blackhole" => Effect::BlackHole {
                bytes: self.next("a number of bytes such as 1500", words::number)? as usize,
            },
            "rnr" => Effect::Answer(Answer::Rnr),
            "nak" => Effect::Answer(self.nak()?),
            "reject" => Effect::Reject,
            "reset" => Effect::Reset,
            "qp" => self.event("error", EventKind::QpError)?,
            "cq" => self.event("overrun", EventKind::CqOverrun)?,
            "srq" => self.event("limit", EventKind::SrqLimit)?,
            "port" => self.event("down", EventKind::PortDown)?,
            "gid" => self.event("removed", EventKind::GidRemoved)?,
            "device" => self.event("fatal", EventKind::DeviceFatal)?,
            other => return Err(format!("`{other}` is not a fault; known are {HEADS}")),
        };
        while let Some(word) = self.words.next() {
            self.option(head, word)?;
        }
        self.finish(head, effect).map(Some)
    }

    /// Parses one option.
    fn option(&mut self, head: &str, word: &str) -> Result<(), String> {
        match word {
            "the" | "of" | "and" => {}
            "in" => self.select.direction = Some(Direction::In),
            "out" => self.select.direction = Some(Direction::Out),
            "rc" => self.select.transport = Some(Transport::Rc),
            "uc" => self.select.transport = Some(Transport::Uc),
            "ud" => self.select.transport = Some(Transport::Ud),
            "xrc" => self.select.transport = Some(Transport::Xrc),
            "qp" => {
                let qpn = self.next("a queue pair number such as 0x10011", words::number)?;
                let qpn = u32::try_from(qpn).ok().filter(|qpn| *qpn < 1 << 24);
                self.select.qp = Some(qpn.ok_or("queue pair numbers have 24 bits")?);
            }
            "peer" => {
                let address = self.next("an IP address", |word| word.parse().ok())?;
                self.select.peer = Some(address);
            }
            "at" => self.window.at = Some(self.next("a time such as 2s", words::time)?),
            "for" => self.window.lasts = Some(self.next("a time such as 2s", words::time)?),
            "after" => {
                self.window.after = self.next("a number of packets", words::number)?;
                self.words.next_if(|word| word.starts_with("packet"));
            }
            "times" => self.window.times = Some(self.next("a number", words::number)?),
            "seed" => self.set_seed()?,
            "burst" if matches!(head, "loss" | "drop") => {
                let length = self.next("a number of packets", words::number)?;
                self.burst = Some(length.max(1));
            }
            "gilbert" if matches!(head, "loss" | "drop") => self.gilbert()?,
            "by" if head == "reorder" => {
                self.by = Some(
                    self.next("a number of packets", words::number)?
                        .clamp(1, 1000),
                );
            }
            "jitter" if head == "delay" => {
                self.jitter = self.next("a time such as 1ms", words::time)?;
            }
            "queue" if head == "rate" => {
                self.queue = Some(self.next("a time such as 50ms", words::time)?);
            }
            "undetected" if head == "corrupt" => self.undetected = true,
            "every" => {
                let step = self.next("an ordinal such as 10th", words::ordinal)?;
                self.set_trigger(word, Trigger::Every(step))?;
            }
            _ => return self.value(head, word),
        }
        Ok(())
    }

    /// Parses an option that is a value: a share, an ordinal, a time or a kind of packets.
    fn value(&mut self, head: &str, word: &str) -> Result<(), String> {
        if let Some(share) = words::share(word) {
            return self.set_trigger(word, Trigger::Chance(share));
        }
        if let Some(first) = words::ordinal(word) {
            let last = match self.words.next_if_eq(&"to") {
                Some(_) => self.next("an ordinal such as 5th", words::ordinal)?,
                None => first,
            };
            if last < first {
                return Err(format!(
                    "the {} comes before the {}; exchange them",
                    words::with_ending(last),
                    words::with_ending(first)
                ));
            }
            return self.set_trigger(word, Trigger::Nth { first, last });
        }
        let takes_time = matches!(head, "delay" | "slow");
        if let Some(time) = words::time(word).filter(|_| takes_time) {
            self.time = Some(time);
            return Ok(());
        }
        if let Some(kind) = PacketKind::parse(word) {
            self.select.kind = kind;
            return Ok(());
        }
        let more = match head {
            "loss" | "drop" => "burst N, gilbert P% R%, ",
            "reorder" => "by N, ",
            "delay" => "a time such as 2ms, jitter TIME, ",
            "slow" => "a time such as 5ms, ",
            "rate" => "queue TIME, ",
            "corrupt" => "undetected, ",
            _ => "",
        };
        Err(format!(
            "unknown word `{word}`; after `{head}` come {more}{OPTIONS}"
        ))
    }

    fn finish(mut self, head: &str, effect: Effect) -> Result<Rule, String> {
        let effect = match effect {
            Effect::Corrupt { .. } => Effect::Corrupt {
                undetected: self.undetected,
            },
            Effect::Reorder { .. } => Effect::Reorder {
                by: self.by.unwrap_or(1) as u32,
            },
            Effect::Delay { .. } => Effect::Delay {
                ns: self
                    .time
                    .ok_or(format!("the time is missing; for example `{head} 2ms`"))?,
                jitter: self.jitter,
            },
            Effect::Rate { bits, queue } => Effect::Rate {
                bits,
                queue: self.queue.unwrap_or(queue),
            },
            other => other,
        };
        self.apply_burst()?;
        self.check_kind(head, effect)?;
        let needs_trigger = matches!(
            head,
            "loss" | "duplicate" | "corrupt" | "reorder" | "rnr" | "nak"
        ) || head == "drop" && self.select.kind == PacketKind::Packet;
        if needs_trigger && self.trigger.is_none() {
            return Err(format!(
                "which packets? Add a share (`{head} 1%`), a number (`{head} the 3rd ACK`) or \
                 100% for all"
            ));
        }
        Ok(Rule {
            text: self.text.into(),
            select: self.select,
            trigger: self.trigger.unwrap_or(Trigger::Always),
            window: self.window,
            effect,
        })
    }

    /// Turns a mean length of bursts into the model of Gilbert and Elliott with the same loss.
    fn apply_burst(&mut self) -> Result<(), String> {
        let Some(length) = self.burst else {
            return Ok(());
        };
        let Some(Trigger::Chance(share)) = self.trigger else {
            return Err("`burst` needs the loss as a share, as in `loss 1% burst 4`".into());
        };
        let (loss, leave) = (share.share(), 1.0 / length as f64);
        if loss >= 1.0 {
            return Err("with a loss of 100% there are no bursts; remove `burst`".into());
        }
        self.trigger = Some(Trigger::Gilbert {
            enter: Chance::new(loss * leave / (1.0 - loss)),
            leave: Chance::new(leave),
            bad: Chance::CERTAIN,
            good: Chance::NEVER,
        });
        Ok(())
    }

    /// Checks that the fault exists for this kind of packets.
    fn check_kind(&mut self, head: &str, effect: Effect) -> Result<(), String> {
        let is_cm = self.select.kind.is_cm();
        match effect {
            Effect::Reject => {
                let can =
                    [CmMessage::Req, CmMessage::Rep].map(|message| PacketKind::Cm(Some(message)));
                if self.select.kind == PacketKind::Packet {
                    self.select.kind = can[0];
                }
                if !can.contains(&self.select.kind) {
                    return Err("only REQ and REP can be rejected".into());
                }
            }
            Effect::Answer(_) => match self.select.kind {
                PacketKind::Packet => self.select.kind = PacketKind::Ack,
                PacketKind::Ack | PacketKind::Response | PacketKind::Operation(_) => {}
                _ => return Err("only an ACK or a RESPONSE can be replaced by a NAK".into()),
            },
            Effect::Event(EventKind::QpError | EventKind::CqOverrun) => {
                if self.select.direction == Some(Direction::Out) {
                    return Err(
                        "this event follows a received packet; replace `out` by `in`".into(),
                    );
                }
                self.select.direction = Some(Direction::In);
                if self.window.at.is_some() {
                    return Err(
                        "this event follows a packet; replace `at TIME` by `after N packets`"
                            .into(),
                    );
                }
            }
            Effect::Drop | Effect::Duplicate | Effect::Delay { .. } => return Ok(()),
            _ => {}
        }
        if is_cm && effect != Effect::Reject {
            return Err(format!(
                "`{head}` does not exist for messages of the connection manager; use drop, \
                 duplicate, delay or reject"
            ));
        }
        Ok(())
    }

    /// Parses `fail VERB [N | every | the Nth [to Mth]] ERRNO`.
    fn fail(mut self) -> Result<Rule, String> {
        let verb = self
            .words
            .next()
            .ok_or("the verb is missing; for example `fail ibv_reg_mr 2 ENOMEM`")?;
        let known = |name: &str| VERBS.iter().find(|(verb, _)| *verb == name);
        // `fail the 2nd ibv_reg_mr ENOMEM` means the same.
        let mut verb = verb;
        let mut errno = None;
        let mut found = known(verb);
        while let Some(word) = match found {
            Some(_) => self.words.next(),
            None => Some(verb),
        } {
            if found.is_none() {
                found = known(word);
                if found.is_none()
                    && !matches!(word, "the" | "every")
                    && words::ordinal(word).is_none()
                {
                    let near = similar(word);
                    return Err(format!(
                        "`{word}` is not a verb that can fail; known are {near}"
                    ));
                }
                if found.is_some() {
                    continue;
                }
                verb = self.words.next().ok_or("the verb is missing")?;
            }
            if let Some(number) = errno_number(word) {
                errno = Some(number);
            } else if let Some(first) = words::ordinal(word) {
                let last = match self.words.next_if_eq(&"to") {
                    Some(_) => self.next("an ordinal such as 5th", words::ordinal)?,
                    None => first,
                };
                self.set_trigger(word, Trigger::Nth { first, last })?;
            } else if let Some(number) = words::number(word).filter(|number| *number > 0) {
                self.set_trigger(
                    word,
                    Trigger::Nth {
                        first: number,
                        last: number,
                    },
                )?;
            } else if word == "seed" {
                self.set_seed()?;
            } else if !matches!(word, "the" | "every") {
                return Err(format!(
                    "`{word}` is neither the number of a call nor an error such as ENOMEM, EINVAL or \
                     EAGAIN"
                ));
            }
        }
        let (verb, _) = found.ok_or("the verb is missing")?;
        let errno = errno.ok_or(format!(
            "the error is missing; for example `fail {verb} 1 ENOMEM`"
        ))?;
        Ok(Rule {
            text: self.text.into(),
            select: self.select,
            trigger: self.trigger.unwrap_or(Trigger::Always),
            window: self.window,
            effect: Effect::Fail { verb, errno },
        })
    }

    fn nak(&mut self) -> Result<Answer, String> {
        self.next("one of access, invalid, operation", |word| {
            Some(match word {
                "access" => Answer::Access,
                "invalid" => Answer::Invalid,
                "operation" => Answer::Operation,
                _ => return None,
            })
        })
    }

    fn event(&mut self, word: &str, kind: EventKind) -> Result<Effect, String> {
        self.expect(word)?;
        Ok(Effect::Event(kind))
    }

    fn gilbert(&mut self) -> Result<(), String> {
        let enter = self.next("the share of packets that begin a bad time", words::share)?;
        let leave = self.next("the share of packets that end a bad time", words::share)?;
        let next = |parser: &mut Parser<'_>| {
            let share = parser.words.peek().and_then(|word| words::share(word));
            share.inspect(|_| {
                parser.words.next();
            })
        };
        let bad = next(self).unwrap_or(Chance::CERTAIN);
        let good = next(self).unwrap_or(Chance::NEVER);
        let trigger = Trigger::Gilbert {
            enter,
            leave,
            bad,
            good,
        };
        self.set_trigger("gilbert", trigger)
    }

    fn set_trigger(&mut self, word: &str, trigger: Trigger) -> Result<(), String> {
        match self.trigger.replace(trigger) {
            None => Ok(()),
            Some(_) => Err(format!(
                "`{word}` selects packets a second time; remove one of them"
            )),
        }
    }

    fn set_seed(&mut self) -> Result<(), String> {
        let seed = self.next("a number", words::number)?;
        match self.seed.replace(seed) {
            Some(before) if before != seed => {
                Err(format!("the seed is {before} already; give it once"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the value of the next word.
    fn next<T>(&mut self, what: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, String> {
        let word = self
            .words
            .next()
            .ok_or(format!("{what} is missing at the end"))?;
        parse(word).ok_or(format!("`{word}` is not {what}"))
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        self.next(&format!("the word `{wanted}`"), |word| {
            (word == wanted).then_some(())
        })
    }
}

/// Returns the verbs that begin like a word, or all.
fn similar(word: &str) -> String {
    let names = || VERBS.iter().map(|(verb, _)| *verb);
    let parts: Vec<&str> = word
        .split('_')
        .filter(|part| part.len() > 2 && !matches!(*part, "ibv" | "rdma"))
        .collect();
    let near: Vec<&str> = names()
        .filter(|verb| parts.iter().any(|part| verb.contains(part)))
        .collect();
    match near.is_empty() {
        true => names().collect::<Vec<_>>().join(", "),
        false => near.join(", "),
    }
}

#[cfg(test)]
mod tests;
