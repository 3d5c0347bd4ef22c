//! Closes a client's connection in such a way that the client can read its answer. A socket that
//! is closed with unread bytes resets its peer. The peer then loses the part of the answer that it
//! has not read.

use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::client::Client;

/// The limit on bytes that are read and discarded after a body. It is more than a client needs to
/// send an extra line end or another request. If a client sends more, TCP flow control stops it.
pub(super) const FORGOTTEN_MAX_BYTES: usize = 64 << 10;

/// The longest time for which the proxy reads from a refused client.
const REFUSED: Duration = Duration::from_secs(1);
/// The longest wait for a client to finish if there is no half-close timeout.
const LINGER_MAX: Duration = Duration::from_secs(60);

/// Sends an answer, and reads from the client for a short time before the caller closes the
/// connection.
pub(super) async fn lingering_close<C>(client: &mut C, answer: &[u8])
where
    C: AsyncBufRead + AsyncWrite + Unpin,
{
    let lingering_close = async {
        client.write_all(answer).await?;
        client.shutdown().await?;
        tokio::io::copy_buf(&mut client.take(FORGOTTEN_MAX_BYTES as u64), &mut tokio::io::sink()).await
    };
    // The proxy cannot know whether the answer arrived.
    let _ = timeout(REFUSED, lingering_close).await;
}

/// Reads and discards bytes from a client until the client has finished, for at most the half-close
/// timeout, and at most 64 KiB.
pub(super) async fn linger(client: &mut (impl AsyncRead + Unpin), limit: Option<Duration>) {
    let mut client = client.take(FORGOTTEN_MAX_BYTES as u64);
    let mut sink = tokio::io::sink();
    let reading = tokio::io::copy(&mut client, &mut sink);
    // The session is over, whatever the result is.
    let _ = timeout(limit.unwrap_or(LINGER_MAX), reading).await;
}

/// Ends what the proxy sends, and then gives the client time to read it.
pub(super) async fn finish_and_linger(client: &mut Client, limit: Option<Duration>) {
    // The client may not read. It then loses the end of what it does not want.
    if let Ok(Ok(())) = timeout(limit.unwrap_or(LINGER_MAX), client.shutdown()).await {
        linger(client, limit).await;
    }
}
