//! TUN device packets, and how to lose single segments of a packet that the kernel has not cut.
//!
//! ```text
//!   10 bytes: virtio_net_hdr    20+: IPv4    20+: TCP    payload of up to 64 KiB
//!   flags gso_type hdr_len gso_size csum_start csum_offset
//! ```

use crate::tun::HEADER;

const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
/// A flag that can accompany the type: congestion was notified (`VIRTIO_NET_HDR_GSO_ECN`).
const GSO_ECN: u8 = 0x80;

const FIN_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;

/// A packet with its header, as read from the device.
pub(crate) type Packet = Vec<u8>;

/// Returns the number of segments that the packet becomes on a wire, and their total bytes without
/// link headers.
pub(crate) fn on_wire(packet: &[u8]) -> (usize, usize) {
    let bytes = packet.len() - HEADER;
    match Cut::of(packet) {
        Some(cut) => (cut.segments, bytes + (cut.segments - 1) * (cut.payload - HEADER)),
        None => (1, bytes),
    }
}

/// Removes the segments for which `is_lost` returns `true`. Returns one packet for each run of
/// segments that stay together.
pub(crate) fn lose(packet: Packet, mut is_lost: impl FnMut() -> bool) -> Vec<Packet> {
    let Some(cut) = Cut::of(&packet) else {
        return if is_lost() { Vec::new() } else { vec![packet] };
    };
    let lost: Vec<bool> = (0..cut.segments).map(|_| is_lost()).collect();
    if !lost.contains(&true) {
        return vec![packet];
    }
    let mut left = Vec::new();
    let mut first = 0;
    for run in lost.split_inclusive(|lost| *lost) {
        let kept = run.len() - usize::from(run.last() == Some(&true));
        if kept > 0 {
            left.push(cut.run(&packet, first, kept));
        }
        first += run.len();
    }
    left
}

/// How to cut a packet.
struct Cut {
    /// The payload of one segment.
    size: usize,
    segments: usize,
    /// Offset of the TCP header.
    tcp: usize,
    /// Offset of the payload.
    payload: usize,
}

impl Cut {
    /// Returns `None` for a packet that is a single segment, or is not TCP over IPv4.
    fn of(packet: &[u8]) -> Option<Self> {
        let size = usize::from(u16::from_ne_bytes([packet[4], packet[5]]));
        if packet[1] & !GSO_ECN != GSO_TCP_V4 || size == 0 {
            return None;
        }
        let tcp = HEADER + usize::from(packet[HEADER] & 0x0f) * 4;
        let payload = tcp + usize::from(packet[tcp + 12] >> 4) * 4;
        let segments = (packet.len() - payload).div_ceil(size);
        (segments > 1).then_some(Self {
            size,
            segments,
            tcp,
            payload,
        })
    }

    /// Returns a packet of `count` segments, starting at segment `first`.
    fn run(&self, whole: &[u8], first: usize, count: usize) -> Packet {
        let from = self.payload + first * self.size;
        let to = (from + count * self.size).min(whole.len());
        let mut packet = [&whole[..self.payload], &whole[from..to]].concat();
        if count == 1 {
            packet[1] = GSO_NONE;
            packet[4..6].fill(0);
        }
        let (ip, tcp) = (HEADER, self.tcp);
        let length = (packet.len() - ip) as u16;
        put(&mut packet, ip + 2, length);
        let id = get(&packet, ip + 4).wrapping_add(first as u16);
        put(&mut packet, ip + 4, id);
        put(&mut packet, ip + 10, 0);
        let sum = !sum(&packet[ip..tcp]);
        put(&mut packet, ip + 10, sum);
        let sequence = u32::from_be_bytes(packet[tcp + 4..tcp + 8].try_into().expect("4 bytes"));
        let sequence = sequence.wrapping_add((first * self.size) as u32);
        packet[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
        if first > 0 {
            packet[tcp + 13] &= !CWR;
        }
        if first + count < self.segments {
            packet[tcp + 13] &= !FIN_PSH;
        }
        // The kernel left the sum of the pseudo-header here. That sum includes the length.
        let pseudo = [
            &packet[ip + 12..ip + 20],
            &[0, 6],
            &((packet.len() - tcp) as u16).to_be_bytes(),
        ]
        .concat();
        let pseudo = self::sum(&pseudo);
        put(&mut packet, tcp + 16, pseudo);
        packet
    }
}

fn get(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

fn put(packet: &mut [u8], at: usize, value: u16) {
    packet[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns the sum of the Internet checksum (RFC 1071), not complemented.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a packet of `segments` full segments of 10 bytes and one segment of 5 bytes. It
    /// starts at sequence number 1,000 and has FIN.
    fn uncut(segments: u8) -> Packet {
        let mut packet = vec![0; HEADER + 40];
        packet[1] = GSO_TCP_V4;
        packet[4..6].copy_from_slice(&10_u16.to_ne_bytes());
        packet[HEADER] = 0x45;
        packet[HEADER + 20 + 4..HEADER + 20 + 8].copy_from_slice(&1_000_u32.to_be_bytes());
        packet[HEADER + 20 + 12] = 5 << 4;
        packet[HEADER + 20 + 13] = 0x10 | FIN_PSH;
        packet.extend((0..segments).flat_map(|segment| [segment; 10]));
        packet.extend([segments; 5]);
        packet
    }

    fn sequence(packet: &[u8]) -> u32 {
        u32::from_be_bytes(packet[HEADER + 24..HEADER + 28].try_into().unwrap())
    }

    #[test]
    fn a_packet_counts_the_headers_of_all_its_segments() {
        assert_eq!(on_wire(&uncut(3)), (4, 4 * 40 + 35));
        assert_eq!(on_wire(&[0; HEADER + 40]), (1, 40));
    }

    #[test]
    fn a_packet_without_its_lost_segments_is_what_tcp_would_have_received() {
        let mut lost = [false, true, false, false].into_iter();
        let left = lose(uncut(3), || lost.next().unwrap());
        assert_eq!(left.len(), 2);
        assert_eq!((sequence(&left[0]), sequence(&left[1])), (1_000, 1_020));
        assert_eq!(left[0][HEADER + 40..], [0; 10]);
        assert_eq!(left[1][HEADER + 40..], [[2; 10].as_slice(), &[3; 5]].concat());
        // A single segment is not cut. The first packet does not have FIN, and the last keeps it.
        assert_eq!((left[0][1], left[1][1]), (GSO_NONE, GSO_TCP_V4));
        assert_eq!((left[0][HEADER + 33] & 1, left[1][HEADER + 33] & 1), (0, 1));
        for packet in left {
            assert_eq!(sum(&packet[HEADER..HEADER + 20]), 0xffff);
            assert_eq!(usize::from(get(&packet, HEADER + 2)), packet.len() - HEADER);
        }
    }

    #[test]
    fn a_packet_stays_whole_without_loss_and_vanishes_if_all_is_lost() {
        assert_eq!(lose(uncut(3), || false), [uncut(3)]);
        assert!(lose(uncut(3), || true).is_empty());
        assert!(lose(vec![0; HEADER + 40], || true).is_empty());
    }
}
