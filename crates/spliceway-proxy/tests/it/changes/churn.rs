//! Many services that come and go, beside one that must not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;

/// The services of each round.
const SERVICES: usize = 300;
const ROUNDS: usize = 4;

#[test]
fn services_that_come_and_go_disturb_no_other_one_and_leave_nothing() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (program, _file) = start(&socket, target);
    let kept = program.connect();
    exchange(&kept);
    let stop = Arc::new(AtomicBool::new(false));
    let clients = thread::spawn({
        let (stop, address) = (Arc::clone(&stop), program.address);
        move || {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                // Each client is served to its end.
                let client = with_patience(TcpStream::connect(address).unwrap());
                exchange(&client);
                count += 1;
            }
            count
        }
    });
    let all = |table: &dyn Fn(usize) -> Value| {
        let services = (0..SERVICES).map(|number| (format!("service-{number}"), table(number)));
        Value::Object(services.collect())
    };
    let mut descriptors = None;
    for _ in 0..ROUNDS {
        let added = send(&socket, "PATCH /v1/services", &[], &all(&|_| forward(target)));
        assert_eq!(added.status, 200, "{}", added.text());
        for number in (0..SERVICES).step_by(SERVICES / 10) {
            let path = format!("/v1/services/service-{number}");
            let changed = send(&socket, &format!("PATCH {path}"), &[], &json!({"deny": "10.0.0.0/8"}));
            assert_eq!(changed.text(), format!("changed service-{number}"));
            exchange(&reach(&socket, &format!("service-{number}")));
            assert_eq!(send(&socket, &format!("DELETE {path}"), &[], &Value::Null).status, 200);
        }
        let removed = send(&socket, "PATCH /v1/services", &[], &all(&|_| Value::Null));
        assert_eq!(removed.status, 200, "{}", removed.text());
        exchange(&kept);
        descriptors.get_or_insert_with(|| settled(&program));
    }
    stop.store(true, Ordering::Relaxed);
    assert!(clients.join().unwrap() > 0);
    exchange(&kept);
    let (before, after) = (descriptors.unwrap(), settled(&program));
    assert!(after <= before + 16, "{before} descriptors became {after}");
    let listed = send(&socket, "GET /v1/services", &[], &Value::Null);
    assert_eq!(listed.body["services"].as_array().unwrap().len(), 1);
}

/// Returns the number of descriptors when the listeners of all removed services have closed.
fn settled(program: &Program) -> usize {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let descriptors = program.descriptors();
        if descriptors < SERVICES {
            return descriptors;
        }
        assert!(std::time::Instant::now() < until, "{descriptors} descriptors");
        thread::yield_now();
    }
}
