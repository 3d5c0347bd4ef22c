//! smoke
mod idle;
mod role;
mod syscalls;
mod unprivileged;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn pair() -> (TcpStream, TcpStream) {
    let l = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (a, b) = tokio::join!(TcpStream::connect(l.local_addr().unwrap()), l.accept());
    (a.unwrap(), b.unwrap().0)
}

#[tokio::test]
async fn smoke() {
    let (mut client, mut a) = pair().await;
    let (mut server, mut b) = pair().await;
    let relay = tokio::spawn(async move { spliceway::Relay::new(&mut a, &mut b).await });
    let up = vec![7u8; 50 << 20];
    let up2 = up.clone();
    let w = tokio::spawn(async move {
        client.write_all(&up2).await.unwrap();
        client.shutdown().await.unwrap();
        let mut v = vec![];
        client.read_to_end(&mut v).await.unwrap();
        v
    });
    let mut got = vec![];
    server.read_to_end(&mut got).await.unwrap();
    assert!(got == up);
    server.write_all(b"bye").await.unwrap();
    drop(server);
    assert_eq!(w.await.unwrap(), b"bye");
    println!("{:?}", relay.await.unwrap().unwrap());
    println!("{:?}", spliceway::PipePool::global().stats());
}
