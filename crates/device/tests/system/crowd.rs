//! Ten processes on one link at once.

use ferroce_device::transport::QpType;

use crate::support::{Puppet, V4, V6, on_loopback};

const PAIRS: usize = 5;
const SIZE: u32 = 200_000;

#[test]
fn ten_processes_transfer_at_once() {
    on_loopback("crowd::ten_processes_transfer_at_once", |_ferroced| {
        let mut pairs: Vec<[Puppet; 2]> = (0..PAIRS)
            .map(|number| {
                let gid_index = if number % 2 == 0 { V4 } else { V6 };
                let mut one = Puppet::start(QpType::Rc, gid_index);
                let mut other = Puppet::start(QpType::Rc, gid_index);
                one.connect(&other.introduction);
                other.connect(&one.introduction);
                one.expect(&format!("put {number} 0 {SIZE}"), "done");
                [one, other]
            })
            .collect();
        let slots: std::collections::BTreeSet<u32> = pairs
            .iter()
            .flatten()
            .map(|puppet| puppet.introduction.qpn >> 16)
            .collect();
        assert_eq!(slots.len(), 2 * PAIRS, "each has a slot of its own");
        for [one, _] in &mut pairs {
            one.actor.say(&format!("write 30 {SIZE}"));
        }
        for (number, [one, other]) in pairs.iter_mut().enumerate() {
            assert_eq!(one.actor.hear(), "done");
            other.expect(&format!("check {number} 0 {SIZE}"), "right");
        }
    });
}
