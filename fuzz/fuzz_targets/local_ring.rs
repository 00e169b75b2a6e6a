//! A hostile process writes anything into the shared memory of a channel, between any two steps
//! of ours. Checks that nothing panics, and that no read leaves the ring or the buffer.

#![no_main]

use core::sync::atomic::Ordering::Relaxed;

use ferroce_net::local::RingView;
use ferroce_net::local::ring::{HEADER, Reader, RingMemory, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(view) = RingView::for_tests() else {
        return;
    };
    let (mut writer, mut reader) = (Writer::new(view.clone()), Reader::new(view.clone()));
    let mut buffer = vec![0; 4096];
    for step in data.chunks_exact(9) {
        let number = u64::from_le_bytes(step[1..].try_into().expect("eight bytes"));
        let small = number as usize % RingView::CAPACITY;
        match step[0] % 10 {
            0 => view.tail().store(number, Relaxed),
            1 => view.head().store(number, Relaxed),
            2 => view.tail().store(reader.head() + small as u64, Relaxed),
            3 => view.head().store(writer.head() + small as u64, Relaxed),
            4 => view.copy_in(small.min(RingView::CAPACITY - 9), step),
            5 => {
                // A return to the start of the ring, or nearly one.
                let lap = RingView::CAPACITY as u64;
                let start = (reader.head() / lap).wrapping_add(2).wrapping_mul(lap);
                view.tail().store(start.wrapping_add(small as u64), Relaxed);
            }
            6 => _ = writer.shrink(),
            7 => drop(writer.write([step[0]; HEADER], &vec![step[0]; small])),
            _ => {
                if let Ok(Some((_, length))) = reader.read(&mut buffer) {
                    assert!(length <= buffer.len());
                }
            }
        }
    }
});
