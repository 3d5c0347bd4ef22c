//! Targets of the program: an echo server, one that never answers, one that answers early, and a
//! DNS server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, copy, split};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The early target's answer before it closes.
pub(crate) const EARLY_ANSWER: &[u8] = b"413 no more of this\n";

/// The running servers. Dropping this value stops them.
pub(crate) struct Servers {
    /// Returns the bytes that it receives.
    pub(crate) echo: SocketAddr,
    /// Listens with a full backlog, so that connections to it are neither accepted nor refused.
    pub(crate) silent: SocketAddr,
    /// Answers and closes while its client is still sending.
    pub(crate) early: SocketAddr,
    /// An address where nothing listens.
    pub(crate) refusing: SocketAddr,
    /// A DNS server. It does not answer for `never…`. It answers for `late…` after 2 s, and for any
    /// other name immediately.
    pub(crate) names: SocketAddr,
    _backlog: (TcpListener, Vec<TcpStream>),
    _running: JoinSet<()>,
}

impl Servers {
    pub(crate) async fn start() -> io::Result<Self> {
        let (echo, early, refusing) = (listen().await?, listen().await?, listen().await?);
        let names = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
        let backlog = full_backlog().await?;
        let addresses = (echo.local_addr()?, early.local_addr()?, names.local_addr()?);
        let silent = backlog.0.local_addr()?;
        let mut running = JoinSet::new();
        running.spawn(serve(echo, |stream| async {
            let (mut from, mut to) = split(stream);
            // A client that breaks off is not an error here.
            let _ = copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        }));
        running.spawn(serve(early, |mut stream| async move {
            let _ = stream.write_all(EARLY_ANSWER).await;
        }));
        running.spawn(serve_names(names));
        Ok(Self {
            echo: addresses.0,
            silent,
            early: addresses.1,
            refusing: refusing.local_addr()?,
            names: addresses.2,
            _backlog: backlog,
            _running: running,
        })
    }
}

async fn listen() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await
}

/// Returns a listener that never accepts, and the connections that fill its queue.
async fn full_backlog() -> io::Result<(TcpListener, Vec<TcpStream>)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let listener = socket.listen(0)?;
    let address = listener.local_addr()?;
    let mut queued = Vec::new();
    // A connection over loopback takes microseconds, so a slower one does not fit in the queue.
    while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        queued.push(stream?);
    }
    Ok((listener, queued))
}

async fn serve<F>(listener: TcpListener, answer: fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut clients = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        clients.spawn(answer(stream));
        while clients.try_join_next().is_some() {}
    }
}

async fn serve_names(socket: Arc<UdpSocket>) {
    let mut question = [0; 512];
    let mut late = JoinSet::new();
    while let Ok((length, client)) = socket.recv_from(&mut question).await {
        let Some(answer) = answer(&question[..length]) else {
            continue;
        };
        // The first letter of the first label, which follows the header and the label's length.
        match question[13] {
            b'n' => {}
            b'l' => {
                let socket = Arc::clone(&socket);
                late.spawn(async move {
                    // Sleeps because this server must be slow.
                    sleep(Duration::from_secs(2)).await;
                    let _ = socket.send_to(&answer, client).await;
                });
            }
            _ => drop(socket.send_to(&answer, client).await),
        }
        while late.try_join_next().is_some() {}
    }
}

/// Answers an IPv4 question with 127.0.0.1. The answer to an IPv6 question has no address (RFC 1035
/// section 4). The lifetime of an answer is 0 s, so every probe has to ask.
fn answer(question: &[u8]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    let name = question.get(HEADER..)?.iter().position(|byte| *byte == 0)?;
    // The name is followed by its 0 byte, a type and a class.
    let section = question.get(HEADER..HEADER + name + 5)?;
    let wants_ipv4 = section[name + 1..name + 3] == [0, 1];
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(wants_ipv4), 0, 0, 0, 0]);
    answer.extend(section);
    if wants_ipv4 {
        // A pointer to the name, type A, class IN, 0 s, four bytes of address.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]);
    }
    Some(answer)
}
