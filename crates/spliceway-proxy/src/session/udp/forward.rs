//! Forwards UDP datagrams: `forward --udp`. Each client has a session with its own socket, which is
//! connected to the target.
//!
//! ```text
//!   client A ◀═╗             ╔═▶ session A ◀═ connected socket ═▶ target
//!   client B ◀═╩═▶ Port ◀═══╩═▶ session B ◀═ connected socket ═▶ target
//! ```
//!
//! The task of the [`Port`] receives from all clients, and sends through the sockets of their
//! sessions. The task of a session receives from its target, and sends through the port.
//!
//! **Sessions.** A client is an address and a port, and the address of this machine that it has
//! reached. A datagram of an unknown client begins a session. The session ends after a silence
//! (`--udp-timeout`), or if the network reports that nothing receives at the target. If the target
//! has never answered, a quarter of that time is enough, because the client may not exist.
//!
//! **Targets that have moved.** A client that never pauses would keep its target for ever. While
//! the target is silent, its session asks from time to time whether another session of the client
//! would have the same target, and ends if not. The next datagram begins that other session.
//!
//! **No amplification.** Anybody can forge the address of a client. So a client gets exactly the
//! datagrams that its target sends to the session, and nothing from the program itself. The kernel
//! admits only the target's own address to the connected socket. No client is its own target: each
//! answer would reach the target as another question, and one forged datagram would go round for
//! ever.
//!
//! **Order and boundaries.** The datagrams of a session keep their order, and none is split or
//! merged. Those that arrive before the socket is connected wait for it.
//!
//! **Limits.** A session counts towards the limits on sessions (`--max-conns`,
//! `--max-conns-per-ip`). All sessions of datagrams together have a smaller limit, so that forged
//! clients leave permits for clients with connections. At a limit, the datagrams of new clients are
//! dropped and counted, and no session ends for them. At most 4 MiB of datagrams wait in a port.
//!
//! **Loss.** Like a router, the program drops a datagram that it cannot send immediately, or that
//! is above a rate limit.

mod client_side;
mod port;
mod refused;
mod session;
mod table;

pub(crate) use port::{Opener, Port};
