//! Checks: every operation in several sizes, every byte compared.

use anyhow::{Result, ensure};
use ferroce_device::transport::SendOp;
use ferroce_endpoint::{Endpoint, Partner, pattern};

use super::Step;

/// Message sizes, from one packet to many.
const SIZES: [u32; 6] = [1, 100, 4096, 4097, 65_536, 1 << 20];
/// Offset at which received data is placed.
const INBOX: u64 = 2 << 20;
/// Offset of the end of the eight bytes that atomics change.
const WORD: u64 = 4 << 20;
const ADDITIONS: u64 = 1000;

/// Runs the client: sends, writes, reads and checks.
pub(super) fn client(end: &Endpoint, partner: &mut Partner) -> Result<()> {
    for size in SIZES {
        end.pages.put(0, &pattern(size, size))?;
        partner.expect(Step::Ready)?;
        end.post(1, SendOp::Send { imm: Some(size) }, 0, size)?;
        end.succeed(1)?;
        partner.expect(Step::Checked)?;
    }
    println!(
        "  SEND    {} sizes from 1 byte to 1 MiB, every byte correct",
        SIZES.len()
    );
    for size in SIZES {
        end.pages.put(0, &pattern(size + 1, size))?;
        end.post(2, end.write_to(INBOX), 0, size)?;
        end.succeed(1)?;
        partner.say(&Step::Ready)?;
        partner.expect(Step::Checked)?;
    }
    println!(
        "  WRITE   {} sizes from 1 byte to 1 MiB, every byte correct",
        SIZES.len()
    );
    for size in SIZES {
        partner.expect(Step::Ready)?;
        let (remote_addr, rkey) = end.remote(0);
        end.post(3, SendOp::Read { remote_addr, rkey }, INBOX, size)?;
        end.succeed(1)?;
        ensure!(
            end.pages.get(INBOX, size)? == pattern(size + 2, size),
            "a READ of {size} bytes returned wrong data"
        );
        partner.say(&Step::Checked)?;
    }
    println!(
        "  READ    {} sizes from 1 byte to 1 MiB, every byte correct",
        SIZES.len()
    );
    atomics(end)?;
    partner.say(&Step::Ready)?;
    partner.expect(Step::Checked)?;
    println!("  atomics {ADDITIONS} additions and a swap, each executed exactly once");
    Ok(())
}

fn atomics(end: &Endpoint) -> Result<()> {
    let (remote_addr, rkey) = end.remote(WORD - 8);
    for added in 0..ADDITIONS {
        let add = 3;
        end.post(
            4,
            SendOp::FetchAdd {
                remote_addr,
                rkey,
                add,
            },
            0,
            8,
        )?;
        end.succeed(1)?;
        let before = u64::from_ne_bytes(end.pages.get(0, 8)?.try_into().unwrap_or_default());
        ensure!(
            before == 3 * added,
            "addition {added} found {before} instead of {}",
            3 * added
        );
    }
    let (compare, swap) = (3 * ADDITIONS, 42);
    let op = SendOp::CompareSwap {
        remote_addr,
        rkey,
        compare,
        swap,
    };
    end.post(5, op, 0, 8)?;
    end.succeed(1)?;
    Ok(())
}

/// Runs the server: receives, checks, and provides data for READs.
pub(super) fn server(end: &Endpoint, partner: &mut Partner) -> Result<()> {
    for size in SIZES {
        end.receive(1, INBOX, size)?;
        partner.say(&Step::Ready)?;
        let wc = end.succeed(1)?[0];
        ensure!(
            wc.byte_len == size && wc.imm == size,
            "a SEND of {size} bytes arrived with {} bytes and immediate data {}",
            wc.byte_len,
            wc.imm
        );
        check(end, size, size)?;
        partner.say(&Step::Checked)?;
    }
    for size in SIZES {
        partner.expect(Step::Ready)?;
        check(end, size + 1, size)?;
        partner.say(&Step::Checked)?;
    }
    for size in SIZES {
        end.pages.put(0, &pattern(size + 2, size))?;
        partner.say(&Step::Ready)?;
        partner.expect(Step::Checked)?;
    }
    partner.expect(Step::Ready)?;
    let word = end.pages.get(WORD - 8, 8)?;
    ensure!(
        word == 42u64.to_ne_bytes(),
        "the compare-and-swap left {word:?} instead of 42"
    );
    partner.say(&Step::Checked)
}

fn check(end: &Endpoint, seed: u32, size: u32) -> Result<()> {
    let right = end.pages.get(INBOX, size)? == pattern(seed, size);
    ensure!(right, "a message of {size} bytes arrived with wrong data");
    Ok(())
}
