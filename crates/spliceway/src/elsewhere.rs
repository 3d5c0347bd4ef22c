//! The names that the other modules use, for systems other than Linux. No stream is recognised
//! there, so everything is copied.

/// See `stream.rs`.
pub(crate) mod stream {
    use std::convert::Infallible;

    use tokio::net::TcpStream;

    pub(crate) fn plain<R: ?Sized, W: ?Sized>(_: &R, _: &W) -> Option<(Infallible, Infallible)> {
        None
    }

    pub(crate) fn tcp_sink<W: ?Sized>(_: &W) -> Option<&TcpStream> {
        None
    }

    /// Returns no limit, because a `Take` enforces its own limit.
    pub(crate) fn limit<R: ?Sized>(_: &mut R) -> u64 {
        u64::MAX
    }

    pub(crate) fn set_limit<R: ?Sized>(_: &mut R, _: u64) {}

    pub(crate) fn is_owed(_: &TcpStream) -> bool {
        false
    }
}

/// See `splice_path.rs`.
pub(crate) mod splice_path {
    use std::convert::Infallible;
    use std::io;
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use spliceway_core::Counts;

    use crate::direction::OnRead;
    use crate::options::{Begin, Options};
    use crate::outcome::{DirectionEnd, Failure};

    #[derive(Debug)]
    pub(crate) enum SplicePath {}

    impl SplicePath {
        pub(crate) fn new(source: Infallible, _: Infallible, _: Bytes, _: u64, _: Begin, _: &Options, _: bool) -> Self {
            match source {}
        }

        pub(crate) fn poll<R: ?Sized, W: ?Sized>(
            &mut self,
            _: &mut Context<'_>,
            _: &mut R,
            _: &mut W,
            _: Option<&mut OnRead>,
            _: &Counts,
        ) -> Poll<Result<DirectionEnd, Failure>> {
            match *self {}
        }

        pub(crate) fn finish(&mut self, _: u64) {
            match *self {}
        }

        pub(crate) fn remaining(&self) -> u64 {
            match *self {}
        }

        pub(crate) fn set_limit(&mut self, _: u64) {
            match *self {}
        }

        pub(crate) fn is_inside_read(&self) -> bool {
            match *self {}
        }

        pub(crate) fn in_flight(&self) -> usize {
            match *self {}
        }

        pub(crate) fn take_in_flight(&mut self) -> io::Result<Bytes> {
            match *self {}
        }
    }
}
