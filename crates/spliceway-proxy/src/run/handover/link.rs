//! The socket between the old and the new process: frames of bounded length, with descriptors.
//!
//! ```text
//!   ┌────────────┬────────────┬─────────────────┬───────────────────┐
//!   │ JSON bytes │ data bytes │ JSON: a message │ data: any bytes   │   descriptors travel with
//!   │ u32        │ u32        │                 │                   │   the first byte
//!   └────────────┴────────────┴─────────────────┴───────────────────┘
//! ```
//!
//! Only the old process sends descriptors, so only it calls `sendmsg(2)`, and only the new process
//! calls `recvmsg(2)`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// The longest message. A session has at most two names of 255 bytes, and some numbers.
const JSON_MAX_BYTES: usize = 64 << 10;
/// The most data of one frame: the bytes in flight of two directions, each at most a pipe of the
/// largest size that a process without privileges may ask for, with room for larger pipes.
pub(super) const DATA_MAX_BYTES: usize = 8 << 20;
/// The descriptors of a session: its client and its target. The kernel allows 253.
pub(super) const DESCRIPTORS_MAX: usize = 2;
const HEAD_BYTES: usize = 8;

/// One end of the socket.
pub(super) struct Link(UnixStream);

/// A frame that has arrived.
pub(super) struct Frame<T> {
    pub(super) message: T,
    pub(super) data: Vec<u8>,
    /// The descriptors. Some are missing if this process may not have more.
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Why a frame was not sent.
#[derive(Debug)]
pub(super) enum NotSent {
    /// Nothing was sent. The next frame may be.
    Refused(io::Error),
    /// The other process is gone, or the socket is unusable.
    Broken,
}

impl NotSent {
    /// Returns whether the same frame may be sent later: the system has reached a limit.
    pub(super) fn is_temporary(&self) -> bool {
        matches!(self, Self::Refused(error) if error.raw_os_error().is_some())
    }
}

impl Link {
    pub(super) fn new(socket: StdUnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        UnixStream::from_std(socket).map(Self)
    }

    /// Leaves the socket open until this process has ended, which the other one waits for.
    pub(super) fn leave_open(self) {
        if let Ok(socket) = self.0.into_std() {
            let _ = socket.into_raw_fd();
        }
    }

    /// Sends a frame with descriptors. Not cancel safe.
    pub(super) async fn send(
        &mut self,
        message: &impl Serialize,
        data: &[&[u8]],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), NotSent> {
        let frame = encode(message, data).map_err(NotSent::Refused)?;
        let first = self
            .0
            .async_io(Interest::WRITABLE, || send_once(&self.0, &frame, descriptors));
        let sent = match first.await {
            Ok(sent) => sent,
            // The limits on descriptors in flight, and on memory.
            Err(error)
                if matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::TOOMANYREFS | Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
                ) =>
            {
                return Err(NotSent::Refused(error));
            }
            Err(_) => return Err(NotSent::Broken),
        };
        self.0.write_all(&frame[sent..]).await.map_err(|_| NotSent::Broken)
    }

    /// Receives a frame with its descriptors. Returns `None` at the end of the stream, or if the
    /// rest of a frame is missing. Not cancel safe.
    pub(super) async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<Frame<T>>> {
        let (mut head, mut descriptors) = ([0; HEAD_BYTES], Vec::new());
        let mut read = 0;
        while read < HEAD_BYTES {
            let part = &mut head[read..];
            let received = self
                .0
                .async_io(Interest::READABLE, || receive_once(&self.0, part, &mut descriptors));
            match received.await? {
                0 => return Ok(None),
                bytes => read += bytes,
            }
        }
        let (json, data) = self.body(head).await?.unzip();
        let (Some(json), Some(data)) = (json, data) else {
            return Ok(None);
        };
        Ok(Some(Frame {
            message: decode(&json)?,
            data,
            descriptors,
        }))
    }

    /// Sends a message without descriptors. Not cancel safe.
    pub(super) async fn send_message(&mut self, message: &impl Serialize) -> io::Result<()> {
        let frame = encode(message, &[])?;
        self.0.write_all(&frame).await
    }

    /// Receives a message without descriptors. Returns `None` like [`receive`](Self::receive). Not
    /// cancel safe.
    pub(super) async fn receive_message<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut head = [0; HEAD_BYTES];
        if !is_whole(self.0.read_exact(&mut head).await.map(drop))? {
            return Ok(None);
        }
        match self.body(head).await? {
            Some((json, _)) => decode(&json).map(Some),
            None => Ok(None),
        }
    }

    async fn body(&mut self, head: [u8; HEAD_BYTES]) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
        let [a, b, c, d, rest @ ..] = head;
        let (json, data) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(rest));
        let (json, data) = (json as usize, data as usize);
        check(json, data)?;
        let (mut json, mut data) = (vec![0; json], vec![0; data]);
        for part in [&mut json, &mut data] {
            if !is_whole(self.0.read_exact(part).await.map(drop))? {
                return Ok(None);
            }
        }
        Ok(Some((json, data)))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns `false` if the stream has ended, also by the death of the other process.
fn is_whole(read: io::Result<()>) -> io::Result<bool> {
    match read {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
        Err(error) => Err(error),
    }
}

fn check(json: usize, data: usize) -> io::Result<()> {
    if json > JSON_MAX_BYTES || data > DATA_MAX_BYTES {
        let why = format!("a message of {json} and {data} bytes is too long");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(())
}

pub(super) fn encode(message: &impl Serialize, data: &[&[u8]]) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(message)?;
    let length = data.iter().map(|part| part.len()).sum();
    check(json.len(), length)?;
    let mut frame = Vec::with_capacity(HEAD_BYTES + json.len() + length);
    for length in [json.len(), length] {
        frame.extend(u32::try_from(length).expect("below the limits").to_le_bytes());
    }
    frame.extend(json);
    data.iter().for_each(|part| frame.extend_from_slice(part));
    Ok(frame)
}

fn decode<T: DeserializeOwned>(json: &[u8]) -> io::Result<T> {
    serde_json::from_slice(json).map_err(Into::into)
}

fn send_once(socket: &UnixStream, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(
            control.push(SendAncillaryMessage::ScmRights(descriptors)),
            "there is room"
        );
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(frame)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map_err(Into::into),
        }
    }
}

fn receive_once(socket: &UnixStream, bytes: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut slices = [IoSliceMut::new(bytes)];
        match recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(0),
            received => break received?,
        }
    };
    // CTRUNC means that descriptors are missing, which the caller sees by their number.
    let _is_truncated = received.flags.contains(ReturnFlags::CTRUNC);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Link, Link) {
        let (one, other) = StdUnixStream::pair().unwrap();
        (Link::new(one).unwrap(), Link::new(other).unwrap())
    }

    #[tokio::test]
    async fn frames_keep_their_data_and_their_descriptors_apart() {
        let (mut old, mut new) = pair();
        let (near, far) = StdUnixStream::pair().unwrap();
        let data = vec![7; 3 << 20];
        let sending = async {
            for (index, descriptors) in [&[near.as_fd()][..], &[], &[near.as_fd(), far.as_fd()]]
                .iter()
                .enumerate()
            {
                old.send(&index, &[&data[..index], &data], descriptors).await.unwrap();
            }
            drop(old);
        };
        let receiving = async {
            for (index, count) in [1, 0, 2].into_iter().enumerate() {
                let frame = new.receive::<usize>().await.unwrap().unwrap();
                assert_eq!((frame.message, frame.descriptors.len()), (index, count));
                assert!(frame.data.len() == data.len() + index && frame.data.iter().all(|byte| *byte == 7));
            }
            assert!(new.receive::<usize>().await.unwrap().is_none());
        };
        tokio::join!(sending, receiving);
    }

    #[tokio::test]
    async fn a_frame_that_is_cut_or_too_long_is_never_a_message() {
        for (bytes, ends) in [
            (&b"\x04\0"[..], true),
            (b"\x04\0\0\0\0\0\0\0tru", true),
            (b"\xff\xff\xff\xff\0\0\0\0", false),
            (b"\x04\0\0\0\0\0\xff\xff", false),
            (b"\x04\0\0\0\0\0\0\0what", false),
        ] {
            for takes in [false, true] {
                let (mut one, mut other) = pair();
                one.0.write_all(bytes).await.unwrap();
                drop(one);
                let received = if takes {
                    let frame = other.receive::<bool>().await;
                    frame.map(|frame| frame.map(|frame| frame.message))
                } else {
                    other.receive_message::<bool>().await
                };
                match received {
                    Ok(None) => assert!(ends, "{bytes:?}"),
                    Err(error) => assert!(!ends, "{bytes:?}: {error}"),
                    Ok(Some(_)) => panic!("{bytes:?} is no message"),
                }
            }
        }
        let (mut one, _other) = pair();
        let long = "x".repeat(JSON_MAX_BYTES);
        assert!(matches!(one.send(&long, &[], &[]).await, Err(NotSent::Refused(_))));
    }
}
