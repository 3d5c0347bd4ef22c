use super::*;

fn records() -> Records {
    Records::new(TlsCipher::Aes128Gcm, 7)
}

const REQUEST: [u8; 5] = [24, 0, 0, 1, 1];

fn read(content: &[(u8, &[u8])]) -> io::Result<Vec<Meaning>> {
    let (mut records, mut all) = (records(), Vec::new());
    for (kind, content) in content {
        all.extend(records.read(*kind, content)?);
    }
    Ok(all)
}

#[test]
fn each_record_has_its_meaning() {
    let ticket = [&[4, 0, 0, 3, 1, 2, 3][..], &[4, 0, 0, 1, 9]].concat();
    assert_eq!(read(&[(DATA, b"")]).unwrap(), []);
    assert_eq!(read(&[(ALERT, &[1, 0])]).unwrap(), [Meaning::End]);
    assert_eq!(
        read(&[(ALERT, &[1, 90]), (ALERT, &[1, 0])]).unwrap(),
        [Meaning::Nothing, Meaning::End]
    );
    assert_eq!(
        read(&[(HANDSHAKE, &ticket)]).unwrap(),
        [Meaning::Ticket(vec![1, 2, 3]), Meaning::Ticket(vec![9])]
    );
    assert_eq!(
        read(&[(HANDSHAKE, &REQUEST)]).unwrap(),
        [Meaning::KeyUpdate { is_requested: true }]
    );
}

#[test]
fn a_message_may_come_in_parts_of_any_size() {
    let all = [&[4, 0, 0, 3, 1, 2, 3][..], &REQUEST].concat();
    let expected = [
        Meaning::Ticket(vec![1, 2, 3]),
        Meaning::KeyUpdate { is_requested: true },
    ];
    for size in 1..=all.len() {
        let parts: Vec<_> = all.chunks(size).map(|part| (HANDSHAKE, part)).collect();
        assert_eq!(read(&parts).unwrap(), expected, "{size}");
    }
    assert_eq!(read(&[(ALERT, &[1]), (ALERT, &[0])]).unwrap(), [Meaning::End]);
}

#[test]
fn what_may_not_come_is_a_fault_with_an_alert() {
    let after_update = [&REQUEST[..], &[4, 0, 0, 0]].concat();
    for content in [
        &[(20, &[1][..])][..],
        &[(HANDSHAKE, &[24, 0, 0, 1, 2])],
        &[(HANDSHAKE, &[24, 0, 0, 2, 0, 0])],
        &[(HANDSHAKE, &[1, 0, 0, 0])],
        &[(HANDSHAKE, &[4, 2, 0, 0])],
        &[(HANDSHAKE, &after_update)],
        &[(HANDSHAKE, &[4, 0]), (ALERT, &[1, 0])],
        &[(HANDSHAKE, &[4, 0]), (DATA, &[])],
    ] {
        let (alert, error) = fault(read(content).unwrap_err());
        assert_eq!(
            (alert, error.kind()),
            (Some(UNEXPECTED_MESSAGE), io::ErrorKind::InvalidData)
        );
    }
    // An alert is not answered.
    let (alert, error) = fault(read(&[(ALERT, &[2, 80])]).unwrap_err());
    assert_eq!(
        (alert, error.to_string()),
        (None, "TLS: the peer sent alert 80".to_owned())
    );
}

#[test]
fn only_so_many_records_without_data_come_in_a_row() {
    let (mut records, mut next) = (records(), 7);
    for data in (0..3).map(Received::ByRelay) {
        for _ in 0..WITHOUT_DATA_MAX {
            next += 1;
            records.count_until(next, data).unwrap();
            // The rest of a record that was received in parts.
            records.count_until(next, data).unwrap();
        }
        // A record with data.
        next += 1;
    }
    assert!(records.count_until(next, Received::ByRelay(2)).is_err());
}

#[test]
fn records_that_come_together_count_each() {
    let mut records = records();
    records.count_until(8, Received::ByRelay(1)).unwrap();
    // Empty records of data, and a ticket.
    records.count_until(39, Received::ByRelay(1)).unwrap();
    assert!(records.count_until(40, Received::ByRelay(1)).is_err());
}

#[test]
fn data_may_not_come_inside_a_message() {
    let mut records = records();
    records.count_until(8, Received::ByRelay(5)).unwrap();
    records.read(HANDSHAKE, &[4, 0]).unwrap();
    assert!(records.count_until(10, Received::ByRelay(6)).is_err());
}
