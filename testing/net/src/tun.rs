//! TUN devices: a program reads and writes IP packets. If TCP sends one large piece (GSO), the
//! kernel passes it on whole. A header describes how to cut it.
//!
//! Only this file calls `ioctl`, which needs unsafe code. The rest of the crate has no unsafe code.
#![expect(unsafe_code, reason = "TUNSETIFF and TUNSETOFFLOAD have no safe wrapper")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl, opcode};

/// Bytes of `struct virtio_net_hdr`, which precedes every packet.
pub(crate) const HEADER: usize = 10;

/// `struct ifreq`: a name of 16 bytes, then a union whose first field here is the flags.
type InterfaceRequest = [u8; 40];

const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
const TUNSETOFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);

const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

/// The receiver computes checksums (`TUN_F_CSUM`), and TCP over IPv4 arrives uncut (`TUN_F_TSO4`).
const OFFLOADS: usize = 0x01 | 0x02;

/// Makes the device `name` in the network namespace of the calling thread. The device disappears
/// when the file is closed. Reads and writes do not block.
pub(crate) fn open(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open("/dev/net/tun")?;
    let mut request: InterfaceRequest = [0; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    let flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    request[16..18].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which is 40 bytes long in the kernel.
    let made: Result<(), Errno> = unsafe { ioctl(&file, Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request)) };
    made?;
    // SAFETY: TUNSETOFFLOAD expects a number in place of a pointer.
    let offloads: Result<(), Errno> = unsafe { ioctl(&file, IntegerSetter::<TUNSETOFFLOAD>::new_usize(OFFLOADS)) };
    offloads?;
    Ok(file)
}
