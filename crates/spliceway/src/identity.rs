//! Recognises sockets by their types, at compile time.
//!
//! A descriptor proves nothing, because a TLS stream has one too. This is the only file of the
//! crate that may contain `unsafe`. A safe cast (`Any`) would require a sized and `'static` stream
//! from every caller. tokio's functions, which this crate replaces, require neither.
#![allow(unsafe_code)]

use std::any::TypeId;
use std::pin::Pin;

use tokio::io::{AsyncRead, BufReader, BufStream, BufWriter, Join, Take};
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream, tcp, unix};
#[cfg(feature = "tokio-util")]
use tokio_util::either::Either;

use crate::as_socket;

use crate::kernel_tls::KernelTls;

/// A type without lifetime parameters, so that each `TypeId` represents exactly one type.
///
/// # Safety
/// The type must have no lifetime parameter. [`typeid`] erases lifetimes, so a cast would forge
/// one.
pub(crate) unsafe trait NoLifetimes: 'static {}

// SAFETY: these types have no lifetime parameter. A wrapper adds none to the type inside it.
unsafe impl NoLifetimes for TcpStream {}
// SAFETY: as above.
unsafe impl NoLifetimes for UnixStream {}
// SAFETY: as above.
unsafe impl NoLifetimes for KernelTls {}
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
// SAFETY: as above.
unsafe impl<S: NoLifetimes> NoLifetimes for Box<S> {}
// SAFETY: as above.
unsafe impl<S: NoLifetimes> NoLifetimes for Pin<Box<S>> {}
#[cfg(feature = "tokio-util")]
// SAFETY: as above.
unsafe impl<L: NoLifetimes, R: NoLifetimes> NoLifetimes for Either<L, R> {}

/// Returns `stream` as an `S`, if it is an `S`, a mutable reference to one, or a mutable reference
/// to such a reference.
///
/// The functions of this crate borrow streams that a caller may have borrowed already.
pub(crate) fn cast_ref<T: ?Sized, S: NoLifetimes>(stream: &T) -> Option<&S> {
    let id = typeid::of::<T>();
    if id == TypeId::of::<S>() {
        // SAFETY: T is S. The ids are equal, and S has no lifetime in which two types with the same
        // id could differ.
        Some(unsafe { &*std::ptr::from_ref(stream).cast::<S>() })
    } else if id == TypeId::of::<&'static mut S>() {
        // SAFETY: T is `&mut S` for some lifetime, which outlives the borrow `stream`. The result
        // lives no longer than that borrow.
        Some(unsafe { &**std::ptr::from_ref(stream).cast::<&S>() })
    } else if id == TypeId::of::<&'static mut &'static mut S>() {
        // SAFETY: as above, one reference deeper.
        Some(unsafe { &***std::ptr::from_ref(stream).cast::<&&S>() })
    } else {
        None
    }
}

/// Does the same as [`cast_ref`] for a mutable reference.
pub(crate) fn cast_mut<T: ?Sized, S: NoLifetimes>(stream: &mut T) -> Option<&mut S> {
    let id = typeid::of::<T>();
    if id == TypeId::of::<S>() {
        // SAFETY: as in `cast_ref`. The borrow is unique and is passed on.
        Some(unsafe { &mut *std::ptr::from_mut(stream).cast::<S>() })
    } else if id == TypeId::of::<&'static mut S>() {
        // SAFETY: as in `cast_ref`. The result reborrows through a unique borrow of the unique
        // reference.
        Some(unsafe { &mut **std::ptr::from_mut(stream).cast::<&mut S>() })
    } else if id == TypeId::of::<&'static mut &'static mut S>() {
        // SAFETY: as above, one reference deeper.
        Some(unsafe { &mut ***std::ptr::from_mut(stream).cast::<&mut &mut S>() })
    } else {
        None
    }
}

/// A type with one lifetime parameter. The implementor is its form with the lifetime `'static`.
///
/// # Safety
/// `For<'a>` must be the same type with the lifetime `'a`. It must have no other lifetime
/// parameter. It must be covariant in `'a`: a value with a longer lifetime may be used as a
/// `For<'a>`.
pub(crate) unsafe trait OneLifetime: 'static {
    type For<'a>: 'a;
}

/// Implements [`OneLifetime`] for types that borrow their socket or stream. The compiler checks
/// that each type is covariant: otherwise `_shortened` does not compile.
macro_rules! one_lifetime {
    ($($half:ident::$name:ident),+) => {$(
        // SAFETY: each type has one lifetime parameter, the lifetime of its borrow. It is
        // covariant, as `_shortened` proves.
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

one_lifetime!(
    tcp::ReadHalf,
    tcp::WriteHalf,
    unix::ReadHalf,
    unix::WriteHalf,
    as_socket::Spliceable
);

/// Returns `stream` as an `S` of some lifetime, if it is such an `S` or a mutable reference to one.
pub(crate) fn cast_borrowed<T: ?Sized, S: OneLifetime>(stream: &T) -> Option<&S::For<'_>> {
    let id = typeid::of::<T>();
    if id == TypeId::of::<S::For<'static>>() {
        // SAFETY: T is `S::For` for some lifetime, which outlives the borrow `stream`. It may be
        // used as an `S::For` with the lifetime of that borrow.
        Some(unsafe { &*std::ptr::from_ref(stream).cast::<S::For<'_>>() })
    } else if id == TypeId::of::<&'static mut S::For<'static>>() {
        // SAFETY: as above, one reference deeper.
        Some(unsafe { &**std::ptr::from_ref(stream).cast::<&S::For<'_>>() })
    } else {
        None
    }
}

/// A boxed reader joined with a socket's write half. Bytes to the socket are spliced, and the
/// reader can inspect the bytes from the socket.
type Watched<'reader, 'socket> = Join<Box<dyn AsyncRead + Send + Unpin + 'reader>, tcp::WriteHalf<'socket>>;

/// Returns the socket that `stream` writes to, if `stream` is such a pair or a mutable reference to
/// one.
pub(crate) fn cast_watched<T: ?Sized>(stream: &T) -> Option<&TcpStream> {
    let id = typeid::of::<T>();
    let pair: &Watched<'_, '_> = if id == TypeId::of::<Watched<'static, 'static>>() {
        // SAFETY: T is `Watched` for some lifetimes. The cast forges other lifetimes, which does no
        // harm. The box is not accessed, and the reference taken from the half lives no longer than
        // the borrow `stream`.
        unsafe { &*std::ptr::from_ref(stream).cast() }
    } else if id == TypeId::of::<&'static mut Watched<'static, 'static>>() {
        // SAFETY: as above, one reference deeper.
        unsafe { *std::ptr::from_ref(stream).cast::<&Watched<'_, '_>>() }
    } else {
        return None;
    };
    Some(pair.writer().as_ref())
}

/// The limit of a reader from `AsyncReadExt::take`: the number of bytes that may still be read from
/// it.
pub(crate) trait Limit {
    fn limit(&self) -> u64;
    fn set_limit(&mut self, limit: u64);
}

/// A reader with a limit, around a stream or a mutable reference to one.
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

/// Returns `stream` as a reader of an `S` with a limit, if it is such a reader or a mutable
/// reference to one.
pub(crate) fn cast_take_ref<T: ?Sized, S: NoLifetimes + AsyncRead + Unpin>(stream: &T) -> Option<&dyn Limited<S>> {
    if let Some(take) = cast_ref::<T, Take<S>>(stream) {
        return Some(take);
    }
    let id = typeid::of::<T>();
    if id == TypeId::of::<Take<&'static mut S>>() {
        // SAFETY: T is `Take<&mut S>` for some lifetime, which outlives the borrow `stream`. The
        // cast forges a shorter lifetime, which does no harm. The result is immediately hidden
        // behind the trait, and the trait cannot store a reference in it.
        Some(unsafe { &*std::ptr::from_ref(stream).cast::<Take<&mut S>>() })
    } else if id == TypeId::of::<&'static mut Take<&'static mut S>>() {
        // SAFETY: as above, one reference deeper.
        Some(unsafe { &**std::ptr::from_ref(stream).cast::<&Take<&mut S>>() })
    } else {
        None
    }
}

/// Does the same as [`cast_take_ref`] for a mutable reference.
pub(crate) fn cast_take_mut<T: ?Sized, S: NoLifetimes + AsyncRead + Unpin>(
    stream: &mut T,
) -> Option<&mut dyn Limited<S>> {
    let id = typeid::of::<T>();
    if id == TypeId::of::<Take<&'static mut S>>() {
        // SAFETY: as in `cast_take_ref`. The borrow is unique and is passed on.
        Some(unsafe { &mut *std::ptr::from_mut(stream).cast::<Take<&mut S>>() })
    } else if id == TypeId::of::<&'static mut Take<&'static mut S>>() {
        // SAFETY: as in `cast_take_ref`. The result reborrows through a unique borrow of the unique
        // reference.
        Some(unsafe { &mut **std::ptr::from_mut(stream).cast::<&mut Take<&mut S>>() })
    } else {
        cast_mut::<T, Take<S>>(stream).map(|take| take as &mut dyn Limited<S>)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::task::{Context, Poll};

    use super::*;
    use tokio::io::{AsyncReadExt, ReadBuf};
    use tokio::net::UnixStream;

    #[tokio::test]
    async fn a_socket_is_found_by_its_type_but_not_through_dyn() {
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
    fn a_limit_can_be_set_on_owned_and_borrowed_readers() {
        struct Wrapped;
        // SAFETY: the type has no lifetime parameters.
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

    /// `one_lifetime!` checks at compile time that a half may be used as a half with a shorter
    /// lifetime.
    #[tokio::test]
    #[cfg_attr(miri, ignore = "Miri does not support these sockets")]
    async fn a_borrowed_half_is_found_for_as_long_as_it_is_borrowed() {
        let (mut socket, _peer) = UnixStream::pair().unwrap();
        let (reader, mut writer) = socket.split();
        let found = cast_borrowed::<_, unix::ReadHalf<'static>>(&reader).unwrap();
        assert!(std::ptr::eq(found, &raw const reader));
        assert!(cast_borrowed::<_, unix::WriteHalf<'static>>(&&mut writer).is_some());
        assert!(cast_borrowed::<_, tcp::ReadHalf<'static>>(&reader).is_none());
    }

    #[tokio::test]
    #[cfg_attr(miri, ignore = "Miri does not support these sockets")]
    async fn the_socket_beside_a_boxed_reader_is_found() {
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
        // SAFETY: the type has no lifetime parameters.
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
