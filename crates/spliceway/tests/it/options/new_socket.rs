use spliceway::{Engine, Peer, Relay, RelayOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{guard, tcp};

#[tokio::test]
async fn bytes_from_before_and_after_the_start_leave_a_new_socket() {
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        let ((mut near, a), (b, mut far)) = (tcp().await, tcp().await);
        near.write_all(b"before").await.unwrap();
        let options = RelayOptions::new().engine(engine);
        let relay = Relay::with_options(a, b, options.new_socket(Peer::A).new_socket(Peer::B));
        let relay = tokio::spawn(relay);
        let mut bytes = [0; 6];
        guard(far.read_exact(&mut bytes)).await.unwrap();
        assert_eq!(&bytes, b"before");
        for text in [b"answer", b"second"] {
            far.write_all(text).await.unwrap();
            guard(near.read_exact(&mut bytes)).await.unwrap();
            assert_eq!(&bytes, text);
        }
        near.shutdown().await.unwrap();
        assert_eq!(guard(far.read(&mut bytes)).await.unwrap(), 0);
        drop(far);
        let summary = guard(relay).await.unwrap().unwrap();
        assert_eq!((summary.a_to_b.bytes, summary.b_to_a.bytes), (6, 12));
    }
}
