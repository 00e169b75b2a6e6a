//! The weather: decides the fate of packets, one after the other.

pub(crate) mod streams;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use crate::counts::Counts;
use crate::fate::{Damage, Fate};
use crate::plan::{Effect, EventKind, Plan, Rule, Trigger};
use crate::random::{below, randomness};
use crate::selector::{Direction, Facts};

/// An event that a rule has caused.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Provoked {
    /// The queue pair moves to the error state.
    QpError(u32),
    /// The completion queue of the queue pair overflows.
    CqOverrun(u32),
    /// The limit event of all shared receive queues.
    SrqLimit,
    /// The port is down, or up again.
    Port {
        /// True if it is up again.
        up: bool,
    },
    /// The port has no GIDs, or has them again.
    Gids {
        /// True if they are there again.
        present: bool,
    },
    /// The device fails.
    DeviceFatal,
}

/// The part of a plan that applies to packets, or to messages of the connection manager.
#[derive(Debug)]
pub struct Weather {
    plan: Arc<Plan>,
    counts: Arc<dyn Counts>,
    /// True for messages of the connection manager.
    is_cm: bool,
    began: Option<u64>,
    states: Vec<State>,
    /// Numbers of the flows of each direction in the order of their first packet: queue pair
    /// numbers differ from run to run.
    flows: [BTreeMap<u32, u64>; 2],
    events: VecDeque<Provoked>,
}

/// The state of a rule.
#[derive(Debug, Default)]
struct State {
    /// Of each flow: number of packets, and whether the time is bad.
    flows: BTreeMap<(Direction, u64), (u64, bool)>,
    hits: u64,
    /// Time of the first affected packet, if the rule begins with a packet.
    began: Option<u64>,
    /// Time at which the last packet of a direction goes on, or its line is free.
    free_at: [u64; 2],
    event: EventState,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum EventState {
    #[default]
    Due,
    /// It ends at this time.
    Lasts(u64),
    Over,
}

impl Weather {
    /// Creates the weather for packets.
    pub fn for_packets(plan: Arc<Plan>, counts: Arc<dyn Counts>) -> Weather {
        Weather::new(plan, counts, false)
    }

    /// Creates the weather for messages of the connection manager.
    pub fn for_connection_manager(plan: Arc<Plan>, counts: Arc<dyn Counts>) -> Weather {
        Weather::new(plan, counts, true)
    }

    fn new(plan: Arc<Plan>, counts: Arc<dyn Counts>, is_cm: bool) -> Weather {
        let states = plan.rules.iter().map(|_| State::default()).collect();
        Weather {
            plan,
            counts,
            is_cm,
            began: None,
            states,
            flows: Default::default(),
            events: VecDeque::new(),
        }
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Decides the fate of a packet from BTH to ICRC, or of a MAD of the connection manager.
    /// `judged` says that its sender has the same faults: then only rules for received packets
    /// apply.
    pub fn judge(
        &mut self,
        now: u64,
        direction: Direction,
        peer: IpAddr,
        bytes: &[u8],
        judged: bool,
    ) -> Fate {
        let began = *self.began.get_or_insert(now);
        let facts = match self.is_cm {
            true => Facts::of_mad(direction, peer, bytes),
            false => Facts::of_packet(direction, peer, bytes),
        };
        let flows = &mut self.flows[direction as usize];
        let next = flows.len() as u64;
        let flow = *flows.entry(facts.qpn).or_insert(next);
        let mut fate = Fate::PASS;
        for (index, rule) in self.plan.rules.iter().enumerate() {
            if matches!(rule.effect, Effect::Fail { .. })
                || judged && rule.select.direction.is_none()
                || !rule.select.selects(&facts)
            {
                continue;
            }
            let state = &mut self.states[index];
            if let Effect::Event(kind) = rule.effect {
                let due = self.counts.select(index) >= rule.window.after.max(1);
                // A sent packet has the number of the peer's queue pair.
                let is_of_qp = matches!(kind, EventKind::QpError | EventKind::CqOverrun);
                let due = due && (direction == Direction::In || !is_of_qp);
                if due && rule.window.at.is_none() && state.event == EventState::Due {
                    self.counts.hit(index);
                    begin_event(state, &mut self.events, rule, kind, now, facts.qpn);
                }
                let is_down = matches!(state.event, EventState::Lasts(end) if now < end);
                if kind == EventKind::PortDown && is_down {
                    fate.rules |= 1 << index;
                    fate.copies = 0;
                    return fate;
                }
                continue;
            }
            let random = randomness(self.plan.seed, index, direction, flow);
            let flow_key = (direction, flow);
            let Some(count) =
                state.affects(rule, index, &*self.counts, began, now, flow_key, random)
            else {
                continue;
            };
            let changed = match rule.effect {
                Effect::Drop => fate.lose(),
                Effect::Duplicate => {
                    fate.copies += 1;
                    true
                }
                Effect::Corrupt { undetected } => {
                    let place = random(1, count);
                    fate.damage = Some(Damage { place, undetected });
                    true
                }
                Effect::Delay { ns, jitter } => {
                    let range = jitter.min(ns);
                    let jitter = below(random(2, count), range + jitter + 1);
                    let due = fate.due.unwrap_or(now) + ns - range + jitter;
                    // Packets keep their order.
                    let free_at = &mut state.free_at[direction as usize];
                    *free_at = due.max(*free_at);
                    fate.due = Some(*free_at);
                    true
                }
                Effect::Reorder { by } => {
                    fate.behind = fate.behind.max(by);
                    true
                }
                Effect::Rate { bits, queue } => {
                    let free_at = &mut state.free_at[direction as usize];
                    let begin = fate.due.unwrap_or(now).max(*free_at);
                    match begin - now > queue {
                        true => fate.lose(),
                        false => {
                            *free_at = begin + facts.ip_len as u64 * 8_000_000_000 / bits;
                            fate.due = Some(*free_at);
                            false
                        }
                    }
                }
                Effect::BlackHole { bytes } => facts.ip_len > bytes && fate.lose(),
                Effect::Answer(answer) => {
                    let can = facts.is_positive_response();
                    fate.answer = fate.answer.or(can.then_some(answer));
                    can
                }
                Effect::Reject => {
                    fate.rejected = true;
                    fate.lose()
                }
                // `reset` is refused where packets have no connection.
                Effect::Reset | Effect::Event(_) | Effect::Fail { .. } => false,
            };
            if changed || matches!(rule.effect, Effect::Rate { .. }) {
                fate.rules |= 1 << index;
            }
            if changed {
                state.hits += 1;
                self.counts.hit(index);
            }
            if fate.is_lost() {
                break;
            }
        }
        fate
    }

    /// Returns the time of the next event: that of one that packets have caused is past.
    pub fn next_timeout(&self) -> Option<u64> {
        let began = self.began?;
        if !self.events.is_empty() {
            return Some(began);
        }
        let rules = self.plan.rules.iter().zip(&self.states);
        let times = rules.filter_map(|(rule, state)| match (rule.effect, state.event) {
            (Effect::Event(_), EventState::Lasts(end)) => Some(end),
            (Effect::Event(_), EventState::Due) if !self.is_cm => {
                rule.window.at.map(|at| began + at)
            }
            _ => None,
        });
        times.min()
    }

    /// Starts the clock of the plan, if no packet has done so.
    pub fn begin(&mut self, now: u64) {
        self.began.get_or_insert(now);
    }

    /// Begins and ends the events that are due.
    pub fn handle_timeout(&mut self, now: u64) {
        let began = *self.began.get_or_insert(now);
        for (index, rule) in self.plan.rules.iter().enumerate() {
            let Effect::Event(kind) = rule.effect else {
                continue;
            };
            let state = &mut self.states[index];
            match state.event {
                EventState::Due
                    if !self.is_cm && rule.window.at.is_some_and(|at| now >= began + at) =>
                {
                    self.counts.hit(index);
                    begin_event(state, &mut self.events, rule, kind, now, 0);
                }
                EventState::Lasts(end) if now >= end => {
                    state.event = EventState::Over;
                    self.events.extend(match kind {
                        EventKind::PortDown => Some(Provoked::Port { up: true }),
                        EventKind::GidRemoved => Some(Provoked::Gids { present: true }),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Provoked> {
        self.events.pop_front()
    }
}

impl Fate {
    /// Loses the packet, whatever earlier rules have decided.
    fn lose(&mut self) -> bool {
        self.copies = 0;
        self.rules = 0;
        true
    }
}

impl State {
    /// Returns the number of the packet in its flow, if the rule affects it.
    #[allow(clippy::too_many_arguments)] // the parts of a weather that the loop borrows
    fn affects(
        &mut self,
        rule: &Rule,
        index: usize,
        counts: &dyn Counts,
        began: u64,
        now: u64,
        flow: (Direction, u64),
        random: impl Fn(u64, u64) -> u64,
    ) -> Option<u64> {
        let window = &rule.window;
        if window.at.is_some_and(|at| now < began + at) {
            return None;
        }
        let number = counts.select(index);
        if number <= window.after || window.times.is_some_and(|times| self.hits >= times) {
            return None;
        }
        let begin = match window.at {
            Some(at) => began + at,
            None => *self.began.get_or_insert(now),
        };
        if window.lasts.is_some_and(|lasts| now >= begin + lasts) {
            return None;
        }
        let (count, is_bad) = self.flows.entry(flow).or_default();
        *count += 1;
        let affected = match rule.trigger {
            Trigger::Always => true,
            Trigger::Chance(chance) => chance.decide(random(0, *count)),
            Trigger::Gilbert {
                enter,
                leave,
                bad,
                good,
            } => {
                let change = if *is_bad { leave } else { enter };
                *is_bad ^= change.decide(random(3, *count));
                let loss = if *is_bad { bad } else { good };
                loss.decide(random(0, *count))
            }
            Trigger::Nth { first, last } => (first..=last).contains(&(number - window.after)),
            Trigger::Every(step) => (number - window.after).is_multiple_of(step),
        };
        affected.then_some(*count)
    }
}

fn begin_event(
    state: &mut State,
    events: &mut VecDeque<Provoked>,
    rule: &Rule,
    kind: EventKind,
    now: u64,
    qpn: u32,
) {
    state.event = match rule.window.lasts {
        Some(lasts) => EventState::Lasts(now + lasts),
        None if kind == EventKind::PortDown => EventState::Lasts(u64::MAX),
        None => EventState::Over,
    };
    events.push_back(match kind {
        EventKind::QpError => Provoked::QpError(qpn),
        EventKind::CqOverrun => Provoked::CqOverrun(qpn),
        EventKind::SrqLimit => Provoked::SrqLimit,
        EventKind::PortDown => Provoked::Port { up: false },
        EventKind::GidRemoved => Provoked::Gids { present: false },
        EventKind::DeviceFatal => Provoked::DeviceFatal,
    });
}

#[cfg(test)]
mod tests;
