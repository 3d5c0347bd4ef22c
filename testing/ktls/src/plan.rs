//! What happens in a session.

/// Which side of the handshake the relay is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The relay terminates the TLS of a client.
    Server,
    /// The relay originates TLS to a target.
    Client,
}

/// The cipher of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// `TLS_AES_128_GCM_SHA256`.
    Aes128,
    /// `TLS_AES_256_GCM_SHA384`.
    Aes256,
    /// `TLS_CHACHA20_POLY1305_SHA256`.
    ChaCha20,
}

/// A record of the TLS peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// Data, followed by zeros that the reader removes.
    Data {
        /// Bytes of data.
        bytes: usize,
        /// Zeros after them.
        padding: usize,
    },
    /// A record of data without data.
    Empty,
    /// New keys for what follows.
    KeyUpdate {
        /// Whether the other side must update its keys too.
        is_requested: bool,
    },
    /// A session ticket. Only servers send them.
    Ticket,
    /// The warning `user_canceled`, which OpenJDK sends, and which has no effect.
    Canceled,
}

/// How the TLS peer ends its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpEnd {
    /// `close_notify`. The connection stays open until the peer has read everything.
    Notify,
    /// `close_notify` and FIN.
    NotifyAndFin,
    /// FIN alone.
    Fin,
    /// Reset.
    Reset,
    /// A fatal alert.
    FatalAlert,
    /// A record that was changed on its way.
    BadTag,
    /// A header with a wrong version.
    BadVersion,
    /// A header with more bytes than a record may have.
    TooLong,
}

impl UpEnd {
    /// Returns whether the stream is complete, or seems so.
    #[must_use]
    pub fn is_regular(self) -> bool {
        matches!(self, Self::Notify | Self::NotifyAndFin | Self::Fin)
    }
}

/// How the plain peer ends its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownEnd {
    /// FIN.
    Fin,
    /// Reset.
    Reset,
}

/// Which peer waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Both send at once.
    Together,
    /// The plain peer sends after it has received the end of the upload.
    UpFirst,
    /// The TLS peer sends after it has received the end of the download.
    DownFirst,
}

/// What plans may contain.
#[derive(Clone, Copy, Debug)]
pub struct Kinds {
    /// Whether the TLS peer updates its keys.
    pub key_updates: bool,
}

/// A session.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number that the plan and its bytes come from.
    pub number: u64,
    /// The relay's side of the handshake.
    pub role: Role,
    /// The cipher.
    pub cipher: Cipher,
    /// `SO_SNDBUF` of the relay's sockets, if it is not the default: TLS, plain.
    pub send_buffers: [Option<usize>; 2],
    /// `SO_RCVBUF` of the peers' sockets, if it is not the default: TLS, plain.
    pub receive_buffers: [Option<usize>; 2],
    /// The most bytes of a read by a peer: TLS, plain.
    pub reads: [usize; 2],
    /// The most bytes of a write by the TLS peer. Records are split, or go out together.
    pub pieces: usize,
    /// The records of the TLS peer.
    pub up: Vec<Item>,
    /// What follows them.
    pub up_end: UpEnd,
    /// The writes of the plain peer.
    pub down: Vec<usize>,
    /// What follows them.
    pub down_end: DownEnd,
    /// Which peer waits.
    pub order: Order,
}

/// The most data in a record.
const LARGEST: usize = 16_384;

impl Plan {
    /// Draws a plan. The same number gives the same plan.
    #[must_use]
    pub fn draw(number: u64, kinds: Kinds) -> Self {
        let mut dice = Dice(number);
        let role = dice.choose(&[Role::Server, Role::Client]);
        let small = |dice: &mut Dice| dice.choose(&[None, None, Some(2_048), Some(16_384)]);
        let reads = |dice: &mut Dice| match dice.below(4) {
            0 => 1 + dice.below(64),
            1 => 1_500,
            _ => 65_536,
        };
        let ends = [
            UpEnd::Notify,
            UpEnd::NotifyAndFin,
            UpEnd::NotifyAndFin,
            UpEnd::Fin,
            UpEnd::Reset,
            UpEnd::FatalAlert,
            UpEnd::BadTag,
            UpEnd::BadVersion,
            UpEnd::TooLong,
        ];
        let up_end = dice.choose(&ends);
        let receive_buffers = [small(&mut dice), small(&mut dice)];
        let is_reset = up_end.is_regular() && dice.below(8) == 0;
        Self {
            number,
            role,
            cipher: dice.choose(&[Cipher::Aes128, Cipher::Aes256, Cipher::ChaCha20]),
            send_buffers: [small(&mut dice), small(&mut dice)],
            receive_buffers,
            reads: [reads(&mut dice), reads(&mut dice)],
            pieces: dice.choose(&[1_000, 16_406, 65_536]),
            up: records(&mut dice, role, kinds, receive_buffers[1]),
            up_end,
            down: writes(&mut dice, receive_buffers[0]),
            down_end: if is_reset { DownEnd::Reset } else { DownEnd::Fin },
            order: dice.choose(&[Order::Together, Order::Together, Order::UpFirst, Order::DownFirst]),
        }
    }

    /// Returns how many bytes of data the TLS peer sends.
    #[must_use]
    pub fn up_bytes(&self) -> usize {
        let bytes = |item: &Item| if let Item::Data { bytes, .. } = item { *bytes } else { 0 };
        self.up.iter().map(bytes).sum()
    }

    /// Returns how many bytes the plain peer sends.
    #[must_use]
    pub fn down_bytes(&self) -> usize {
        self.down.iter().sum()
    }
}

/// Draws how many bytes a direction has.
fn total(dice: &mut Dice, receive_buffer: Option<usize>) -> usize {
    // A small window opens five times a second.
    let most = match receive_buffer {
        Some(bytes) => 8 * bytes,
        None => dice.choose(&[0, 2_000, 60_000, 300_000]),
    };
    dice.below(most + 1)
}

fn records(dice: &mut Dice, role: Role, kinds: Kinds, receive_buffer: Option<usize>) -> Vec<Item> {
    let mut left = total(dice, receive_buffer);
    let most = dice.choose(&[100, 1_500, LARGEST]);
    let mut items = Vec::new();
    loop {
        match dice.below(12) {
            0 => items.push(Item::Empty),
            1 if role == Role::Client => items.push(Item::Ticket),
            // rustls accepts four.
            3 if items.iter().filter(|item| **item == Item::Canceled).count() < 2 => items.push(Item::Canceled),
            2 if kinds.key_updates => items.push(Item::KeyUpdate {
                is_requested: dice.below(2) == 0,
            }),
            _ if left == 0 => return items,
            _ => {
                // A plan has at most a few hundred records.
                let bytes = (1 + dice.below(most)).max(left / 200).min(left).min(LARGEST);
                let padding = if dice.below(8) == 0 {
                    dice.below(LARGEST - bytes + 1)
                } else {
                    0
                };
                items.push(Item::Data { bytes, padding });
                left -= bytes;
            }
        }
    }
}

fn writes(dice: &mut Dice, receive_buffer: Option<usize>) -> Vec<usize> {
    let mut left = total(dice, receive_buffer);
    let most = dice.choose(&[700, 5_000, 100_000]);
    let mut writes = Vec::new();
    while left > 0 {
        let bytes = (1 + dice.below(most)).max(left / 200).min(left);
        writes.push(bytes);
        left -= bytes;
    }
    writes
}

/// Numbers that look random (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("below a usize")
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Returns the byte at a place of a stream. Up and down have different streams.
pub(crate) fn byte_at(number: u64, is_up: bool, place: usize) -> u8 {
    let place = (place as u64)
        .wrapping_add(number << 20)
        .wrapping_add(u64::from(is_up) << 50);
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56).to_le_bytes()[0]
}
