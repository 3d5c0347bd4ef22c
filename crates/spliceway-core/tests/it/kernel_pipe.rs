use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use crate::support::{self, Family, child, tcp_pair, write_apart};

const PAGE: usize = 4096;

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("pipe2")
}

fn splice(from: impl AsFd, to: impl AsFd, len: usize) -> Result<usize, Errno> {
    rustix::pipe::splice(from, None, to, None, len, SpliceFlags::NONBLOCK)
}

fn drain(reader: impl AsFd) -> usize {
    let mut buf = vec![0; 1 << 20];
    let mut drained = 0;
    while let Ok(read) = rustix::io::read(&reader, &mut buf) {
        drained += read;
    }
    drained
}

#[test]
fn a_full_pipe_gives_would_block_even_at_the_end_of_the_stream() {
    for family in Family::BOTH {
        let (near, far) = family.pair();
        let (reader, writer) = pipe();
        while rustix::io::write(&writer, &[0; PAGE]).is_ok() {}
        far.finish();
        support::await_ready(&near, PollFlags::RDHUP);

        assert_eq!(
            splice(&near, &writer, 1),
            Err(Errno::AGAIN),
            "{family:?}: no slot, no look"
        );
        assert_eq!(drain(&reader), 16 * PAGE);
        assert_eq!(splice(&near, &writer, 1), Ok(0), "{family:?}: the end");
    }
}

#[test]
fn sixteen_tiny_segments_fill_a_pipe_of_64_kib() {
    let (near, far) = tcp_pair();
    far.set_nonblocking(true).expect("FIONBIO");
    write_apart(&near, &[b'x'; 2_000], 100);
    support::await_queued(&far, 2_000);

    let (reader, writer) = pipe();
    assert_eq!(fcntl_getpipe_size(&writer), Ok(64 << 10));
    assert_eq!(splice(&far, &writer, 64 << 10), Ok(1_600));
    assert_eq!(splice(&far, &writer, 64 << 10), Err(Errno::AGAIN));
    assert_eq!(support::queued(&far), 400, "the source was not drained");
    assert_eq!(drain(&reader), 1_600);
}

#[test]
fn sixteen_segments_of_ethernet_size_fill_a_pipe_of_64_kib() {
    let (near, far) = tcp_pair();
    far.set_nonblocking(true).expect("FIONBIO");
    write_apart(&near, &[b'x'; 20 * 1_448], 1_448);
    support::await_queued(&far, 20 * 1_448);

    let (_reader, writer) = pipe();
    let mut filled = 0;
    while let Ok(more) = splice(&far, &writer, 64 << 10) {
        filled += more;
    }
    // The number is lower if memory is so fragmented that the sender gets single pages. A segment
    // that spans two pages then uses two slots.
    assert!((14 * 1_448..=16 * 1_448).contains(&filled), "{filled} bytes");
    assert!(support::queued(&far) > 0, "the source was not drained");
}

#[test]
fn a_partly_drained_slot_stays_in_use() {
    let (near, mut far) = tcp_pair();
    let (reader, writer) = pipe();
    while rustix::io::write(&writer, &[0; PAGE]).is_ok() {}
    far.write_all(b"more").expect("write");
    support::await_queued(&near, 4);

    let mut most_of_a_slot = [0; PAGE - 1];
    assert_eq!(rustix::io::read(&reader, &mut most_of_a_slot), Ok(PAGE - 1));
    assert_eq!(splice(&near, &writer, 4), Err(Errno::AGAIN));
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(1));
    assert_eq!(splice(&near, &writer, 4), Ok(4));
}

#[test]
fn a_pipe_holds_more_bytes_than_its_size() {
    let (near, far) = tcp_pair();
    for end in [&near, &far] {
        end.set_nonblocking(true).expect("FIONBIO");
    }
    let (reader, writer) = pipe();
    let mut filled = 0;
    support::await_that("more bytes than the size", || {
        support::write_until_full(&near, &[0; 256 << 10]);
        filled += splice(&far, &writer, 64 << 10).unwrap_or(0);
        filled > 64 << 10
    });
    assert_eq!(fcntl_getpipe_size(&writer), Ok(64 << 10));
    assert_eq!(drain(&reader), filled);
}

#[test]
fn one_call_moves_at_most_a_page_per_free_slot() {
    let (near, far) = tcp_pair();
    near.set_nonblocking(true).expect("FIONBIO");
    support::write_until_full(&near, &[0; 128 << 10]);
    support::await_that("two pages arrive", || support::queued(&far) >= 2 * PAGE);

    let (_reader, writer) = pipe();
    for _ in 0..15 {
        assert_eq!(rustix::io::write(&writer, &[0; PAGE]), Ok(PAGE));
    }
    assert_eq!(splice(&far, &writer, 64 << 10), Ok(PAGE), "one free slot");
}

#[test]
fn one_call_moves_more_pages_than_one_socket_buffer_has() {
    const MAX_SKB_FRAGS: usize = 17;
    let (near, far) = tcp_pair();
    near.set_nonblocking(true).expect("FIONBIO");
    let (_reader, writer) = pipe();
    fcntl_setpipe_size(&writer, 32 * PAGE).expect("F_SETPIPE_SZ");
    let wanted = (MAX_SKB_FRAGS + 1) * PAGE;
    support::await_that("so many pages are queued", || {
        support::write_until_full(&near, &[0; 16 << 10]);
        support::queued(&far) >= wanted
    });
    let moved = splice(&far, &writer, 32 * PAGE).expect("splice");
    assert!(moved > MAX_SKB_FRAGS * PAGE, "{moved} bytes");
}

#[test]
fn a_length_of_0_returns_0_with_bytes_queued() {
    for family in Family::BOTH {
        let (near, far) = family.pair();
        (&far).write_all(b"bytes").expect("write");
        support::await_ready(&near, PollFlags::IN);
        let (_reader, writer) = pipe();
        assert_eq!(splice(&near, &writer, 0), Ok(0), "{family:?}");
        assert_eq!(splice(&near, &writer, 5), Ok(5), "{family:?}");
    }
}

#[test]
fn a_length_above_isize_max_is_invalid_since_linux_6_8() {
    let (near, mut far) = tcp_pair();
    far.write_all(b"bytes").expect("write");
    support::await_queued(&near, 5);
    let (_reader, writer) = pipe();
    let outcome = splice(&near, &writer, isize::MAX as usize + 1);
    let version = support::linux_version();
    let want = if version >= (6, 8) { Err(Errno::INVAL) } else { Ok(5) };
    assert_eq!(outcome, want, "Linux {version:?}");
}

#[test]
fn f_setpipe_sz_rounds_up_to_a_power_of_two_pages() {
    let (_reader, writer) = pipe();
    for (asked, granted) in [
        (2_048, 4_096),
        (4_096, 4_096),
        (8_192, 8_192),
        (12_288, 16_384),
        (16_384, 16_384),
        (20_480, 32_768),
    ] {
        assert_eq!(fcntl_setpipe_size(&writer, asked), Ok(granted), "asked for {asked}");
        assert_eq!(fcntl_getpipe_size(&writer), Ok(granted), "asked for {asked}");
    }
}

#[test]
fn f_setpipe_sz_refuses_to_shrink_below_the_content() {
    let (_reader, writer) = pipe();
    for _ in 0..3 {
        assert_eq!(rustix::io::write(&writer, &[0; PAGE]), Ok(PAGE));
    }
    assert_eq!(fcntl_setpipe_size(&writer, 2 * PAGE), Err(Errno::BUSY));
    assert_eq!(fcntl_setpipe_size(&writer, 4 * PAGE), Ok(4 * PAGE));
}

#[test]
fn splice_f_nonblock_applies_to_a_pipe_without_o_nonblock() {
    let (near, mut far) = tcp_pair();
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("pipe2");
    assert_eq!(splice(&reader, &near, 1), Err(Errno::AGAIN), "empty, writing leg");

    far.write_all(b"more").expect("write");
    support::await_queued(&near, 4);
    for _ in 0..16 {
        assert_eq!(rustix::io::write(&writer, &[0; PAGE]), Ok(PAGE));
    }
    assert_eq!(splice(&near, &writer, 4), Err(Errno::AGAIN), "full, reading leg");
}

/// The soft limit counts a user's pages on the whole host, so this test runs as a separate user.
#[test]
fn past_the_soft_limit_new_pipes_have_two_slots_and_do_not_grow() {
    child::unprivileged(
        "kernel_pipe::past_the_soft_limit_new_pipes_have_two_slots_and_do_not_grow",
        || {
            let Some(held) = child::fill_the_soft_limit() else {
                return;
            };
            let (_reader, writer) = pipe();
            assert_eq!(fcntl_getpipe_size(&writer), Ok(2 * PAGE));
            assert_eq!(fcntl_setpipe_size(&writer, 16 * PAGE), Err(Errno::PERM));
            drop(held);
            let (_reader, born_later) = pipe();
            assert_eq!(fcntl_getpipe_size(&born_later), Ok(16 * PAGE));
            assert_eq!(fcntl_setpipe_size(&writer, 16 * PAGE), Ok(16 * PAGE), "it heals");
        },
    );
}
