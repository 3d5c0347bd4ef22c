//! Streams in which every byte depends on the stream and on its position. So a lost, repeated or
//! foreign byte is noticed.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A position in such a stream. Each peer keeps its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    seed: u64,
    at: u64,
}

/// Bytes per write or read: larger than any buffer of a relay.
const CHUNK: usize = 512 << 10;

impl Pattern {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, at: 0 }
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Returns the next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let start = (self.at % 8) as usize;
        let first = self.at / 8;
        let words = (start + count).div_ceil(8) as u64;
        let mut bytes = Vec::with_capacity(words as usize * 8);
        for word in first..first + words {
            bytes.extend_from_slice(&mix(self.seed ^ mix(word)).to_le_bytes());
        }
        self.at += count as u64;
        bytes.truncate(start + count);
        bytes.drain(..start);
        bytes
    }

    /// Moves back, because the last `count` bytes were not sent.
    pub(crate) fn unsend(&mut self, count: usize) {
        self.at -= count as u64;
    }

    /// Asserts that `got` are the next bytes.
    #[track_caller]
    pub(crate) fn check(&mut self, got: &[u8]) {
        let at = self.at;
        let wanted = self.take(got.len());
        if wanted != got {
            let off = wanted.iter().zip(got).position(|(a, b)| a != b).unwrap();
            panic!("stream {}: a wrong byte at {}", self.seed, at + off as u64);
        }
    }

    /// Writes the next `count` bytes.
    pub(crate) async fn send(&mut self, to: &mut (impl AsyncWrite + Unpin + ?Sized), count: u64) {
        let end = self.at + count;
        while self.at < end {
            let chunk = self.take(CHUNK.min((end - self.at) as usize));
            to.write_all(&chunk).await.unwrap();
        }
    }

    /// Reads and checks the next `count` bytes.
    pub(crate) async fn expect(&mut self, from: &mut (impl AsyncRead + Unpin + ?Sized), count: u64) {
        let end = self.at + count;
        let mut buf = vec![0; CHUNK.min(count as usize)];
        while self.at < end {
            let want = buf.len().min((end - self.at) as usize);
            match from.read(&mut buf[..want]).await.unwrap() {
                0 => panic!("stream {} ended at {} instead of {end}", self.seed, self.at),
                got => self.check(&buf[..got]),
            }
        }
    }

    /// Reads and checks the rest of the stream, which must end after `total` bytes.
    pub(crate) async fn expect_end(mut self, from: &mut (impl AsyncRead + Unpin + ?Sized), total: u64) {
        self.expect(from, total - self.at).await;
        let mut one = [0];
        assert_eq!(
            from.read(&mut one).await.unwrap(),
            0,
            "stream {} goes on after {total}",
            self.seed
        );
    }

    /// Reads and checks until the end of the stream or an error. Returns the error, if there is
    /// one.
    pub(crate) async fn expect_until_broken(
        &mut self,
        from: &mut (impl AsyncRead + Unpin + ?Sized),
    ) -> Option<std::io::Error> {
        let mut buf = vec![0; CHUNK];
        loop {
            match from.read(&mut buf).await {
                Ok(0) => return None,
                Ok(got) => self.check(&buf[..got]),
                Err(error) => return Some(error),
            }
        }
    }
}

/// A pattern for streams of gigabytes, for which making each byte would take longer than moving it.
/// It repeats a block whose length is a prime number. The block is larger than all buffers on the
/// way together, so lost or repeated bytes are still noticed.
#[derive(Clone)]
pub(crate) struct Loop {
    /// The block twice, so that any part of one period is contiguous.
    twice: std::sync::Arc<[u8]>,
    at: u64,
}

impl Loop {
    const PERIOD: usize = 16_777_259;

    pub(crate) fn new(seed: u64) -> Self {
        let once = Pattern::new(seed).take(Self::PERIOD);
        Self {
            twice: [&once[..], &once].concat().into(),
            at: 0,
        }
    }

    fn next(&mut self, count: usize) -> std::ops::Range<usize> {
        let start = (self.at % Self::PERIOD as u64) as usize;
        self.at += count as u64;
        start..start + count
    }

    /// Writes the next `count` bytes.
    pub(crate) async fn send(&mut self, to: &mut (impl AsyncWrite + Unpin + ?Sized), count: u64) {
        let end = self.at + count;
        while self.at < end {
            let chunk = self.next(CHUNK.min((end - self.at) as usize));
            to.write_all(&self.twice[chunk]).await.unwrap();
        }
    }

    /// Reads and checks the next `count` bytes.
    pub(crate) async fn expect(&mut self, from: &mut (impl AsyncRead + Unpin + ?Sized), count: u64) {
        let end = self.at + count;
        let mut buf = vec![0; CHUNK];
        while self.at < end {
            let want = buf.len().min((end - self.at) as usize);
            let got = from.read(&mut buf[..want]).await.unwrap();
            assert!(got > 0, "ended at {} instead of {end}", self.at);
            let expected = self.next(got);
            assert!(buf[..got] == self.twice[expected], "a wrong byte before {}", self.at);
        }
    }
}

/// splitmix64's finisher: every bit of the result depends on every bit of `x`.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A small random generator with a seed, so that a failure can be reproduced.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0) % bound
    }
}
