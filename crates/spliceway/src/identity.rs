//! Tells a socket from every other stream by its type, at compile time.
//!
//! By type and never by descriptor: a TLS stream has one too. This is the only file of the crate that may hold `unsafe`: a
//! safe cast (`Any`) would ask every caller for a sized and `'static` stream, and tokio's functions, whose place we take,
//! ask for neither.
#![allow(unsafe_code)]

use std::any::TypeId;

use tokio::io::{AsyncRead, BufReader, BufStream, BufWriter, Join, Take};
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream, tcp, unix};

/// A type without lifetime parameters, so that one `TypeId` is one type.
///
/// # Safety
/// The type must have no lifetime parameter: [`typeid`] erases them, and a cast would forge one.
pub(crate) unsafe trait NoLifetimes: 'static {}

// SAFETY: none of these has a lifetime parameter, nor has a buffer around one that has none.
unsafe impl NoLifetimes for TcpStream {}
// SAFETY: as above.
unsafe impl NoLifetimes for UnixStream {}
// SAFETY: as above.
unsafe impl NoLifetimes for tcp::OwnedReadHalf {}
// SAFETY: as above.
unsafe impl NoLifetimes for tcp::OwnedWriteHalf {}
// SAFETY: as above.
unsafe impl NoLifetimes for unix::OwnedReadHalf {}
// SAFETY: as above.
unsafe impl NoLifetimes for unix::OwnedWriteHalf {}
// SAFETY: as above.
unsafe impl NoLifetimes for pipe::Receiver {}
// SAFETY: as above.
unsafe impl NoLifetimes for pipe::Sender {}
// SAFETY: as above.
unsafe impl<R: NoLifetimes, W: NoLifetimes> NoLifetimes for Join<R, W> {}
// SAFETY: as above.
unsafe impl<S: NoLifetimes> NoLifetimes for Take<S> {}
// SAFETY: as above.
unsafe impl<S: NoLifetimes> NoLifetimes for BufReader<S> {}
// SAFETY: as above.
unsafe impl<S: NoLifetimes> NoLifetimes for BufWriter<S> {}
// SAFETY: as above.
unsafe impl<S: NoLifetimes> NoLifetimes for BufStream<S> {}

/// `stream` as an `S`, if it is one, or a mutable reference to one, or to such a reference: the
/// functions of this crate borrow what a caller may have borrowed already.
pub(crate) fn cast_ref<T: ?Sized, S: NoLifetimes>(stream: &T) -> Option<&S> {
    let id = typeid::of::<T>();
    if id == TypeId::of::<S>() {
        // SAFETY: T is S: the ids are equal, and S has no lifetimes in which two types of one id could differ.
        Some(unsafe { &*std::ptr::from_ref(stream).cast::<S>() })
    } else if id == TypeId::of::<&'static mut S>() {
        // SAFETY: T is `&mut S` for some lifetime, which outlives the borrow `stream`; the result lives no longer than that.
        Some(unsafe { &**std::ptr::from_ref(stream).cast::<&S>() })
    } else if id == TypeId::of::<&'static mut &'static mut S>() {
        // SAFETY: the same, a reference deeper.
        Some(unsafe { &***std::ptr::from_ref(stream).cast::<&&S>() })
    } else {
        None
    }
}

/// `stream` as an `S`, if it is one, or a mutable reference to one, or to such a reference: the
/// functions of this crate borrow what a caller may have borrowed already.
pub(crate) fn cast_mut<T: ?Sized, S: NoLifetimes>(stream: &mut T) -> Option<&mut S> {
    let id = typeid::of::<T>();
    if id == TypeId::of::<S>() {
        // SAFETY: as in `cast_ref`; the borrow is unique and is passed on.
        Some(unsafe { &mut *std::ptr::from_mut(stream).cast::<S>() })
    } else if id == TypeId::of::<&'static mut S>() {
        // SAFETY: as in `cast_ref`; the result reborrows through a unique borrow of the unique reference.
        Some(unsafe { &mut **std::ptr::from_mut(stream).cast::<&mut S>() })
    } else if id == TypeId::of::<&'static mut &'static mut S>() {
        // SAFETY: the same, a reference deeper.
        Some(unsafe { &mut ***std::ptr::from_mut(stream).cast::<&mut &mut S>() })
    } else {
        None
    }
}

/// A type with one lifetime parameter, named by its longest one.
///
/// # Safety
/// `For<'a>` must be the same type for another lifetime, have no lifetime parameter but this one, and be covariant in it: where it lives
/// longer than `'a`, it may be taken for `For<'a>`.
pub(crate) unsafe trait OneLifetime: 'static {
    type For<'a>: 'a;
}

/// Halves that borrow their socket. The compiler checks that each is covariant: `_shortened` compiles for no other type.
macro_rules! one_lifetime {
    ($($half:ident::$name:ident),+) => {$(
        // SAFETY: each half has one lifetime parameter, that of a shared reference to its socket. It is covariant: see below.
        unsafe impl OneLifetime for $half::$name<'static> {
            type For<'a> = $half::$name<'a>;
        }
        const _: () = {
            fn _shortened<'short, 'long: 'short>(half: $half::$name<'long>) -> $half::$name<'short> {
                half
            }
        };
    )+};
}

one_lifetime!(tcp::ReadHalf, tcp::WriteHalf, unix::ReadHalf, unix::WriteHalf);

/// `stream` as an `S` of some lifetime, if it is one or a mutable reference to one.
pub(crate) fn cast_borrowed<T: ?Sized, S: OneLifetime>(stream: &T) -> Option<&S::For<'_>> {
    let id = typeid::of::<T>();
    if id == TypeId::of::<S::For<'static>>() {
        // SAFETY: T is `S::For` some lifetime, which outlives the borrow `stream`, and may be taken for that of the borrow.
        Some(unsafe { &*std::ptr::from_ref(stream).cast::<S::For<'_>>() })
    } else if id == TypeId::of::<&'static mut S::For<'static>>() {
        // SAFETY: the same, a reference deeper.
        Some(unsafe { &**std::ptr::from_ref(stream).cast::<&S::For<'_>>() })
    } else {
        None
    }
}

/// A boxed reader joined with a socket's write half. Bytes to the socket are spliced, while the reader
/// can look at the bytes from it.
type Watched<'reader, 'socket> = Join<Box<dyn AsyncRead + Send + Unpin + 'reader>, tcp::WriteHalf<'socket>>;

/// The socket that `stream` writes to, if it is such a pair or a mutable reference to one.
pub(crate) fn cast_watched<T: ?Sized>(stream: &T) -> Option<&TcpStream> {
    let id = typeid::of::<T>();
    let pair: &Watched<'_, '_> = if id == TypeId::of::<Watched<'static, 'static>>() {
        // SAFETY: T is `Watched` for some lifetimes. That the cast forges others does no harm: the box is not touched, and what is
        // taken of the half lives no longer than the borrow `stream`.
        unsafe { &*std::ptr::from_ref(stream).cast() }
    } else if id == TypeId::of::<&'static mut Watched<'static, 'static>>() {
        // SAFETY: the same, a reference deeper.
        unsafe { *std::ptr::from_ref(stream).cast::<&Watched<'_, '_>>() }
    } else {
        return None;
    };
    Some(pair.writer().as_ref())
}

/// The limit of a reader that `AsyncReadExt::take` made: bytes it may still be read of.
pub(crate) trait Limit {
    fn limit(&self) -> u64;
    fn set_limit(&mut self, limit: u64);
}

/// Such a reader: of a stream, or of a mutable reference to one.
pub(crate) trait Limited<S>: Limit {
    fn inner(&self) -> &S;
    fn inner_mut(&mut self) -> &mut S;
}

impl<R: AsyncRead> Limit for Take<R> {
    fn limit(&self) -> u64 {
        self.limit()
    }

    fn set_limit(&mut self, limit: u64) {
        self.set_limit(limit);
    }
}

macro_rules! limited {
    ($($take:ty),+) => {$(
        impl<S: NoLifetimes + AsyncRead + Unpin> Limited<S> for $take {
            fn inner(&self) -> &S {
                self.get_ref()
            }

            fn inner_mut(&mut self) -> &mut S {
                self.get_mut()
            }
        }
    )+};
}

limited!(Take<S>, Take<&mut S>);

/// `stream` as a reader of an `S` with a limit, if it is one or a mutable reference to one.
pub(crate) fn cast_take_ref<T: ?Sized, S: NoLifetimes + AsyncRead + Unpin>(stream: &T) -> Option<&dyn Limited<S>> {
    if let Some(take) = cast_ref::<T, Take<S>>(stream) {
        return Some(take);
    }
    let id = typeid::of::<T>();
    if id == TypeId::of::<Take<&'static mut S>>() {
        // SAFETY: T is `Take<&mut S>` for some lifetime, which outlives the borrow `stream`. That the cast forges a shorter one does
        // no harm: the trait, behind which it is hidden at once, can put no reference there.
        Some(unsafe { &*std::ptr::from_ref(stream).cast::<Take<&mut S>>() })
    } else if id == TypeId::of::<&'static mut Take<&'static mut S>>() {
        // SAFETY: the same, a reference deeper.
        Some(unsafe { &**std::ptr::from_ref(stream).cast::<&Take<&mut S>>() })
    } else {
        None
    }
}

/// `stream` as a reader of an `S` with a limit, if it is one or a mutable reference to one.
pub(crate) fn cast_take_mut<T: ?Sized, S: NoLifetimes + AsyncRead + Unpin>(
    stream: &mut T,
) -> Option<&mut dyn Limited<S>> {
    let id = typeid::of::<T>();
    if id == TypeId::of::<Take<&'static mut S>>() {
        // SAFETY: as in `cast_take_ref`; the borrow is unique and is passed on.
        Some(unsafe { &mut *std::ptr::from_mut(stream).cast::<Take<&mut S>>() })
    } else if id == TypeId::of::<&'static mut Take<&'static mut S>>() {
        // SAFETY: as in `cast_take_ref`; the result reborrows through a unique borrow of the unique reference.
        Some(unsafe { &mut **std::ptr::from_mut(stream).cast::<&mut Take<&mut S>>() })
    } else {
        cast_mut::<T, Take<S>>(stream).map(|take| take as &mut dyn Limited<S>)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;
    use tokio::io::{AsyncReadExt, ReadBuf};
    use tokio::net::UnixStream;

    #[tokio::test]
    async fn a_socket_is_found_by_value_by_reference_and_in_a_buffer_but_not_behind_dyn_or_as_another() {
        let (mut socket, _peer) = UnixStream::pair().unwrap();
        assert!(cast_ref::<_, UnixStream>(&socket).is_some());
        assert!(cast_ref::<_, TcpStream>(&socket).is_none());
        assert!(cast_ref::<_, UnixStream>(&&mut socket).is_some());
        assert!(cast_mut::<_, UnixStream>(&mut &mut socket).is_some());
        assert!(cast_ref::<_, UnixStream>(&&mut &mut socket).is_some());
        assert!(cast_mut::<_, UnixStream>(&mut &mut &mut socket).is_some());
        let mut buffered = BufReader::new(socket);
        assert!(cast_ref::<_, BufReader<UnixStream>>(&&mut buffered).is_some());
        assert!(cast_ref::<_, UnixStream>(&buffered).is_none());
        let erased: &mut (dyn AsyncRead + Unpin) = &mut buffered;
        assert!(cast_mut::<_, BufReader<UnixStream>>(erased).is_none());
    }

    #[test]
    fn a_limit_is_told_to_the_reader_that_has_it_whatever_it_borrows() {
        struct Wrapped;
        // SAFETY: no lifetime parameters.
        unsafe impl NoLifetimes for Wrapped {}
        impl AsyncRead for Wrapped {
            fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                Poll::Pending
            }
        }
        fn halve<T>(stream: &mut T) -> Option<u64> {
            let limited = cast_take_mut::<T, Wrapped>(stream)?;
            limited.set_limit(limited.limit() / 2);
            cast_take_ref::<T, Wrapped>(stream).map(Limit::limit)
        }
        let mut owned = Wrapped.take(8);
        assert_eq!(
            (halve(&mut owned), halve(&mut &mut owned), owned.limit()),
            (Some(4), Some(2), 2)
        );
        let mut wrapped = Wrapped;
        let mut borrowed = (&mut wrapped).take(80);
        assert_eq!(
            (halve(&mut borrowed), halve(&mut &mut borrowed), borrowed.limit()),
            (Some(40), Some(20), 20)
        );
        assert_eq!(halve(&mut wrapped), None);
    }

    /// That a half may be taken for one of a shorter lifetime is checked at compile time, by `one_lifetime!`.
    #[tokio::test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    async fn a_borrowed_half_is_found_for_as_long_as_it_is_borrowed() {
        let (mut socket, _peer) = UnixStream::pair().unwrap();
        let (reader, mut writer) = socket.split();
        let found = cast_borrowed::<_, unix::ReadHalf<'static>>(&reader).unwrap();
        assert!(std::ptr::eq(found, &raw const reader));
        assert!(cast_borrowed::<_, unix::WriteHalf<'static>>(&&mut writer).is_some());
        assert!(cast_borrowed::<_, tcp::ReadHalf<'static>>(&reader).is_none());
    }

    #[tokio::test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    async fn the_socket_beside_a_reader_in_a_box_is_found_whatever_the_reader_borrows() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let port = socket.local_addr().unwrap();
        let bytes = [0; 3];
        let (_, writer) = socket.split();
        let reader: Box<dyn AsyncRead + Send + Unpin + '_> = Box::new(&bytes[..]);
        let mut pair = tokio::io::join(reader, writer);
        assert_eq!(cast_watched(&pair).unwrap().local_addr().unwrap(), port);
        assert_eq!(cast_watched(&&mut pair).unwrap().local_addr().unwrap(), port);
        let (reader, writer) = pair.into_inner();
        assert!(cast_watched(&reader).is_none() && cast_watched(&writer).is_none());
    }

    #[test]
    fn the_cast_reference_is_the_same_object() {
        struct Wrapped(u64);
        // SAFETY: no lifetime parameters.
        unsafe impl NoLifetimes for Wrapped {}
        let mut wrapped = Wrapped(0);
        cast_mut::<_, Wrapped>(&mut wrapped).unwrap().0 = 1;
        let mut reference = &mut wrapped;
        cast_mut::<_, Wrapped>(&mut reference).unwrap().0 = 2;
        assert_eq!(cast_ref::<_, Wrapped>(&reference).unwrap().0, 2);
        let mut deeper = &mut reference;
        cast_mut::<_, Wrapped>(&mut deeper).unwrap().0 += 1;
        assert_eq!(cast_ref::<_, Wrapped>(&deeper).unwrap().0, 3);
        assert_eq!(wrapped.0, 3);
    }
}
