//! Sequences of verbs calls from arbitrary bytes: from seeds here, from the fuzzer in `fuzz/`.
//!
//! Most calls name live objects and valid attributes, so that sequences get far. The model
//! knows the live objects and their users. Where the rule is simple the model knows the
//! result of a call; elsewhere it knows a set of possible results. Also checked: guard bytes
//! around structures stay unchanged, a work request completes at most once, and in the end
//! all objects can be destroyed in the right order.

mod completion;
mod guard;
mod input;
mod memory;
mod queues;
mod states;
mod work;

use core::ffi::c_int;
use std::collections::{BTreeMap, BTreeSet};

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use guard::{Arena, zeros};
use input::Input;

/// Maximum number of objects of a kind.
const MOST: usize = 6;

/// Counts of the results of each call, and of completions.
pub(crate) type Tally = BTreeMap<String, usize>;

/// Runs a sequence and returns the counts. A failure prints `name`.
pub(crate) fn play(context: *mut ibv_context, data: &[u8], name: &str) -> Tally {
    let mut world = World::new(context, name);
    let mut input = Input(data);
    if input.one_in(2) {
        world.furnish(&mut input);
    }
    while !input.is_empty() {
        world.step(&mut input);
    }
    world.finish();
    core::mem::take(&mut world.tally)
}

/// The calls of a sequence, which a failure prints.
struct Trace {
    name: String,
    calls: Vec<String>,
    aloud: bool,
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the calls of {}:", self.name);
            for call in &self.calls {
                eprintln!("    {call}");
            }
        }
    }
}

/// The live objects, by their pointers.
struct World {
    context: *mut ibv_context,
    arena: Arena,
    /// Local addresses: index and GID.
    gids: Vec<(u8, ibv_gid)>,
    pds: Vec<*mut ibv_pd>,
    mrs: Vec<memory::Mr>,
    mws: Vec<memory::Mw>,
    ahs: Vec<memory::Ah>,
    channels: Vec<*mut ibv_comp_channel>,
    cqs: Vec<completion::Cq>,
    srqs: Vec<queues::Srq>,
    qps: Vec<queues::Qp>,
    /// Work requests that have not completed, and the next `wr_id`.
    outstanding: BTreeSet<u64>,
    next_wr: u64,
    /// True if a packet may be in flight.
    traffic: bool,
    tally: Tally,
    trace: Trace,
}

impl World {
    fn new(context: *mut ibv_context, name: &str) -> World {
        let mut gids = Vec::new();
        for index in 0..4 {
            let mut gid: ibv_gid = zeros();
            // SAFETY: the context is open, and all fields of the union are bytes.
            unsafe {
                if ibv_query_gid(context, 1, index, &mut gid) == 0 && gid.raw != [0; 16] {
                    gids.push((index as u8, gid));
                }
            }
        }
        assert!(!gids.is_empty(), "the device has no address");
        nonblocking(async_fd(context));
        World {
            context,
            arena: Arena::new(),
            gids,
            pds: Vec::new(),
            mrs: Vec::new(),
            mws: Vec::new(),
            ahs: Vec::new(),
            channels: Vec::new(),
            cqs: Vec::new(),
            srqs: Vec::new(),
            qps: Vec::new(),
            outstanding: BTreeSet::new(),
            next_wr: 1,
            traffic: false,
            tally: Tally::new(),
            trace: Trace {
                name: name.into(),
                calls: Vec::new(),
                aloud: std::env::var_os("FERROCE_CALLS").is_some(),
            },
        }
    }

    /// Creates the objects that programs begin with: two connected queue pairs.
    fn furnish(&mut self, input: &mut Input<'_>) {
        let good = &mut Input(&[]);
        self.alloc_pd();
        self.create_channel();
        self.create_cq(good);
        self.reg_mr(good);
        self.create_ah(good);
        let kind = input.pick(&[IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD]);
        self.create_qp_of(kind, good);
        self.create_qp_of(kind, good);
        self.connect(&mut Input(&[0, 1]));
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(48) {
            0 | 1 => self.alloc_pd(),
            2 => self.dealloc_pd(input),
            3..=5 => self.reg_mr(input),
            6 => self.rereg_mr(input),
            7 => self.dereg_mr(input),
            8 => self.alloc_mw(input),
            9 => self.dealloc_mw(input),
            10 => self.bind_mw(input),
            11 => self.create_ah(input),
            12 => self.destroy_ah(input),
            13 => self.create_channel(),
            14 => self.destroy_channel(input),
            15 | 16 => self.create_cq(input),
            17 => self.resize_cq(input),
            18 => self.destroy_cq(input),
            19 => self.events(input),
            20 | 21 => self.poll(input),
            22 => self.create_srq(input),
            23 => self.modify_srq(input),
            24 => self.destroy_srq(input),
            25 => self.post_srq_recv(input),
            26 | 27 => self.create_qp(input),
            28 => self.destroy_qp(input),
            29..=32 => self.modify_qp(input),
            33 => self.multicast(input),
            34 => self.nothing(input),
            35..=38 => self.post_recv(input),
            39 => self.connect(input),
            _ => self.post_send(input),
        }
    }

    /// Records a call before it is made.
    fn say(&mut self, call: String) {
        if self.trace.aloud {
            eprintln!("{}: {call}", self.trace.name);
        }
        self.trace.calls.push(call);
    }

    /// Records the result of a call, which must be one of these.
    #[track_caller]
    fn check(&mut self, got: c_int, may: &[c_int]) {
        let call = self.trace.calls.last_mut().expect("a call");
        let verb = call.split(' ').next().unwrap_or_default();
        *self.tally.entry(format!("{verb} {got}")).or_default() += 1;
        call.push_str(&format!(" -> {got}"));
        assert!(may.contains(&got), "{call}, expected {may:?}");
    }

    /// Records the result of a call that creates an object: 0 or an errno.
    #[track_caller]
    fn check_made<T>(&mut self, object: *mut T, may: &[c_int]) -> bool {
        let got = match object.is_null() {
            true => std::io::Error::last_os_error().raw_os_error().unwrap_or(-1),
            false => 0,
        };
        self.check(got, may);
        got == 0
    }

    /// Returns a protection domain, or NULL.
    fn some_pd(&mut self, input: &mut Input<'_>) -> *mut ibv_pd {
        match input.index(&self.pds) {
            Some(at) if !input.one_in(24) => self.pds[at],
            _ => core::ptr::null_mut(),
        }
    }

    /// Calls functions with NULL.
    fn nothing(&mut self, input: &mut Input<'_>) {
        use core::ptr::null_mut;
        let which = input.below(10);
        self.say(format!("NULL number {which}"));
        // SAFETY: all of these functions check for NULL.
        let got = unsafe {
            match which {
                0 => ibv_dealloc_pd(null_mut()),
                1 => ibv_dereg_mr(null_mut()),
                2 => ibv_destroy_cq(null_mut()),
                3 => ibv_resize_cq(null_mut(), 1),
                4 => ibv_destroy_comp_channel(null_mut()),
                5 => ibv_destroy_qp(null_mut()),
                6 => ibv_modify_qp(null_mut(), null_mut(), 0),
                7 => ibv_destroy_srq(null_mut()),
                8 => ibv_destroy_ah(null_mut()),
                _ => ibv_query_qp(null_mut(), null_mut(), 0, null_mut()),
            }
        };
        self.check(got, &[libc::EINVAL]);
    }

    /// Destroys everything, users first.
    fn finish(&mut self) {
        self.say("the end".into());
        let nothing = &mut Input(&[]);
        while let Some(qp) = self.qps.first() {
            for group in qp.groups.clone() {
                self.detach(0, group);
            }
            self.destroy_qp(nothing);
        }
        while !self.mws.is_empty() {
            self.dealloc_mw(nothing);
        }
        for mr in &mut self.mrs {
            mr.windows = false; // they are gone
        }
        while !self.mrs.is_empty() {
            self.dereg_mr(nothing);
        }
        while !self.ahs.is_empty() {
            self.destroy_ah(nothing);
        }
        while !self.srqs.is_empty() {
            self.destroy_srq(nothing);
        }
        while !self.cqs.is_empty() {
            self.destroy_cq(nothing);
        }
        while !self.channels.is_empty() {
            self.destroy_channel(nothing);
        }
        while !self.pds.is_empty() {
            self.dealloc_pd(nothing);
        }
        self.async_events();
        self.arena.check();
    }
}

fn async_fd(context: *mut ibv_context) -> c_int {
    // SAFETY: the context is open.
    unsafe { (*context).async_fd }
}

/// Makes a descriptor non-blocking.
fn nonblocking(fd: c_int) {
    // SAFETY: the call accesses no memory.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
    }
}
